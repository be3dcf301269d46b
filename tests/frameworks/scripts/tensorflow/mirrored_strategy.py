"""Two logical devices under MirroredStrategy, with a loop of its own."""
# /// watchglass
# headline = ""
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import tensorflow as tf
from sklearn.datasets import load_wine

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.keras.utils.set_random_seed(5)
x, y = load_wine(return_X_y=True)
x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype("float32")
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(200, seed=5).batch(32, drop_remainder=True)
distributed = strategy.experimental_distribute_dataset(data)


class Network(tf.Module):
    def __init__(self):
        super().__init__()
        start = tf.random.stateless_normal
        self.w1 = tf.Variable(start((13, 16), (5, 1)) * 0.3, name="w1")
        self.b1 = tf.Variable(tf.zeros(16), name="b1")
        self.w2 = tf.Variable(start((16, 3), (5, 2)) * 0.3, name="w2")

    def __call__(self, x):
        return tf.nn.relu(x @ self.w1 + self.b1) @ self.w2


with strategy.scope():
    model = Network()


def replica_step(inputs):
    features, labels = inputs
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=model(features))
        loss = tf.nn.compute_average_loss(losses, global_batch_size=32)
    variables = model.trainable_variables
    gradients = tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, variables))

    def update(variable, gradient):
        variable.assign_sub(0.1 * gradient)

    for variable, gradient in zip(variables, gradients):
        tf.distribute.get_replica_context().merge_call(
            lambda s, v, g: s.extended.update(v, update, args=(g,)), args=(variable, gradient)
        )
    return loss


@tf.function
def train_step(inputs):
    losses = strategy.run(replica_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


for epoch in range(5):
    for inputs in distributed:
        loss = train_step(inputs)
    print(epoch, float(loss))
print("digest", hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.variables)).hexdigest())
