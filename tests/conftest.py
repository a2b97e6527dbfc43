"""Make every test see the installed package, however pytest was started.

The repository's ``duplex/`` folder holds only a part of the import package: ``duplex.adapters``,
``duplex.codecs`` and ``duplex.clients`` come from other top-level folders and meet it at installation.
With the repository root on ``sys.path`` (``python -m pytest``, or a child ``python -m`` started in the
root) that folder would hide the installed one.
"""

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from duplex.adapters.base import Adapter
    from duplex.server.run import Gateway

_ROOT = Path(__file__).resolve().parents[1]

sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != _ROOT]

# The same for the Python processes that tests start: `-m` and `-c` must not add the current folder.
os.environ["PYTHONSAFEPATH"] = "1"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Coroutine tests run on asyncio."""
    return "asyncio"


@pytest.fixture
async def start_gateway() -> AsyncIterator[Callable[..., "Awaitable[Gateway]"]]:
    """Start gateways on free ports, on the test's loop: `await start_gateway(adapter, max_sessions=2)`.
    Keyword arguments are settings of `ServerConfig`. All are stopped when the test ends."""
    # imported late: the path must be as above before
    from duplex.adapters.scripted import ScriptedAdapter
    from duplex.config import ServerConfig
    from duplex.server.run import running_gateway

    async with contextlib.AsyncExitStack() as stack:

        async def start(*adapters: "Adapter", **settings: Any) -> "Gateway":
            config = ServerConfig(**{"port": 0, "drain_grace_s": 0.0, **settings})
            served = adapters or (ScriptedAdapter(),)
            return await stack.enter_async_context(running_gateway(config, served))

        yield start
