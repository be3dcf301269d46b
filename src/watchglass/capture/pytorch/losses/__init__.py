"""The losses and accuracies of training and evaluation, and the objective of each update."""
