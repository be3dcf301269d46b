"""Autograd's graph, and the operations of losses that a script writes itself."""
