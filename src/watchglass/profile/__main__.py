"""``python -m watchglass.profile``: the sampler process; its configuration comes on stdin."""

import gc
import os
import sys

# Imported modules stay until the end: a collection while they are imported, or at the end, would only visit them all.
gc.disable()

# No products of matrices here: threads of NumPy's BLAS would only compete with the training run.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
from watchglass.profile.process import main  # noqa: E402

gc.freeze()
gc.enable()
status = main(sys.argv[1:])
gc.freeze()
sys.exit(status)
