"""``python -m watchglass.trackers``: the process that writes event files; its configuration comes on stdin."""

import sys

from watchglass.trackers.process import main

sys.exit(main(sys.argv[1:]))
