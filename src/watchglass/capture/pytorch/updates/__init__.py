"""Whose updates count: optimizers of watched models, and updates that a script makes itself."""
