"""Keras 3, which drives TensorFlow, JAX or PyTorch; the only package that imports it."""
