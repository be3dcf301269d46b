"""``python -m watchglass.tensorboard``: the process that writes event files; its configuration comes on stdin."""

import sys

from watchglass.tensorboard.process import main

sys.exit(main(sys.argv[1:]))
