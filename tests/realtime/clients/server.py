"""A gateway for the client programs beside this one. Arguments: a folder for phrases, a port."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
import soundfile

from duplex.adapters.embedded.voice import VoiceAdapter
from duplex.config import ServerConfig
from duplex.server.run import running_gateway

PHRASES = {"count": "Count to fifty.", "stop": "Stop that, please. What day is it today?"}


async def main() -> None:
    folder = Path(sys.argv[1])
    voice = VoiceAdapter()
    async with running_gateway(ServerConfig(port=int(sys.argv[2]), drain_grace_s=0.0), [voice]) as gateway:
        for name, text in PHRASES.items():
            piece = await voice.say(text)
            silence = np.zeros(36000, np.float32)
            soundfile.write(folder / f"{name}.wav", np.concatenate([piece.samples, silence]), 24000, "PCM_16")
        print(gateway.ws_url, flush=True)
        await asyncio.Event().wait()


asyncio.run(main())
