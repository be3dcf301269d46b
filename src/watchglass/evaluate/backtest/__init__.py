"""A rule on stored runs, compared with their labels."""
