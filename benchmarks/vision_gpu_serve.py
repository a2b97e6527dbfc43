"""Mage-VL's decoder and whole sessions on one device: vLLM alone, behind the adapter, and the peers' way.

    python benchmarks/vision_gpu_serve.py serve SPEC.json > RESULTS.jsonl

The adapter is the product's own with its sight worker and its vLLM core; only its weights are random, so that
its words are noise. Sessions are driven as the gateway drives them, without a socket.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import torch
from tts_gpu_common import as_part, spread, tell, time_left
from vision_gpu_model import eye_of, folder_of

from duplex.adapters.engine.language import (
    LanguageEngine,
    MediaPrompt,
    Prompt,
    Sampling,
    TokenDelta,
)
from duplex.adapters.engine.settings import EngineSettings
from duplex.adapters.engine.vllm_engine import VllmEngine
from duplex.adapters.engine.vllm_settings import VllmSettings
from duplex.adapters.mage_vl.adapter import MageVl
from duplex.adapters.mage_vl.building import Windows
from duplex.adapters.mage_vl.config import read_config
from duplex.adapters.mage_vl.eyes import ModelSight
from duplex.adapters.mage_vl.image import DevicePixels
from duplex.adapters.mage_vl.options import MageOptions
from duplex.adapters.mage_vl.ports import Glance, Picture
from duplex.adapters.mage_vl.prompt import ChatWriter
from duplex.adapters.mage_vl.session import MageSession
from duplex.adapters.mage_vl.sight.client import Sight, SightOptions
from duplex.adapters.mage_vl.vllm_plugin import engine_arguments
from duplex.adapters.mage_vl.windows.backends import WindowOptions, open_windows
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.cli.clip import cut, probe
from duplex.codecs.video_split import ClipWindow
from duplex.core.types import (
    GateScore,
    InputLag,
    InputRejected,
    Modality,
    OpenSession,
    SessionSettings,
    Trigger,
    Turn,
    VideoWindow,
)

QUESTION: Final = "What is happening now, and where is the ball?"
PEER_WINDOWS: Final = 4
"""Windows over which a peer runs the gate anew each time (vllm-omni's duplex server)."""
PEER_ANSWER_EVERY: Final = 4
"""Segments of a peer's session from answer to answer, as often as ours are asked."""
GPU_SHARE: Final = 0.7


class Aloud:
    """An engine whose every token is a letter: most random ids are no text, and a session tells text."""

    def __init__(self, engine: VllmEngine) -> None:
        self.inner = engine
        self.session, self.figures = engine.session, engine.figures
        self.start, self.stop = engine.start, engine.stop

    @property
    def info(self) -> Any:
        return self.inner.info

    @property
    def healthy(self) -> bool:
        return self.inner.healthy

    @property
    def fault(self) -> str | None:
        return self.inner.fault

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[TokenDelta, None]:
        told = Sampling(max_tokens=sampling.max_tokens, ignore_end=True)
        async with aclosing(self.inner.generate(prompt, told)) as deltas:
            async for delta in deltas:
                yield TokenDelta(
                    ids=delta.ids,
                    text="x" * len(delta.ids),
                    finish=delta.finish,
                    prompt_tokens=delta.prompt_tokens,
                )


@dataclass(frozen=True)
class Bench:
    """What is measured."""

    orders: dict[str, Any]
    folder: Path
    engine: Aloud
    sight: Sight
    writer: ChatWriter
    left: Callable[[], float]

    @asynccontextmanager
    async def adapter(self, backend: str) -> AsyncIterator[MageVl]:
        """One more adapter on the same eye and decoder, with processes of its own that prepare windows."""
        options = MageOptions(
            model=str(self.folder),
            backend=backend,  # type: ignore[arg-type]
            max_new_tokens=self.orders["max_new_tokens"],
        )
        engine: LanguageEngine = self.engine
        with ThreadPoolExecutor(1) as pool:
            windows = Windows(options, pool)
            adapter = MageVl(
                options,
                engine=engine,
                sight=ModelSight(self.sight, gate=True),
                backend=windows,
                writer=self.writer,
            )
            await windows.start()
            adapter._up = True  # its parts are
            try:
                yield adapter
            finally:
                await windows.stop()


@asynccontextmanager
async def started(orders: dict[str, Any], left: Callable[[], float]) -> AsyncIterator[Bench]:
    tiny = orders["size"] == "tiny"
    with tempfile.TemporaryDirectory() as place:
        folder = folder_of(orders, Path(place))
        sight = Sight(
            SightOptions(options={"model": str(folder), "device": orders["device"], "random": 0}),
            EngineSettings(start_timeout_s=200.0),
        )
        arguments = {**engine_arguments(folder), "load_format": "dummy", "max_model_len": 16384}
        if tiny:
            arguments |= {"dtype": "float32", "kv_cache_memory_bytes": 64 << 20, "enforce_eager": True}
        else:
            arguments |= {
                "gpu_memory_utilization": GPU_SHARE,
                "max_num_seqs": 64,
                "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 24, 32, 48, 64]},
            }
        engine = Aloud(VllmEngine(VllmSettings(model=str(folder), engine=arguments)))
        began = time.perf_counter()
        await sight.start()
        eye_s = time.perf_counter() - began
        if orders["decodes"]:
            await engine.start()
        tell("start", eye_s=round(eye_s, 1), decoder_s=round(time.perf_counter() - began - eye_s, 1))
        try:
            yield Bench(orders, folder, engine, sight, ChatWriter.load(folder, read_config(folder)), left)
        finally:
            await engine.stop()
            await sight.stop()


# --- the decoder --------------------------------------------------------------------------------------


def pictures(bench: Bench, images: int, tokens: int) -> tuple[Picture, ...]:
    """Seen images with new keys, so that no cache knows them."""
    dtype = torch.bfloat16 if bench.orders["device"] == "cuda" else torch.float32
    seen = embeddings(images, tokens, bench.engine.info.hidden_size, dtype)
    name = random.getrandbits(64)
    return tuple(
        Picture(key=f"{name:x}-{at}", time_s=at / 2, tokens=tokens, data=seen[at], size=seen[at].nbytes)
        for at in range(images)
    )


@cache
def embeddings(images: int, tokens: int, hidden: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Made once: fresh memory would cost its first reader."""
    return [torch.randn(tokens, hidden, dtype=dtype) * 0.02 for _ in range(images)]


@dataclass
class Pace:
    """One answer. ms; `first` from the request to the first token."""

    first: float = 0.0
    each: float = 0.0

    @classmethod
    async def of(cls, deltas: AsyncIterator[Any], tokens: Callable[[Any], int]) -> Pace:
        began = time.perf_counter()
        first = last = 0.0
        count = 0
        async for delta in deltas:
            last = time.perf_counter()
            first = first or last
            count += tokens(delta)
        each = (last - first) / max(1, count - 1)
        return cls((first - began) * 1000, each * 1000)


class Stamped:
    """vLLM's engine in an adapter's way: when it was asked, and when it said its first word. Rendering is
    vLLM's own work, wherever it is called from."""

    def __init__(self, life: Any) -> None:
        self._engine, self._render = life.engine, life.render
        self.asked = self.came = self.rendering = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def render(self, prompt: Prompt) -> Any:
        began = time.perf_counter()
        rendered = await self._render(prompt)
        self.rendering = time.perf_counter() - began
        return rendered

    async def generate(self, *args: Any) -> AsyncGenerator[Any, None]:
        self.asked, self.came = time.perf_counter(), 0.0
        async with aclosing(self._engine.generate(*args)) as outputs:
            async for output in outputs:
                self.came = self.came or time.perf_counter()
                yield output


@contextmanager
def stamped(bench: Bench) -> Iterator[Stamped]:
    """Between the adapter and vLLM."""
    life = bench.engine.inner.up()
    stamps = Stamped(life)
    engine, render = life.engine, life.render
    life.engine, life.render = stamps, stamps.render
    try:
        yield stamps
    finally:
        life.engine, life.render = engine, render


async def bare(bench: Bench, prompt: MediaPrompt, tokens: int, id: str) -> Pace:
    """vLLM with nothing around it but its own renderer."""
    life = bench.engine.inner.up()

    async def outputs() -> AsyncGenerator[Any, None]:
        parameters = life.parameters(Sampling(max_tokens=tokens, ignore_end=True), tokens)
        async for output in life.engine.generate(await life.render(prompt), parameters, id):
            yield output

    return await Pace.of(outputs(), lambda output: len(output.outputs[0].token_ids))


def turn(index: int, trigger: Trigger = Trigger.CREATE, question: str | None = QUESTION) -> Turn:
    return Turn(
        response_id=f"r{index}",
        index=index,
        epoch=index,
        trigger=trigger,
        settings=SessionSettings(),
        modalities=(Modality.TEXT,),
        question=question,
    )


async def decoder(bench: Bench) -> None:
    async with bench.adapter("codec") as adapter:
        await decoding(bench, adapter)


async def decoding(bench: Bench, adapter: MageVl) -> None:
    orders = bench.orders
    tokens = orders["answer_tokens"]
    for name, images, each in (("canvases", 8, 144), ("frames", 8, 510)):
        if orders["size"] == "tiny":
            images, each = 2, 6
        paces: dict[str, list[Pace]] = {"bare": [], "engine": [], "session": []}
        added: list[float] = []
        lengths = 0
        ways = list(paces)
        # one after the other, each as often the first: all see the same machine
        for at in range(orders["answers"] + 1):
            for way in ways[at % len(ways) :] + ways[: at % len(ways)]:
                seen = paces[way]
                shown = pictures(bench, images, each)
                draft = bench.writer.draft(shown, QUESTION)
                lengths = draft.tokens
                assert isinstance(draft.prompt, MediaPrompt)
                if way == "bare":
                    pace = await bare(bench, draft.prompt, tokens, f"bare-{name}-{at}")
                elif way == "engine":
                    answer = bench.engine.inner.generate(
                        draft.prompt, Sampling(max_tokens=tokens, ignore_end=True)
                    )
                    pace = await Pace.of(answer, lambda delta: len(delta.ids))
                else:
                    with stamped(bench) as stamps:
                        pace = await through_session(adapter, shown, tokens)
                    inside = stamps.rendering + stamps.came - stamps.asked
                    if at:
                        added.append(pace.first - inside * 1000)
                if at:  # the first is warm-up
                    seen.append(pace)
        tell(
            "answer",
            shown=name,
            prompt_tokens=lengths,
            added_ms=spread(added),
            **{
                f"{way}_{what}_ms": round(median(getattr(pace, what) for pace in seen), 3)
                for way, seen in paces.items()
                for what in ("first", "each")
            },
        )
    await aborts(bench)
    await batches(bench)


async def through_session(adapter: MageVl, shown: Sequence[Picture], tokens: int) -> Pace:
    """A session that has seen these, and is asked."""
    settings = SessionSettings(options={"max_new_tokens": tokens})
    session = await adapter.open(OpenSession(session_id="s", settings=settings))
    try:
        glance = Glance(pictures=tuple(shown), score=None, segment_id="", pts_ms=0.0, duration_ms=1.0)
        session.history.add(glance)
        asked = msgspec.structs.replace(turn(1), settings=settings)
        return await Pace.of(session.respond(asked), lambda delta: len(getattr(delta, "text", "")))
    finally:
        await session.close()


async def aborts(bench: Bench) -> None:
    """From the wish to stop until nothing of the request is left in the gateway's half of vLLM."""
    found: dict[str, list[float]] = {"bare": [], "engine": []}
    images, each = (2, 6) if bench.orders["size"] == "tiny" else (8, 144)
    for at in range(bench.orders["answers"]):
        for way, seen in found.items():
            draft = bench.writer.draft(pictures(bench, images, each), QUESTION)
            assert isinstance(draft.prompt, MediaPrompt)
            sampling = Sampling(max_tokens=400, ignore_end=True)
            if way == "engine":
                answer: AsyncGenerator[Any, None] = bench.engine.inner.generate(draft.prompt, sampling)
                await anext(answer)
                began = time.perf_counter()
                await answer.aclose()
            else:
                life = bench.engine.inner.up()
                id = f"abort-{at}"
                rendered = await life.render(draft.prompt)
                answer = life.engine.generate(rendered, life.parameters(sampling, 400), id)
                await anext(answer)
                began = time.perf_counter()
                await life.engine.abort(id)
            seen.append((time.perf_counter() - began) * 1000)
            if way == "bare":
                with suppress(Exception):
                    await answer.aclose()
    tell("abort", **{f"{way}_ms": spread(seen) for way, seen in found.items()})


async def batches(bench: Bench) -> None:
    tokens = bench.orders["batch_tokens"]
    images, each = (2, 6) if bench.orders["size"] == "tiny" else (8, 144)
    for count in bench.orders["batches"]:
        prompts = [bench.writer.draft(pictures(bench, images, each), QUESTION).prompt for _ in range(count)]
        sampling = Sampling(max_tokens=tokens, ignore_end=True)
        began = time.perf_counter()
        paces = await asyncio.gather(
            *(
                Pace.of(bench.engine.inner.generate(prompt, sampling), lambda delta: len(delta.ids))
                for prompt in prompts
            )
        )
        seconds = time.perf_counter() - began
        tell(
            "batch",
            answers=count,
            tokens_a_second=round(count * tokens / seconds),
            first_ms=spread([pace.first for pace in paces]),
            each_ms=round(median(pace.each for pace in paces), 3),
        )


# --- sessions -----------------------------------------------------------------------------------------


@dataclass
class Heard:
    """What all sessions of a load noticed. ms."""

    gate: list[float] = field(default_factory=list)
    lag: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    windows: int = 0
    scores: int = 0
    coalesced: int = 0
    answers: int = 0
    tokens: int = 0
    faults: list[str] = field(default_factory=list)


class Viewer:
    """One session that shows a clip in real time and asks now and then."""

    def __init__(self, session: MageSession, windows: Sequence[ClipWindow], heard: Heard) -> None:
        self.session, self.windows, self.heard = session, windows, heard
        self._sent: dict[str, float] = {}
        self._index = 0

    async def run(self, delay_s: float, seconds: float, question_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(self._listen())
            showing = group.create_task(self._show(delay_s, seconds))
            asking = None
            if question_s:
                asking = group.create_task(self._ask(delay_s + question_s * random.random(), question_s))
            await showing
            await asyncio.sleep(min(2.0, seconds / 4))
            if asking is not None:
                asking.cancel()
            listening.cancel()
        await self.session.close()

    async def _show(self, delay_s: float, seconds: float) -> None:
        """Each window when a camera has it. The clip goes round; a stream's clock does not."""
        began = time.perf_counter() + delay_s
        at = 0.0
        number = 0
        while at < seconds:
            window = self.windows[number % len(self.windows)]
            length = window.duration_ms / 1000
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            name = str(number)
            self._sent[name] = time.perf_counter()
            self.heard.windows += 1
            await self.session.append(
                VideoWindow(
                    kind=window.kind,
                    data=window.data,
                    segment_id=name,
                    pts_ms=at * 1000,
                    duration_ms=window.duration_ms,
                )
            )
            at += length
            number += 1

    async def _listen(self) -> None:
        async for signal in self.session.signals():
            if isinstance(signal, GateScore):
                self.heard.scores += 1
                sent = self._sent.get(signal.segment_id)
                if sent is not None:
                    self.heard.gate.append((time.perf_counter() - sent) * 1000)
            elif isinstance(signal, InputLag):
                self.heard.lag.append(signal.lag_ms)
                self.heard.coalesced += signal.coalesced
            elif isinstance(signal, InputRejected):
                self.heard.faults.append(signal.message)

    async def _ask(self, delay_s: float, every_s: float) -> None:
        await asyncio.sleep(delay_s)
        while True:
            began = time.perf_counter()
            self._index += 1
            asked = turn(self._index, Trigger.PROACTIVE, QUESTION)
            first = 0.0
            try:
                async with aclosing(self.session.respond(asked)) as deltas:
                    async for delta in deltas:
                        first = first or time.perf_counter()
                        self.heard.tokens += len(getattr(delta, "text", ""))
            except Exception as error:
                self.heard.faults.append(str(error))
            if first:
                self.heard.first.append((first - began) * 1000)
                self.heard.answers += 1
            await asyncio.sleep(max(0.0, began + every_s - time.perf_counter()))


async def load(bench: Bench, windows: dict[int, list[ClipWindow]], wanted: dict[str, Any]) -> None:
    """So many sessions at once."""
    async with bench.adapter(wanted["backend"]) as adapter:
        await loaded(bench, adapter, windows, wanted)


async def loaded(
    bench: Bench, adapter: MageVl, windows: dict[int, list[ClipWindow]], wanted: dict[str, Any]
) -> None:
    orders = bench.orders
    shown = windows[wanted["window_ms"]]
    heard = Heard()
    count, step_s = wanted["sessions"], wanted["window_ms"] / 1000
    counts = bench.sight.counts
    batches, looked, patches, took_ms = counts.batches, counts.windows, counts.patches, counts.took_ms
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            request = OpenSession(session_id=str(number), settings=SessionSettings())
            viewer = Viewer(await adapter.open(request), shown, heard)
            group.create_task(viewer.run(step_s * number / count, wanted["seconds"], orders["question_s"]))
    seconds = time.perf_counter() - began
    looked, batches = counts.windows - looked, counts.batches - batches
    tell(
        "sessions",
        **wanted,
        windows=heard.windows,
        scores=heard.scores,
        coalesced=heard.coalesced,
        gate_ms=spread(heard.gate, 1),
        first_ms=spread(heard.first, 1),
        answers=heard.answers,
        tokens_a_second=round(heard.tokens / seconds),
        faults=sorted(set(heard.faults))[:3],
        tokens_a_window=round((counts.patches - patches) / 4 / max(1, looked)),
        windows_a_batch=round(looked / max(1, batches), 2),
        batch_ms=round((counts.took_ms - took_ms) / max(1, batches), 2),
    )


# --- the peers' way -----------------------------------------------------------------------------------


class Peer:
    """One lock for all: the gate over the last windows anew, and the answer under the same lock. ms."""

    def __init__(self, bench: Bench, segments: Sequence[VisualInput]) -> None:
        self.bench, self.segments = bench, segments
        self.device = bench.orders["device"]
        self.vision, self.gate, config = eye_of(bench.folder, self.device)
        self.pixels = DevicePixels(config.image_config, self.vision.device, self.vision.dtype)
        self.lock = asyncio.Lock()
        self.late: list[float] = []
        self.first: list[float] = []

    def look(self) -> torch.Tensor:
        """Visual tokens (n, P, hidden) of the last windows, on the host; the gate has judged them."""
        seen = [self._tokens(segment) for segment in self.segments]
        whole = torch.cat(seen)
        self.gate.step([(whole, self.gate.new_state())], last_only=True)
        return whole.cpu()

    def _tokens(self, segment: VisualInput) -> torch.Tensor:
        raw = torch.from_numpy(segment.images).to(self.device)
        places = self.pixels.positions(torch.from_numpy(segment.positions).to(self.device))
        count = len(segment.images)
        found = self.vision(self.pixels(raw), [(1, *segment.grid)] * count, places)
        return found.view(count, -1, found.shape[-1])

    async def session(self, began: float, at: float, until: float) -> None:
        """A window a second, and an answer now and then."""
        looks = 0
        while at < until:
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            async with self.lock:
                seen = await asyncio.to_thread(self.look)
                self.late.append((time.perf_counter() - began - at) * 1000)
                looks += 1
                if looks % PEER_ANSWER_EVERY == 0:
                    await self._answer(seen)
            at += 1.0

    async def _answer(self, seen: torch.Tensor) -> None:
        name = random.getrandbits(64)
        shown = [
            Picture(key=f"{name:x}-{at}", time_s=float(at), tokens=len(each), data=each, size=each.nbytes)
            for at, each in enumerate(seen)
        ]
        sampling = Sampling(max_tokens=self.bench.orders["max_new_tokens"], ignore_end=True)
        prompt = self.bench.writer.draft(shown, QUESTION).prompt
        answer = self.bench.engine.inner.generate(prompt, sampling)
        self.first.append((await Pace.of(answer, lambda delta: len(delta.ids))).first)


def first_segments(windows: Sequence[ClipWindow]) -> list[VisualInput]:
    stream = open_windows(WindowOptions(backend="codec"))
    segments: list[VisualInput] = []
    for window in windows:
        media = VideoWindow(
            kind=window.kind, data=window.data, pts_ms=window.pts_ms, duration_ms=window.duration_ms
        )
        if (seen := stream.see(media)) is not None:
            segments.append(seen)
        if len(segments) == PEER_WINDOWS:
            break
    stream.close()
    return segments


async def peers(bench: Bench, windows: dict[int, list[ClipWindow]]) -> None:
    orders = bench.orders
    segments = first_segments(windows[1000])
    for count in orders["peer_loads"]:
        peer = Peer(bench, segments)
        peer.look()
        peer.look()
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(peer.session(began, number / count, orders["peer_seconds"]))
        tell(
            "peer",
            sessions=count,
            seconds=orders["peer_seconds"],
            windows=len(peer.late),
            gate_ms=spread(peer.late, 1),
            first_ms=spread(peer.first, 1),
            took_s=round(time.perf_counter() - began, 1),
        )


async def main() -> None:
    orders = as_part()
    left = time_left(orders["budget_s"])
    clip = probe(Path(orders["clip"]))
    lengths = {load_["window_ms"] for load_ in orders["loads"]} | {1000}
    windows = {length: list(cut(clip, window_ms=length)) for length in lengths}
    sections: dict[str, Callable[[], Awaitable[None]]] = {}
    async with started(orders, left) as bench:

        async def loads() -> None:
            for wanted in orders["loads"]:
                if left() < wanted["seconds"]:
                    tell("left_out", **wanted)
                    continue
                await load(bench, windows, wanted)

        sections = {
            "decoder": lambda: decoder(bench),
            "sessions": loads,
            "peers": lambda: peers(bench, windows),
        }
        for name, section in sections.items():
            if name in orders["sections"] and left() > 0:
                await section()


if __name__ == "__main__":
    asyncio.run(main())
