"""Who gets a session, and what the others are told."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from gateway_peer import Peer, until

from duplex.adapters.base import AdapterInfo
from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions
from duplex.clients import AsyncDuplexClient, BadConfig
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Modality, OpenSession

pytestmark = pytest.mark.anyio

TOKEN = "correct horse battery staple"


async def refused(gateway: Any, **options: Any) -> tuple[str, int, str]:
    """The error's code, the close code and the reason of a socket that gets no session."""
    peer = await Peer.connect(gateway, opened=False, **options)
    error = await peer.next()
    code, reason = await peer.until_closed()
    assert error["type"] == "error"
    assert error["fatal"]
    assert error["message"]
    return error["code"], code, reason


@pytest.mark.parametrize(
    "credentials",
    [
        {},
        {"token": "wrong"},
        {"token": ""},
        {"token": TOKEN + "x"},
        {"token": "wörng"},
        {"headers": {"Authorization": "Bearer wrong"}},
        {"headers": {"Authorization": f"Basic {TOKEN}"}},
        {"headers": {"Authorization": "Bearer wrong"}, "token": TOKEN},
    ],
)
async def test_wrong_or_missing_token_is_closed_with_4401(
    start_gateway: Any, credentials: dict[str, Any]
) -> None:
    adapter = ScriptedAdapter()
    gateway = await start_gateway(adapter, auth_token=TOKEN)
    assert await refused(gateway, **credentials) == ("unauthorized", 4401, "unauthorized")
    assert adapter.opened == 0


@pytest.mark.parametrize("credentials", [{"token": TOKEN}, {"headers": {"Authorization": f"bearer {TOKEN}"}}])
async def test_right_token_opens(start_gateway: Any, credentials: dict[str, Any]) -> None:
    gateway = await start_gateway(auth_token=TOKEN)
    peer = await Peer.connect(gateway, **credentials)
    assert (await peer.close())[0] == 1000


async def test_tokens_are_not_logged(start_gateway: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gateway = await start_gateway(auth_token=TOKEN)
    peer = await Peer.connect(gateway, token=TOKEN)
    resume_token = peer.created["resume_token"]
    await refused(gateway, token="guessed-token")
    await peer.close()
    served = [r for r in caplog.records if not r.name.startswith("websockets.client")]
    lines = " ".join(record.getMessage() for record in served)
    for secret in (TOKEN.split()[0], resume_token, "guessed-token"):
        assert secret not in lines


async def test_full_server_is_told_from_other_refusals(start_gateway: Any) -> None:
    """40: "too many people" was shown for other faults."""
    gateway = await start_gateway(max_sessions=1)
    peer = await Peer.connect(gateway, session_id="first")
    assert await refused(gateway) == ("server_full", 4429, "server_full")
    assert await refused(gateway, session_id="first") == ("session_id_in_use", 4429, "session_id_in_use")
    assert await refused(gateway, session_id="no/slash") == (
        "invalid_session_id",
        4429,
        "invalid_session_id",
    )
    assert (await refused(gateway, model="nobody"))[:2] == ("model_not_found", 4404)
    assert (await refused(gateway, codec="vinyl"))[:2] == ("bad_config", 4400)
    assert (await refused(gateway, resume="nothing"))[:2] == ("resume_rejected", 4410)
    await peer.close()


@pytest.mark.parametrize("bad", ["", "a" * 129, "a b", "ä", "a\n", "../etc"])
async def test_bad_session_ids(start_gateway: Any, bad: str) -> None:
    assert (await refused(await start_gateway(), session_id=bad))[:2] == ("invalid_session_id", 4429)


async def test_any_good_session_id_is_kept(start_gateway: Any) -> None:
    gateway = await start_gateway()
    for good in ("a", "A-Z_0.9", "x" * 128):
        peer = await Peer.connect(gateway, session_id=good)
        assert peer.created["session_id"] == good
        await peer.close()


async def test_slot_of_a_closed_session_is_free_at_once(start_gateway: Any) -> None:
    """31: "closed" was sent before the slot was free, and the next open was refused."""
    gateway = await start_gateway(max_sessions=1)
    for _ in range(20):
        peer = await Peer.connect(gateway, session_id="same")
        assert (await peer.close())[0] == 1000


async def test_slot_is_free_before_the_last_event(start_gateway: Any) -> None:
    adapter = ScriptedAdapter()
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway)
    (session,) = adapter.open_sessions.values()
    seen: list[tuple[int, int]] = []

    async def on_signals() -> None:
        raise DuplexError(ErrorCode.INTERNAL_ERROR, "the end")

    adapter.hooks["on_append"] = lambda *_: on_signals()
    await peer.say("x")
    assert (await peer.expect("error"))["code"] == "internal_error"
    seen.append((len(gateway.runtime.leases), len(adapter.open_sessions)))
    assert seen == [(0, 0)]
    assert session.id not in adapter.open_sessions


async def test_a_models_own_limit(start_gateway: Any) -> None:
    gateway = await start_gateway(
        ScriptedAdapter(ScriptedOptions(id="small", max_sessions=1)),
        ScriptedAdapter(ScriptedOptions(id="large")),
    )
    small = await Peer.connect(gateway, model="small")
    assert (await refused(gateway, model="small"))[:2] == ("server_full", 4429)
    large = await Peer.connect(gateway, model="large")
    await small.close()
    await large.close()


async def test_video_path_serves_the_first_model_with_video(start_gateway: Any) -> None:
    voice = AdapterInfo(id="voice", input_modalities=(Modality.AUDIO,), output_modalities=(Modality.AUDIO,))
    gateway = await start_gateway(ScriptedAdapter(info=voice), ScriptedAdapter(ScriptedOptions(id="eyes")))
    assert (await Peer.connect(gateway)).created["model"] == "voice"
    assert (await Peer.connect(gateway, "/v1/mage-vl/duplex")).created["model"] == "eyes"


async def test_a_model_that_writes_by_default_speaks_for_whom_asks(start_gateway: Any) -> None:
    """embedded-commentary: text, and speech if it is asked for."""
    both = (Modality.TEXT, Modality.AUDIO)
    info = AdapterInfo(
        id="writer",
        input_modalities=(Modality.TEXT,),
        output_modalities=both,
        default_output_modalities=(Modality.TEXT,),
    )
    adapter = ScriptedAdapter(info=info)
    gateway = await start_gateway(adapter)
    given = []
    for query in ({}, {"output_modalities": "text,audio"}):
        peer = await Peer.connect(gateway, session_id="s", **query)
        assert peer.created["capabilities"]["output_modalities"] == ["text", "audio"]
        await peer.send("response.create")
        await peer.expect("response.created")
        given.append(adapter.open_sessions["s"].turns[0].modalities)
        await peer.close()
    assert given == [(Modality.TEXT,), both]


async def test_all_options_can_be_in_the_query(start_gateway: Any) -> None:
    """39: some clients cannot send a first config message."""
    adapter = ScriptedAdapter()
    gateway = await start_gateway(adapter)
    await Peer.connect(gateway, voice="anna", instructions="be brief", codec="opus", max_run_ahead_ms="500")
    (session,) = adapter.open_sessions.values()
    assert session.settings.voice == "anna"
    assert session.settings.instructions == "be brief"
    assert session.settings.output_format.codec == "opus"
    assert session.settings.max_run_ahead_ms == 500


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"voice": "zz"}, "voice"),
        ({"output_modalities": "video"}, "output_modalities"),
        ({"gate_threshold": "2"}, "gate_threshold"),
    ],
)
async def test_a_setting_that_the_model_cannot_use_is_a_bad_config(
    start_gateway: Any, query: dict[str, str], param: str
) -> None:
    """The code was that of a refused `session.update`, and closed with 1008."""

    async def on_open(request: OpenSession) -> None:
        if request.settings.voice is not None:
            raise DuplexError(ErrorCode.INVALID_VALUE, "no such voice", param="voice")

    gateway = await start_gateway(ScriptedAdapter(on_open=on_open))
    peer = await Peer.connect(gateway, opened=False, **query)
    error = await peer.next()
    assert (error["code"], error["param"], error["fatal"]) == ("bad_config", param, True)
    assert await peer.until_closed() == (4400, "bad_config")
    assert len(gateway.runtime.leases) == 0
    with pytest.raises(BadConfig):
        await AsyncDuplexClient.connect(f"{gateway.ws_url}/v1/duplex", options=query)


async def test_adapter_refuses_by_name(start_gateway: Any) -> None:
    async def on_open(request: OpenSession) -> None:
        raise DuplexError(ErrorCode.ENGINE_DOWN, "the engine is restarting")

    gateway = await start_gateway(ScriptedAdapter(on_open=on_open), max_sessions=1)
    for _ in range(3):
        assert (await refused(gateway))[:2] == ("engine_down", 1013)
    assert len(gateway.runtime.leases) == 0


async def test_adapter_that_cannot_open_gives_no_details_away(start_gateway: Any) -> None:
    async def on_open(request: OpenSession) -> None:
        raise RuntimeError("password=hunter2")

    gateway = await start_gateway(ScriptedAdapter(on_open=on_open))
    peer = await Peer.connect(gateway, opened=False)
    error = await peer.next()
    assert error["code"] == "adapter_failed"
    assert "hunter2" not in str(error)
    assert (await peer.until_closed())[0] == 1011
    assert len(gateway.runtime.leases) == 0


async def test_open_that_hangs_is_bounded(start_gateway: Any) -> None:
    async def on_open(request: OpenSession) -> None:
        await asyncio.Event().wait()

    gateway = await start_gateway(ScriptedAdapter(on_open=on_open), open_timeout_s=0.05)
    assert (await refused(gateway))[:2] == ("adapter_stuck", 1011)
    assert len(gateway.runtime.leases) == 0


async def test_open_cancelled_half_way_frees_the_slot(start_gateway: Any) -> None:
    """30: each open that was cancelled half-way leaked a slot; after N, all were refused."""
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def on_open(request: OpenSession) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    adapter = ScriptedAdapter(on_open=on_open)
    gateway = await start_gateway(adapter, max_sessions=1)
    peer = await Peer.connect(gateway, opened=False)
    await entered.wait()
    peer.drop()
    await cancelled.wait()
    await until(lambda: len(gateway.runtime.leases) == 0)
    adapter.hooks.clear()
    assert (await (await Peer.connect(gateway)).close())[0] == 1000


async def test_session_that_opens_after_its_client_left_is_closed(start_gateway: Any) -> None:
    entered = asyncio.Event()

    async def on_open(request: OpenSession) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass  # an adapter that finishes what it has begun

    adapter = ScriptedAdapter(on_open=on_open)
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway, opened=False)
    await entered.wait()
    peer.drop()
    await until(lambda: adapter.opened == 1 and adapter.closed == 1)
    await until(lambda: len(gateway.runtime.leases) == 0)


async def test_messages_sent_before_the_session_is_open_are_kept(start_gateway: Any) -> None:
    gate = asyncio.Event()

    async def on_open(request: OpenSession) -> None:
        await gate.wait()

    adapter = ScriptedAdapter(on_open=on_open)
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway, opened=False)
    for number in range(100):
        await peer.say(f"line {number}")
    gate.set()
    await peer.expect("session.created")
    (session,) = adapter.open_sessions.values()
    await until(lambda: len(session.appended) == 100)
    assert [window.text for window in session.appended] == [f"line {n}" for n in range(100)]  # type: ignore[union-attr]
