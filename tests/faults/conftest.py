"""Each fault is tried in both dialects, over real sockets, on the loop that the server ships with."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(params=["native", "realtime"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)
