"""What operators see of an engine: readiness with a reason, figures in the metrics."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
from engine_bench import job, running, spec, until, whole

from duplex.adapters.engine.client import Engine
from duplex.adapters.health import Figure
from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


class OnEngine(ScriptedAdapter):
    """An adapter that tells of its engine what the gateway asks for."""

    def __init__(self, engine: Engine, id: str = "voice") -> None:
        self._engine = engine
        super().__init__(ScriptedOptions(id=id))

    @property
    def healthy(self) -> bool:
        return self._engine.healthy

    @healthy.setter
    def healthy(self, value: bool) -> None: ...

    @property
    def fault(self) -> str | None:
        return self._engine.fault

    def figures(self) -> Iterable[Figure]:
        return self._engine.figures()


async def get(gateway: Any, path: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(gateway.url + path)


def kill(engine: Engine, replica: int) -> None:
    ready = engine.replicas[replica].ready
    assert ready is not None
    os.kill(ready.pid, signal.SIGKILL)


async def test_ready_says_what_became_of_the_engine(start_gateway: Any) -> None:
    async with running(spec(), spec(), backoff_s=600) as engine:
        gateway = await start_gateway(OnEngine(engine), ScriptedAdapter(ScriptedOptions(id="other")))
        assert (await get(gateway, "/ready")).json() == {"status": "ready", "active_sessions": 0}
        kill(engine, 0)
        await until(lambda: engine.replicas[0].ready is None)
        assert (await get(gateway, "/ready")).status_code == 200, "the other worker goes on"
        kill(engine, 1)
        await until(lambda: not engine.healthy)
        ready = await get(gateway, "/ready")
        assert ready.status_code == 503
        assert ready.json() == {
            "status": "engine_down",
            "active_sessions": 0,
            "reason": "voice: fake worker 0 was killed by SIGKILL; it is started again; "
            "fake worker 1 was killed by SIGKILL; it is started again",
        }
        assert (await get(gateway, "/health")).status_code == 200


async def test_metrics_show_every_replica_of_every_model(start_gateway: Any) -> None:
    async with running(spec(), spec()) as one, running(spec()) as two:
        gateway = await start_gateway(OnEngine(one, "one"), OnEngine(two, "two"))
        async with one.request(job(1, tail=20)) as request:
            await whole(request)
        await until(lambda: one.replicas[0].totals.frames == 20)
        await until(lambda: all(replica.stats for replica in (*one.replicas, *two.replicas)))
        text = (await get(gateway, "/metrics")).text
    assert 'duplex_engine_frames_total{model="one",replica="0"} 20.0' in text
    assert 'duplex_engine_frames_total{model="one",replica="1"} 0.0' in text
    assert 'duplex_engine_up{model="two",replica="0"} 1.0' in text
    assert 'duplex_engine_memory_bytes{model="two",replica="0"} 12345.0' in text
    assert text.count("# TYPE duplex_engine_frames_total counter") == 1


async def test_model_that_cannot_tell_its_figures_leaves_the_others(start_gateway: Any) -> None:
    class Mute(ScriptedAdapter):
        def figures(self) -> Iterable[Figure]:
            raise RuntimeError("no figures")

    gateway = await start_gateway(Mute())
    answer = await get(gateway, "/metrics")
    assert answer.status_code == 200
    assert "duplex_sessions 0.0" in answer.text


def test_operations_page_lists_the_engines_metrics() -> None:
    engine = Engine("fake", [spec()])
    exported = {
        f"duplex_{figure.name}{'_total' if figure.kind == 'counter' else ''}": figure.kind
        for figure in engine.figures()
    }
    page = OPERATIONS.read_text()
    table = dict(re.findall(r"^\| `(duplex_engine_\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert table == exported
