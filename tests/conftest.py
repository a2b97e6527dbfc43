"""Make every test see the installed package, however pytest was started.

The repository's ``duplex/`` folder holds only a part of the import package: ``duplex.adapters``,
``duplex.codecs`` and ``duplex.clients`` come from other top-level folders and meet it at installation.
With the repository root on ``sys.path`` (``python -m pytest``, or a child ``python -m`` started in the
root) that folder would hide the installed one.
"""

import os
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]

sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != _ROOT]

# The same for the Python processes that tests start: `-m` and `-c` must not add the current folder.
os.environ["PYTHONSAFEPATH"] = "1"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Coroutine tests run on asyncio."""
    return "asyncio"
