import asyncio

from duplex.clients import AsyncDuplexClient


async def main(url: str = "ws://127.0.0.1:8600/v1/duplex") -> None:
    async with AsyncDuplexClient(url) as client:
        await client.speak(
            "It was the best of times, it was the worst of times, it was the age of wisdom, "
            "it was the age of foolishness, it was the epoch of belief, it was the epoch of incredulity."
        )
        await asyncio.sleep(1.5)
        await client.cancel()  # the user cuts in
        response = await client.response()
        print(f"{response.status} after {response.heard_ms:.0f} ms, heard: {response.heard_text!r}")


if __name__ == "__main__":
    asyncio.run(main())
