"""`max_output_tokens`: the chat endpoint counts, and what it cut short is told to be incomplete."""

from __future__ import annotations

import json
from importlib.util import find_spec

import httpx
import pytest

from duplex.adapters.embedded.llm import ChatReplies
from duplex.adapters.embedded.replies import ReplyPart, ReplyRequest
from duplex.core.errors import DuplexError
from duplex.core.types import (
    HistoryItem,
    LengthReached,
    Modality,
    OpenSession,
    SessionSettings,
    TextDelta,
    Trigger,
    Turn,
)

WORDS = ["The ", "moon ", "is ", "far ", "away."]
USER = HistoryItem(role="user", text="How far is the moon?")


class Endpoint:
    """Writes a word a token, as many as it may."""

    def __init__(self, *, silent: bool = False) -> None:
        self.asked: list[int] = []
        self.silent = silent

    def __call__(self, request: httpx.Request) -> httpx.Response:
        most = json.loads(request.content)["max_tokens"]
        self.asked.append(most)
        words = [] if self.silent else WORDS[:most]
        events = [{"choices": [{"delta": {"content": word}}]} for word in words]
        reason = "stop" if most >= len(WORDS) else "length"
        events.append({"choices": [{"delta": {}, "finish_reason": reason}]})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        return httpx.Response(
            200, text="".join(lines) + "data: [DONE]\n\n", headers={"content-type": "text/event-stream"}
        )

    def replies(self) -> ChatReplies:
        return ChatReplies("http://model/v1", max_tokens=400, transport=httpx.MockTransport(self))


async def reply(endpoint: Endpoint, most: int | None) -> list[ReplyPart]:
    replies = endpoint.replies()
    await replies.start()
    try:
        return [p async for p in replies.reply(ReplyRequest(history=(USER,), max_output_tokens=most))]
    finally:
        await replies.stop()


@pytest.mark.parametrize(
    ("most", "asked", "parts"),
    [
        (None, 400, WORDS),
        (1000, 400, WORDS),
        (5, 5, WORDS),
        (3, 3, [*WORDS[:3], LengthReached()]),
    ],
)
async def test_the_endpoint_is_told_how_much_it_may_write(
    most: int | None, asked: int, parts: list[ReplyPart]
) -> None:
    endpoint = Endpoint()
    assert await reply(endpoint, most) == parts
    assert endpoint.asked == [asked]


async def test_tokens_that_were_spent_on_nothing_are_no_fault_of_the_endpoint() -> None:
    assert await reply(Endpoint(silent=True), 1) == [LengthReached()]
    with pytest.raises(DuplexError, match="empty reply"):
        await reply(Endpoint(silent=True), None)


@pytest.mark.skipif(find_spec("hibari") is None, reason="needs the embedded extra")
@pytest.mark.parametrize("modalities", [(Modality.TEXT,), (Modality.TEXT, Modality.AUDIO)])
async def test_the_voice_says_what_there_is_and_then_that_it_is_not_all(
    modalities: tuple[Modality, ...],
) -> None:
    from duplex.adapters.embedded.voice import VoiceAdapter

    settings = SessionSettings(max_output_tokens=3)
    adapter = VoiceAdapter(replies=Endpoint().replies())
    await adapter.start()
    session = await adapter.open(OpenSession(session_id="s", settings=settings))
    turn = Turn(
        response_id="r",
        index=1,
        epoch=1,
        trigger=Trigger.CREATE,
        settings=settings,
        modalities=modalities,
        history=(USER,),
    )
    deltas = [delta async for delta in session.respond(turn)]
    await session.close()
    await adapter.stop()
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "The moon is "
    assert deltas[-1] == LengthReached()
    assert deltas.count(LengthReached()) == 1
