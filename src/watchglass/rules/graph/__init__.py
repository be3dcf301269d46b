"""What rules know of graphs: the terms of a loss, evaluated from the operands up, and the layers of a forward."""
