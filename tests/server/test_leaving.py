"""A client that closes its socket is done; one whose connection breaks or page reloads may come back."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_peer import Peer, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("code", [1000, None])
async def test_id_of_a_socket_that_was_closed_is_free(start_gateway: Any, code: int | None) -> None:
    """A browser's `close()` sends a frame without a code."""
    gateway = await start_gateway(max_sessions=1)
    for _ in range(3):
        peer = await Peer.connect(gateway, session_id="same")
        peer.ws.protocol.send_close(code)
        peer.ws.transport.write(b"".join(peer.ws.protocol.data_to_send()))
        await peer.ws.wait_closed()
        await until(lambda: len(gateway.runtime.leases) == 0)


async def test_session_of_a_closed_socket_cannot_be_resumed(start_gateway: Any) -> None:
    gateway = await start_gateway()
    peer = await Peer.connect(gateway)
    await peer.ws.close()
    await until(lambda: len(gateway.runtime.leases) == 0)
    late = await Peer.connect(gateway, resume=peer.created["resume_token"], opened=False)
    assert (await late.until_closed())[0] == 4410


async def test_session_of_a_page_that_reloads_is_kept(start_gateway: Any) -> None:
    gateway = await start_gateway()
    peer = await Peer.connect(gateway)
    await peer.ws.close(1001, "going away")
    await until(lambda: gateway.runtime.leases.detached == 1)
    back = await Peer.connect(gateway, resume=peer.created["resume_token"])
    assert back.created["session_id"] == peer.created["session_id"]


async def test_old_socket_that_closes_after_a_takeover_ends_nothing(start_gateway: Any) -> None:
    gateway = await start_gateway()
    old = await Peer.connect(gateway)
    back = await Peer.connect(gateway, resume=old.created["resume_token"])
    await old.ws.close()
    await back.send("response.create")
    await back.expect("response.done")
