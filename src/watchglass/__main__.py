"""``python -m watchglass``: the same as the ``watchglass`` command, for the interpreter at hand."""

import sys

from watchglass.cli import main

sys.exit(main())
