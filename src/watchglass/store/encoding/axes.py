"""How many axes a tensor may have."""

import numpy as np

#: Most axes that NumPy gives an array.
MAX_AXES = 64 if int(np.__version__.partition(".")[0]) >= 2 else 32
