"""Train a convolutional network to read scikit-learn's handwritten digits: an ordinary Keras script.

    python train.py                        reaches about 97 % validation accuracy
    python train.py --fault learning-rate  learns nothing

It runs on each backend of Keras: KERAS_BACKEND=jax python train.py
"""

from __future__ import annotations

import argparse

import keras
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

FAULTS = {
    "learning-rate": "a learning rate of 5",
    "identical-init": "all weights of a layer start at the same value",
    "labels": "labels that do not belong to their images",
}


def build_model(fault: str | None) -> keras.Model:
    start = keras.initializers.Constant(0.01) if fault == "identical-init" else "he_normal"
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu", kernel_initializer=start, name="conv1"),
            layers.Conv2D(32, 3, padding="same", activation="relu", kernel_initializer=start, name="conv2"),
            layers.MaxPooling2D(2, name="pool"),
            layers.Flatten(name="flatten"),
            layers.Dense(64, activation="relu", kernel_initializer=start, name="hidden"),
            layers.Dense(10, kernel_initializer=start, name="classifier"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", choices=FAULTS, help="; ".join(f"{name}: {what}" for name, what in FAULTS.items()))
    args = parser.parse_args()

    keras.utils.set_random_seed(args.seed)
    digits = load_digits()
    images = (digits.images[..., None].astype("float32") - 4.9) / 6.0
    x, x_valid, y, y_valid = train_test_split(images, digits.target, test_size=0.2, random_state=args.seed)
    if args.fault == "labels":
        y = keras.random.shuffle(y, seed=args.seed)

    model = build_model(args.fault)
    rate = 5.0 if args.fault == "learning-rate" else 0.02
    model.compile(
        optimizer=keras.optimizers.SGD(rate, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(x, y, batch_size=args.batch_size, epochs=args.epochs, validation_data=(x_valid, y_valid), verbose=2)


if __name__ == "__main__":
    main()
