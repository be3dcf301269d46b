"""``python -m watchglass.evaluate CONFIG_AS_JSON``: the evaluator process."""

import sys

from watchglass.evaluate.process import main

sys.exit(main(sys.argv[1:]))
