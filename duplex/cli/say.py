"""`duplex say`: text to a sound file."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from duplex.cli.errors import CommandError, UsageError
from duplex.cli.gateway import SESSION_PATH, VOICE, in_words, target
from duplex.cli.sound import SoundFile
from duplex.clients import AsyncDuplexClient, AudioDelta, ErrorMessage, ResponseCancelled, ResponseDone

SAMPLE_RATE = 24000


def run(args: argparse.Namespace) -> int:
    """Speak into a file."""
    text = args.text if args.text is not None else _standard_input()
    if not text.strip():
        raise UsageError("there is no text to say")
    # a bad file name is told before a model is loaded
    with SoundFile(Path(args.out), input_rate=SAMPLE_RATE, output_rate=args.sample_rate) as file:
        took_s = asyncio.run(_say(args, text, file))
        if not file.samples:
            raise CommandError("the model said nothing")
    seconds = file.samples / SAMPLE_RATE
    print(f"{args.out}: {seconds:.1f} s of speech, made in {took_s:.2f} s", file=sys.stderr)
    return 0


def _standard_input() -> str:
    if sys.stdin.isatty():
        print("type the text, end with Ctrl-D", file=sys.stderr)
    return sys.stdin.read()


async def _say(args: argparse.Namespace, text: str, file: SoundFile) -> float:
    """Seconds from the request to the last audio."""
    async with target(args, VOICE) as gateway:
        with in_words():
            async with AsyncDuplexClient(
                gateway.path(SESSION_PATH), token=gateway.token, model=gateway.model, options=_options(args)
            ) as client:
                begin = time.monotonic()
                await client.speak(text, modalities=["audio"])
                await _write(client, file)
                return time.monotonic() - begin


def _options(args: argparse.Namespace) -> dict[str, Any]:
    # nobody listens: it may come as fast as it is made
    options: dict[str, Any] = {"sample_rate": SAMPLE_RATE, "max_run_ahead_ms": 0}
    if args.voice is not None:
        options["voice"] = args.voice
    return options


async def _write(client: AsyncDuplexClient, file: SoundFile) -> None:
    """The response's audio, as it comes."""
    async for event in client:
        match event:
            case AudioDelta():
                file.write(event.samples)
            case ErrorMessage():
                raise UsageError(event.message)
            case ResponseDone():
                return
            case ResponseCancelled():
                raise CommandError("the gateway ended the response")
            case _:
                pass
    raise CommandError("the session ended before all was said")
