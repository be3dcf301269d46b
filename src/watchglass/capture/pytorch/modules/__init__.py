"""The models: which modules are models, their names and places, hooks on them."""
