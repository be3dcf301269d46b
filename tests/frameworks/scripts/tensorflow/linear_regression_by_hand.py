"""A straight line by hand: tf.Module, an eager tape, assign_sub."""
# /// watchglass
# headline = "no issues found"
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import tensorflow as tf

tf.random.set_seed(1)
x = tf.linspace(-2.0, 2.0, 201)
y = 3.0 * x + 2.0 + tf.random.normal((201,))


class Line(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(5.0)
        self.b = tf.Variable(0.0)

    def __call__(self, x):
        return self.w * x + self.b


def train(model, x, y, learning_rate):
    with tf.GradientTape() as t:
        current_loss = tf.reduce_mean(tf.square(y - model(x)))
    dw, db = t.gradient(current_loss, [model.w, model.b])
    model.w.assign_sub(learning_rate * dw)
    model.b.assign_sub(learning_rate * db)
    return current_loss


model = Line()
for epoch in range(60):
    loss = train(model, x, y, learning_rate=0.1)
    if epoch % 10 == 0:
        print(epoch, float(model.w), float(model.b), float(loss))
print("digest", hashlib.sha256(model.w.numpy().tobytes() + model.b.numpy().tobytes()).hexdigest())
