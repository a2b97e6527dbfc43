"""`python -m duplex.cli`, where the `duplex` script is not on the path."""

import sys

from duplex.cli import main

sys.exit(main())
