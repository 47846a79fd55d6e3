"""``python -m fedekd``."""

import sys

from fedekd.cli import main

sys.exit(main())
