"""``python -m watchglass.profile``: the sampler process; its configuration comes on stdin."""

import os
import sys

# No products of matrices here: threads of NumPy's BLAS would only compete with the training run.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
from watchglass.profile.process import main

sys.exit(main(sys.argv[1:]))
