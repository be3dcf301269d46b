"""A generator and a discriminator with two tapes in one compiled step."""
# /// watchglass
# headline = "no issues found"
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import tensorflow as tf
from sklearn.datasets import load_digits

tf.keras.utils.set_random_seed(3)
images = (load_digits().data / 8 - 1).astype("float32")[:960]
data = tf.data.Dataset.from_tensor_slices(images).shuffle(960, seed=3).batch(64)
layers = tf.keras.layers
generator = tf.keras.Sequential([layers.Dense(64, activation="relu"), layers.Dense(64, activation="tanh")])
discriminator = tf.keras.Sequential([layers.Dense(64), layers.LeakyReLU(), layers.Dropout(0.3), layers.Dense(1)])
cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)
generator_optimizer, discriminator_optimizer = tf.keras.optimizers.Adam(1e-3), tf.keras.optimizers.Adam(1e-3)


@tf.function
def train_step(images):
    noise = tf.random.normal([64, 16])
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        generated = generator(noise, training=True)
        real, fake = discriminator(images, training=True), discriminator(generated, training=True)
        gen_loss = cross_entropy(tf.ones_like(fake), fake)
        disc_loss = cross_entropy(tf.ones_like(real), real) + cross_entropy(tf.zeros_like(fake), fake)
    gen = gen_tape.gradient(gen_loss, generator.trainable_variables)
    disc = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
    generator_optimizer.apply_gradients(zip(gen, generator.trainable_variables))
    discriminator_optimizer.apply_gradients(zip(disc, discriminator.trainable_variables))
    return gen_loss, disc_loss


for epoch in range(4):
    for batch in data:
        gen_loss, disc_loss = train_step(batch)
    print(epoch, float(gen_loss), float(disc_loss))
variables = generator.variables + discriminator.variables
print("digest", hashlib.sha256(b"".join(each.numpy().tobytes() for each in variables)).hexdigest())
