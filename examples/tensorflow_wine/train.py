"""Tell three kinds of wine by their chemical analysis: an ordinary TensorFlow script with a loop of its own.

python train.py                         classifies nearly all of the wines that it has not seen
python train.py --fault identical-init  learns no more than a single unit could
"""

from __future__ import annotations

import argparse

import tensorflow as tf
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split

FAULTS = {
    "identical-init": "all weights of a layer start at the same value",
    "learning-rate": "a learning rate of 50",
    "raw": "measurements as they are, some of them a thousand times as large as others",
}


class Layer(tf.Module):
    def __init__(self, inputs: int, units: int, fault: str | None, name: str) -> None:
        super().__init__(name=name)
        start = tf.random.normal((inputs, units), stddev=(2 / inputs) ** 0.5)
        if fault == "identical-init":
            start = tf.fill((inputs, units), 0.1)
        self.w = tf.Variable(start, name="w")
        self.b = tf.Variable(tf.zeros(units), name="b")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x @ self.w + self.b


class Classifier(tf.Module):
    def __init__(self, fault: str | None) -> None:
        super().__init__(name="classifier")
        self.first = Layer(13, 32, fault, "first")
        self.second = Layer(32, 32, fault, "second")
        self.head = Layer(32, 3, fault, "head")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.head(tf.nn.relu(self.second(tf.nn.relu(self.first(x)))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", choices=FAULTS, help="; ".join(f"{name}: {what}" for name, what in FAULTS.items()))
    args = parser.parse_args()

    tf.random.set_seed(args.seed)
    table, kinds = load_wine(return_X_y=True)
    x, x_valid, y, y_valid = train_test_split(table, kinds, test_size=0.3, random_state=args.seed, stratify=kinds)
    if args.fault != "raw":
        mean, std = x.mean(axis=0), x.std(axis=0)
        x, x_valid = (x - mean) / std, (x_valid - mean) / std
    x, x_valid = x.astype("float32"), x_valid.astype("float32")
    batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(args.batch_size, drop_remainder=True)

    model = Classifier(args.fault)
    rate = 50.0 if args.fault == "learning-rate" else 0.05

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x)))
        gradients = tape.gradient(loss, model.trainable_variables)
        for variable, gradient in zip(model.trainable_variables, gradients):
            variable.assign_sub(rate * gradient)
        return loss

    for epoch in range(1, args.epochs + 1):
        for features, labels in batches:
            loss = train_step(features, labels)
        if epoch % 10 == 0:
            found = tf.argmax(model(x_valid), axis=1).numpy()
            print(f"epoch {epoch}: training loss {loss:.4f}, validation accuracy {(found == y_valid).mean():.1%}")


if __name__ == "__main__":
    main()
