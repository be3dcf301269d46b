"""``python -m watchglass.evaluate``: the evaluator process; its configuration comes on stdin."""

import gc
import os
import sys

# Imported modules stay until the end: a collection while they are imported, or at the end, would only visit them all.
gc.disable()

# Rules take no products of large matrices: threads of NumPy's BLAS would only compete with the training run. What the
# evaluator starts later finds the environment as it was.
_given = os.environ.get("OPENBLAS_NUM_THREADS")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
from watchglass.evaluate.live.process import main  # noqa: E402

if _given is None:
    del os.environ["OPENBLAS_NUM_THREADS"]
gc.freeze()
gc.enable()
status = main(sys.argv[1:])
gc.freeze()
sys.exit(status)
