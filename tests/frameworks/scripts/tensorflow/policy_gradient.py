"""REINFORCE on a corridor, eagerly: episodes of unequal length, one update for each."""
# /// watchglass
# headline = "no issues found"
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(9)
generator = np.random.default_rng(9)
policy = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="tanh"), tf.keras.layers.Dense(2)])
policy(tf.zeros((1, 7)))
optimizer = tf.keras.optimizers.Adam(0.02)

for episode in range(40):
    place, states, actions = 3, [], []
    while 0 < place < 6 and len(states) < 20:
        state = np.eye(7, dtype="float32")[place]
        chance = tf.nn.softmax(policy(state[None]))[0].numpy()
        action = int(generator.random() < chance[1])
        states.append(state)
        actions.append(action)
        place += 1 if action else -1
    reward = 1.0 if place == 6 else -1.0 if place == 0 else 0.0
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=policy(np.stack(states)))
        loss = tf.reduce_mean(losses * reward)
    optimizer.apply_gradients(zip(tape.gradient(loss, policy.trainable_variables), policy.trainable_variables))
    if episode % 10 == 9:
        print(episode, len(states), reward, float(loss))
print("digest", hashlib.sha256(b"".join(each.numpy().tobytes() for each in policy.variables)).hexdigest())
