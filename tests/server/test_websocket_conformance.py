"""The WebSocket protocol: Autobahn's cases, run by `kosoku` against an echo on the server that ships."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from importlib.util import find_spec

import pytest
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send

from duplex.adapters.scripted import ScriptedAdapter
from duplex.config import ServerConfig
from duplex.server.endpoint import socket_of
from duplex.server.run import running_gateway

AT_ONCE = 4
SCRIPT = """
import asyncio, json, os, sys
import kosoku
try:
    results = asyncio.run(kosoku.run_fuzzingclient(sys.argv[1], concurrency=int(sys.argv[2])))
except kosoku.FailureError as failure:
    results = failure.results
print(json.dumps([(r.case_id, r.behavior.value, r.behavior_close.value) for r in results]), flush=True)
os._exit(0)  # kosoku now and then aborts when Python takes it down
"""
"""In a process of its own: kosoku puts a `pkg_resources` into the path that pytest would stumble over."""
FAMILIES = {"1", "2", "3", "4", "5", "6", "7", "9", "10", "12", "13"}
COMPRESSION = {"12", "13"}
"""No extension is ever negotiated: what a session carries is compressed already, or gains little."""
OPEN_OUTCOME = {"7.1.6", "7.13.1", "7.13.2"}
"""The protocol leaves the outcome of these to the server."""
ALSO_RIGHT = {
    # a message, then a frame that is none: the connection may fail before the message is answered
    *("3.2", "3.3", "3.4", "4.1.3", "4.1.4", "4.1.5", "4.2.3", "4.2.4", "4.2.5", "5.15"),
    # bad UTF-8 may be found at the end of the message
    *("6.4.1", "6.4.2", "6.4.3", "6.4.4"),
}
"""Cases in which two ways are right, and which one is taken may depend on how the bytes arrive."""


class Echo:
    """What the gateway's sessions use: ASGI inwards, the connection's own `write` outwards."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = socket_of(scope)
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            text = message.get("text")
            socket.write(text if text is not None else message["bytes"])


async def run_cases(url: str) -> dict[str, tuple[str, str]]:
    """The verdicts of each case: on what was said, and on the close."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SCRIPT, url, str(AT_ONCE)), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return {case: (said, closed) for case, said, closed in json.loads(output)}


@pytest.mark.skipif(find_spec("kosoku") is None, reason="needs kosoku: the dev extra")
@pytest.mark.timeout(300)
async def test_every_case_of_the_protocol_passes() -> None:
    config = ServerConfig(port=0, drain_grace_s=0.0)
    routes = [WebSocketRoute("/echo", Echo())]
    async with running_gateway(config, [ScriptedAdapter()], extra_routes=routes) as gateway:
        verdicts = await run_cases(f"{gateway.ws_url}/echo")
    strange = {}
    for case, verdict in verdicts.items():
        right = {("OK", "OK")}
        if case.split(".")[0] in COMPRESSION:
            right = {("UNIMPLEMENTED", "OK")}
        elif case in OPEN_OUTCOME:
            right = {("INFORMATIONAL", "INFORMATIONAL")}
        elif case in ALSO_RIGHT:
            right.add(("NON-STRICT", "OK"))
        if verdict not in right:
            strange[case] = verdict
    assert strange == {}
    assert {case.split(".")[0] for case in verdicts} == FAMILIES
    assert Counter(verdict for verdict, _ in verdicts.values())["OK"] > 250
