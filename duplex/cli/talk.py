"""`duplex talk`: a conversation through the microphone, or with recordings in its place."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duplex.cli.conversation import MICROPHONE_RATE, Answer, Conversation, conversation
from duplex.cli.errors import CommandError, UsageError
from duplex.cli.gateway import SESSION_PATH, VOICE, target
from duplex.cli.sound import SoundFile, read_speech
from duplex.cli.speaker import SAMPLE_RATE, Speaker
from duplex.cli.timeline import Timeline
from duplex.clients import (
    ClientEvent,
    ErrorMessage,
    InputTranscript,
    PlaybackClear,
    ResponseCancelled,
    ResponseDone,
)

NOTICE_S = 4.0
"""After a recording: so long may pass before what was said is understood, and before it is answered."""
SETTLED_S = 0.6
"""After an answer: so much silence before the next recording."""
LONGEST_WAIT_S = 120.0


def run(args: argparse.Namespace) -> int:
    """Talk until the recordings are over, or until Ctrl-C."""
    recordings = [(name, read_speech(Path(name), MICROPHONE_RATE)) for name in args.wav or ()]
    if not recordings:
        from duplex.cli import microphone

        microphone.check()
    timeline = Timeline(keep=bool(recordings or args.out or args.timeline))
    # a bad file name is told before a model is loaded
    out = SoundFile(Path(args.out), input_rate=SAMPLE_RATE) if args.out else None
    speaker = Speaker(timeline)
    try:
        asyncio.run(_talk(args, recordings, timeline, speaker))
    except KeyboardInterrupt:
        if recordings:
            raise
        print(file=sys.stderr)
    except BaseException:
        if out is not None:
            out.discard()
        raise
    if out is not None:
        with out:
            heard = speaker.heard
            out.write(heard)
        print(f"{args.out}: {len(heard) / SAMPLE_RATE:.1f} s of what was heard", file=sys.stderr)
    if args.timeline:
        timeline.save(Path(args.timeline))
    return 0


async def _talk(
    args: argparse.Namespace,
    recordings: list[tuple[str, NDArray[np.int16]]],
    timeline: Timeline,
    speaker: Speaker,
) -> None:
    options = {name: getattr(args, name) for name in ("voice", "instructions") if getattr(args, name)}
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(target(args, VOICE))
        if recordings:
            playing = speaker.by_the_clock()
        else:
            from duplex.cli import microphone

            playing = microphone.loudspeaker(speaker)
        talk = await stack.enter_async_context(
            conversation(
                gateway.path(SESSION_PATH),
                timeline=timeline,
                token=gateway.token,
                model=gateway.model,
                options=options,
                speaker=speaker,
                playing=playing,
            )
        )
        if "audio" not in talk.client.session.capabilities.input_modalities:
            raise UsageError(f"the model {talk.client.session.model} does not listen")
        timeline.begin("talk", "A conversation")
        screen = Screen(talk)
        talk.on_event = screen.take
        if recordings:
            for name, samples in recordings:
                screen.note(f"{name}: {len(samples) / MICROPHONE_RATE:.1f} s")
                await play(talk, samples, silence_s=args.silence)
        else:
            screen.note("speak; Ctrl-C ends (headphones keep the agent from hearing itself)")
            await stack.enter_async_context(microphone.listening(talk))
            await talk.until(lambda: False, "", None)
        screen.finish()
        if talk.errors:
            raise CommandError(talk.errors[0].message)


async def play(talk: Conversation, samples: NDArray[np.int16], *, silence_s: float | None = None) -> None:
    """A recording in real time, then silence: so much, or until the agent has answered and fallen silent.

    Raises:
        CommandError: the session ended, or the answer does not.
    """
    await talk.stream(samples)
    settled = _Settled(talk)
    longest_s = LONGEST_WAIT_S if silence_s is None else silence_s
    quiet = np.zeros(round(longest_s * MICROPHONE_RATE), np.int16)
    await talk.stream(quiet, until=settled if silence_s is None else lambda: False)
    if silence_s is None and not settled():
        raise CommandError(f"the agent was still speaking after {LONGEST_WAIT_S:g} s")


class _Settled:
    """True when the agent has answered what was said, and has been silent for a while; or when it said
    nothing for longer than an answer takes."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self._since = talk.timeline.now_ms
        self._answers = sum(answer.running for answer in talk.answers.values())

    def __call__(self) -> bool:
        talk = self._talk
        now = talk.timeline.now_ms
        if not talk.quiet:
            self._since = now
            self._answers = max(1, self._answers)
            return False
        if talk.transcripts and talk.transcripts[-1][0] > self._since:
            self._since = talk.transcripts[-1][0]  # understood: now the answer may take its time
            self._answers = 0
        return now - self._since > 1000 * (SETTLED_S if self._answers else NOTICE_S)


class Screen:
    """What was said on standard output, line by line; what is being said on standard error, if a terminal."""

    def __init__(self, talk: Conversation, *, indent: str = "") -> None:
        self._talk = talk
        self._indent = indent
        self._partial = False
        self._told: set[int] = set()

    def take(self, event: ClientEvent) -> None:
        """Hear of an event of the session."""
        match event:
            case InputTranscript() if event.final:
                if event.text:
                    self._line(f"you:    {event.text}")
            case InputTranscript():
                self._show(event.text)
            case ResponseDone():
                self._answered(self._talk.answers[event.response_index])
            case ResponseCancelled() if event.response_index in self._talk.answers:
                self._answered(self._talk.answers[event.response_index])
            case PlaybackClear():
                self._line(f"        (interrupted after {event.heard_ms / 1000:.1f} s: {event.heard_text!r})")
            case ErrorMessage():
                self._line(f"error:  {event.message}")
            case _:
                pass

    def _answered(self, answer: Answer) -> None:
        if answer.index in self._told:
            return
        self._told.add(answer.index)
        if answer.status == "cancelled" and answer.reason != "superseded":
            heard = (answer.heard_text or "").strip()
            self._line(f"agent:  {heard} … (interrupted after {(answer.heard_ms or 0) / 1000:.1f} s)")
        elif answer.text.strip():
            self._line(f"agent:  {' '.join(answer.text.split())}")

    def note(self, text: str) -> None:
        """Words about the conversation."""
        self.finish()
        print(text, file=sys.stderr, flush=True)

    def _line(self, text: str) -> None:
        self.finish()
        print(self._indent + text, flush=True)

    def _show(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r        {text[-100:]}\x1b[K", end="", file=sys.stderr, flush=True)
            self._partial = True

    def finish(self) -> None:
        """Take the line of what is being said away."""
        if self._partial:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._partial = False
