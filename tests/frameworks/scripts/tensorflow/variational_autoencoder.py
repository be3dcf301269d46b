"""A variational autoencoder: reparametrization, a Monte Carlo bound, one tape."""
# /// watchglass
# headline = "no issues found"
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import tensorflow as tf
from sklearn.datasets import load_digits

tf.keras.utils.set_random_seed(4)
images = (load_digits().data > 7).astype("float32")
data = tf.data.Dataset.from_tensor_slices(images).shuffle(2000, seed=4).batch(64)


class VAE(tf.keras.Model):
    def __init__(self, latent):
        super().__init__()
        self.encoder = tf.keras.Sequential(
            [tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(2 * latent)]
        )
        self.decoder = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(64)])

    def encode(self, x):
        return tf.split(self.encoder(x), num_or_size_splits=2, axis=1)

    def call(self, x):
        mean, logvar = self.encode(x)
        z = mean + tf.random.normal(tf.shape(mean)) * tf.exp(logvar * 0.5)
        return self.decoder(z), mean, logvar


def compute_loss(model, x):
    logits, mean, logvar = model(x)
    cross = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(logits=logits, labels=x), axis=1)
    divergence = -0.5 * tf.reduce_sum(1 + logvar - mean**2 - tf.exp(logvar), axis=1)
    return tf.reduce_mean(cross + divergence)


@tf.function
def train_step(model, x, optimizer):
    with tf.GradientTape() as tape:
        loss = compute_loss(model, x)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


model, optimizer = VAE(2), tf.keras.optimizers.Adam(1e-3)
for epoch in range(3):
    for batch in data:
        loss = train_step(model, batch, optimizer)
    print(epoch, float(loss), float(compute_loss(model, images[:200])))
print("digest", hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.variables)).hexdigest())
