"""The course of a step: the model is called, its modules run, a backward starts from a loss, an optimizer steps."""
