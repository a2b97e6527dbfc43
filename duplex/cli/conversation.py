"""One session of a command with the gateway: what it sends and what comes back, noted in a timeline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from duplex.cli.errors import CommandError
from duplex.cli.gateway import in_words
from duplex.cli.sound import chunks_of
from duplex.cli.speaker import Speaker
from duplex.cli.timeline import Timeline, level_dbfs
from duplex.clients import (
    AsyncDuplexClient,
    AudioDelta,
    ClientEvent,
    ErrorMessage,
    GateScore,
    InputLag,
    InputTranscript,
    ResponseCancelled,
    ResponseCreated,
    ResponseDone,
    SpeechStopped,
    TextDelta,
)
from duplex.clients.protocol import Frame
from duplex.codecs.video_split import ClipWindow
from duplex.dialects.native_frames import unpack

MICROPHONE_RATE: Final = 16000
CHUNK_MS: Final = 20


@dataclass(slots=True, kw_only=True)
class Answer:
    """One response, as far as it has come. Times in ms of the timeline, None until they are known."""

    index: int
    created_ms: float
    text: str = ""
    audio_ms: float = 0.0
    first_audio_ms: float | None = None
    last_audio_ms: float | None = None
    """When its last audio arrived, be it dropped by the client."""
    ended_ms: float | None = None
    """When its terminal message arrived."""
    status: str = "running"
    """`running`, `done`, `cancelled` or `failed`."""
    reason: str | None = None
    heard_ms: float | None = None
    heard_text: str | None = None
    stale_bytes: int = 0
    """Audio that came after the response had ended. There must be none."""
    question: bool = False
    """It answers a written question."""

    @property
    def running(self) -> bool:
        return self.status == "running"


class _Client(AsyncDuplexClient):
    """The client, with a look at each frame as it arrives, before anything is dropped."""

    def __init__(self, url: str, on_frame: Callable[[Frame], None], **options: Any) -> None:
        super().__init__(url, **options)
        receive = self.protocol.receive

        def noted(frame: Frame) -> list[ClientEvent]:
            on_frame(frame)
            return receive(frame)

        self.protocol.receive = noted  # type: ignore[method-assign]


@dataclass(slots=True)
class Conversation:
    """A session that is open. `on_event` hears of every event after it was noted."""

    client: AsyncDuplexClient
    timeline: Timeline
    speaker: Speaker | None
    on_event: Callable[[ClientEvent], None] = lambda event: None
    answers: dict[int, Answer] = field(default_factory=dict)
    transcripts: list[tuple[float, str]] = field(default_factory=list)
    """Final transcripts of what the user said, with the time they came."""
    speech_stopped_ms: list[float] = field(default_factory=list)
    """When the gateway said that the user's speech had ended."""
    scored: int = 0
    """Video windows that the gateway has told a gate score of."""
    followed: int = 0
    """Video windows of which it told how far it is behind, with those that were merged."""
    errors: list[ErrorMessage] = field(default_factory=list)
    over: Exception | None = None
    """Why the session ended."""
    said: list[NDArray[np.int16]] = field(default_factory=list)
    """Microphone audio that was sent, if the timeline keeps rows."""
    microphone_ms: float | None = None
    """When the microphone was opened: the timeline's time of the first sample that was sent."""
    _questions: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    # --- what is sent -------------------------------------------------------------------------------

    async def speak(self, text: str) -> None:
        """Have the agent say this."""
        self.timeline.record("text.sent", text=text)
        await self.client.speak(text)

    async def ask(self, question: str) -> None:
        """Write to the agent; the question waits for the next video window, or for `client.commit`."""
        self.timeline.record("text.sent", text=question)
        self._questions += 1
        await self.client.append_text(question)

    async def show(self, window: ClipWindow) -> None:
        """A piece of a clip."""
        self.timeline.record(
            "video.sent", pts_ms=window.pts_ms, duration_ms=window.duration_ms, bytes=len(window.data)
        )
        await self.client.append_video(
            window.data,
            kind=window.kind,
            pts_ms=round(window.pts_ms, 3),
            duration_ms=round(window.duration_ms, 3),
        )

    async def hear(self, chunk: NDArray[np.int16]) -> None:
        """Microphone audio: samples at `MICROPHONE_RATE`."""
        ms = len(chunk) / MICROPHONE_RATE * 1000
        if self.microphone_ms is None:
            self.microphone_ms = self.timeline.now_ms - ms
        at = self.timeline.now_ms - ms
        self.timeline.record("audio.sent", t_ms=at, ms=ms, level_dbfs=level_dbfs(chunk))
        if self.timeline.keep:
            self.said.append(chunk)
        await self.client.append_audio(chunk, MICROPHONE_RATE)

    async def stream(self, samples: NDArray[np.int16], *, until: Callable[[], bool] = lambda: False) -> None:
        """A recording as a microphone would give it: `CHUNK_MS` at a time, each when it has been recorded."""
        due = time.monotonic()
        for chunk in chunks_of(samples, MICROPHONE_RATE * CHUNK_MS // 1000):
            due += len(chunk) / MICROPHONE_RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self.hear(chunk)
            if until():
                return

    # --- what comes back ----------------------------------------------------------------------------

    @property
    def current(self) -> Answer | None:
        """The newest answer."""
        return self.answers[max(self.answers)] if self.answers else None

    @property
    def watched(self) -> int:
        """Video windows that the model is done with, as far as it tells."""
        return max(self.scored, self.followed)

    @property
    def quiet(self) -> bool:
        """Nothing is being answered and nothing sounds."""
        silent = self.speaker is None or self.speaker.unplayed_ms() == 0
        return silent and not any(answer.running for answer in self.answers.values())

    async def until(self, holds: Callable[[], object], what: str, timeout_s: float | None) -> None:
        """Wait for something to become true; it is looked at after each event and each step of playing.

        Raises:
            CommandError: it did not, in words that name `what`, or the session ended first.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    if self.over is not None:
                        raise CommandError(f"the session ended: {self.over}")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise CommandError(f"{what} within {timeout_s:g} s") from None

    def changed(self) -> None:
        """Let `until` look again."""
        self._changed.set()

    async def take_events(self) -> None:
        """Note events until the session is over."""
        try:
            async for event in self.client:
                self._note(event)
                self.on_event(event)
                self._changed.set()
        except Exception as error:
            self.over = error
        else:
            self.over = CommandError("it was closed")
        self._changed.set()

    def frame_arrived(self, frame: Frame) -> None:
        """Look at the wire, in its own order: when things came, and whether they should not have come."""
        now = self.timeline.now_ms
        if isinstance(frame, bytes):
            audio = unpack(frame)
            if (answer := self.answers.get(audio.response_index)) is not None:
                self._audio_arrived(answer, len(audio.payload), now)
            return
        message = msgspec.json.decode(frame)
        index = message.get("response_index")
        match message["type"]:
            case "response.created":
                self.answers[index] = Answer(index=index, created_ms=now)
            case "response.done" | "response.cancelled" if index in self.answers:
                answer = self.answers[index]
                answer.ended_ms = answer.ended_ms or now
            case _:
                pass

    def _audio_arrived(self, answer: Answer, size: int, now: float) -> None:
        answer.first_audio_ms = answer.first_audio_ms or now
        answer.last_audio_ms = now
        if answer.ended_ms is not None:
            answer.stale_bytes += size
            self.timeline.record("audio.stale", response_index=answer.index, bytes=size)

    def _note(self, event: ClientEvent) -> None:
        now = self.timeline.now_ms
        if not isinstance(event, (AudioDelta, TextDelta)):
            self.timeline.record("event", **_fields(event))
        match event:
            case ResponseCreated():
                self.answers[event.response_index].question = self._questions > 0
                self._questions = 0
            case TextDelta():
                self.answers[event.response_index].text += event.text
            case AudioDelta():
                answer = self.answers[event.response_index]
                answer.audio_ms += len(event.samples) / event.sample_rate * 1000
            case ResponseDone():
                self._end(self.answers[event.response_index], "done")
            case ResponseCancelled() if event.response_index in self.answers:
                self._cancelled(self.answers[event.response_index], event)
            case InputTranscript() if event.final and event.text:
                self.transcripts.append((now, event.text))
            case SpeechStopped():
                self.speech_stopped_ms.append(now)
            case GateScore():
                self.scored += 1
            case InputLag():
                self.followed += 1 + event.coalesced
            case ErrorMessage():
                self.errors.append(event)
            case _:
                pass

    def _cancelled(self, answer: Answer, event: ResponseCancelled) -> None:
        if not answer.running:
            return  # the answer to a cancel that came too late
        answer.reason = _known(event.reason)
        answer.heard_ms = _known(event.heard_ms)
        answer.heard_text = _known(event.heard_text)
        self._end(answer, "failed" if answer.reason == "failed" else "cancelled")

    def _end(self, answer: Answer, status: str) -> None:
        answer.status = status
        if answer.first_audio_ms is not None:
            text = answer.text if answer.heard_text is None else answer.heard_text
            self.timeline.record(
                "answer", t_ms=answer.first_audio_ms, response_index=answer.index, text=text, status=status
            )


def _known(value: Any) -> Any:
    return None if value is msgspec.UNSET else value


def _fields(event: ClientEvent) -> dict[str, Any]:
    """The event as it would be on the wire."""
    fields = msgspec.to_builtins(event)
    fields.setdefault("type", type(event).__name__.lower())
    if fields["type"] == "session.created":
        fields.pop("resume_token", None)
    return dict(fields)


@asynccontextmanager
async def conversation(
    url: str,
    *,
    timeline: Timeline,
    token: str | None = None,
    model: str | None = None,
    options: Mapping[str, str | int | float] | None = None,
    speaker: Speaker | None = None,
    playing: AbstractAsyncContextManager[None] | None = None,
) -> AsyncIterator[Conversation]:
    """Open a session; on leaving it is closed. `playing` makes the speaker sound meanwhile.

    Raises:
        UsageError, CommandError: in words, why there is none.
    """
    talk: Conversation

    def arrived(frame: Frame) -> None:
        talk.frame_arrived(frame)

    client = _Client(url, arrived, model=model, token=token, options=options, player=speaker, reconnect=False)
    talk = Conversation(client, timeline, speaker)
    async with AsyncExitStack() as stack:
        with in_words():
            await client.open()
        stack.push_async_exit(client)
        taking = asyncio.create_task(talk.take_events(), name="events")
        stack.push_async_callback(_stopped, taking)
        if speaker is not None:
            speaker.on_played = talk.changed
        if playing is not None:
            await stack.enter_async_context(playing)
        with in_words():
            yield talk


async def _stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
