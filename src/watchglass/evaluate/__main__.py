"""``python -m watchglass.evaluate``: the evaluator process; its configuration comes on stdin."""

import os
import sys

# Rules take no products of large matrices: threads of NumPy's BLAS would only compete with the training run. What the
# evaluator starts later finds the environment as it was.
_given = os.environ.get("OPENBLAS_NUM_THREADS")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
from watchglass.evaluate.live.process import main  # noqa: E402

if _given is None:
    del os.environ["OPENBLAS_NUM_THREADS"]
sys.exit(main(sys.argv[1:]))
