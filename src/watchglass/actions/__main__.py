"""``python -m watchglass.actions``: the process of one delivery."""

import sys

from watchglass.actions.delivering import main

sys.exit(main(sys.argv[1:]))
