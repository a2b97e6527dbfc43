"""Lets the tests here import their helper modules."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
