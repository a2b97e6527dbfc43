"""Show a clip to a watching model as a camera would, print what it says of it, and ask it something."""

import asyncio
import sys

from duplex.clients import AsyncDuplexClient, ErrorMessage, ResponseDone, TextDelta
from duplex.codecs.video_split import split_clip


async def listen(client: AsyncDuplexClient) -> None:
    async for event in client:
        match event:
            case TextDelta():
                print(event.text, end="", flush=True)
            case ResponseDone():
                print()
            case ErrorMessage():
                print(f"[{event.code}] {event.message}")


async def main(
    clip: str, question: str = "What happened?", url: str = "ws://127.0.0.1:8600/v1/mage-vl/duplex"
) -> None:
    async with AsyncDuplexClient(url) as client:
        listening = asyncio.create_task(listen(client))
        for window in split_clip(clip, window_ms=1000):
            await client.append_video(
                window.data, kind=window.kind, pts_ms=window.pts_ms, duration_ms=window.duration_ms
            )
            await asyncio.sleep(window.duration_ms / 1000)
        await client.append_text(question)
        await client.commit()
    await listening  # the session is closed when the answer has been given


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
