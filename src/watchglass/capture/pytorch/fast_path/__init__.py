"""A step on which nothing is captured, in as few instructions as possible."""
