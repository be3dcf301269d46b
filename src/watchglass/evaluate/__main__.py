"""``python -m watchglass.evaluate``: the evaluator process; its configuration comes on stdin."""

import sys

from watchglass.evaluate.live.process import main

sys.exit(main(sys.argv[1:]))
