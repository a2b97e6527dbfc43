"""Function calls: of the scripted model, of a chat endpoint, and of the embedded voice that asks it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any

import httpx
import pytest

from duplex.adapters.embedded.llm import ChatReplies, messages
from duplex.adapters.embedded.replies import ReplyRequest
from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions
from duplex.core.types import (
    AudioDelta,
    Delta,
    HistoryItem,
    Modality,
    OpenSession,
    SessionSettings,
    TextDelta,
    ToolCallDelta,
    ToolSpec,
    Trigger,
    Turn,
)

TOOL = ToolSpec(name="weather", description="looks it up", parameters={"type": "object"})
OTHER = ToolSpec(name="time")
CALL = HistoryItem(role="assistant", text='{"place": "Rome"}', call_id="c1", name="weather")
RESULT = HistoryItem(role="tool", text="sunny", call_id="c1")
USER = HistoryItem(role="user", text="How is it in Rome?")


def turn(*history: HistoryItem, tools: tuple[ToolSpec, ...] = (TOOL,), choice: str = "auto") -> Turn:
    return Turn(
        response_id="r",
        index=1,
        epoch=1,
        trigger=Trigger.CREATE,
        settings=SessionSettings(tools=tools, tool_choice=choice),
        modalities=(Modality.TEXT, Modality.AUDIO),
        history=history,
    )


async def all_of(deltas: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in deltas]


# --- scripted ----------------------------------------------------------------------------------------


async def scripted(turn: Turn) -> list[Delta]:
    adapter = ScriptedAdapter(ScriptedOptions(call_tools=True, text="hi", audio_ms=20, paced=False))
    session = await adapter.open(OpenSession(session_id="s", settings=SessionSettings()))
    return await all_of(session.respond(turn))


async def test_the_scripted_model_calls_the_chosen_tool_and_says_its_result() -> None:
    deltas = await scripted(turn(USER, tools=(TOOL, OTHER), choice="time"))
    calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    assert len(calls) == len(deltas) > 1
    assert {call.name for call in calls} == {"time"}
    assert json.loads("".join(call.arguments for call in calls)) == {"text": "hi"}
    said = [delta for delta in await scripted(turn(USER, CALL, RESULT)) if isinstance(delta, TextDelta)]
    assert [delta.text for delta in said] == ["sunny"]


@pytest.mark.parametrize("asked", [turn(USER, tools=()), turn(USER, choice="none")])
async def test_without_tools_nothing_is_called(asked: Turn) -> None:
    assert not [delta for delta in await scripted(asked) if isinstance(delta, ToolCallDelta)]


# --- a chat endpoint ---------------------------------------------------------------------------------


class Endpoint:
    """Streams the deltas it was given; remembers what it was asked."""

    def __init__(self, *deltas: dict[str, Any]) -> None:
        self.deltas = deltas
        self.asked: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(request.content))
        lines = [f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n" for delta in self.deltas]
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, content="".join([*lines, "data: [DONE]\n\n"]))


def part(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    name = more.pop("name", None)
    return {"tool_calls": [{"index": index, **more, "function": {"name": name, "arguments": arguments}}]}


TWO_CALLS = (
    part(0, "", id="c1", name="weather"),
    part(0, '{"place"'),
    part(0, ': "Rome"}'),
    part(1, "{}", id="c2", name="time"),
)


async def test_calls_of_the_endpoint_come_through_in_pieces() -> None:
    endpoint = Endpoint({"content": "Let me see. "}, *TWO_CALLS)
    replies = ChatReplies("http://llm/v1", transport=httpx.MockTransport(endpoint))
    await replies.start()
    request = ReplyRequest(history=(USER,), tools=(TOOL, OTHER), tool_choice="weather")
    pieces = [piece async for piece in replies.reply(request)]
    await replies.stop()
    assert pieces[0] == "Let me see. "
    calls = [piece for piece in pieces if isinstance(piece, ToolCallDelta)]
    arguments: dict[tuple[str, str], str] = {}
    for call in calls:
        arguments[call.call_id, call.name] = arguments.get((call.call_id, call.name), "") + call.arguments
    assert arguments == {("c1", "weather"): '{"place": "Rome"}', ("c2", "time"): "{}"}
    (asked,) = endpoint.asked
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["weather", "time"]
    assert asked["tools"][1]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert asked["tool_choice"] == {"type": "function", "function": {"name": "weather"}}


async def test_without_tools_the_endpoint_is_asked_as_before() -> None:
    endpoint = Endpoint({"content": "Hello."})
    replies = ChatReplies("http://llm/v1", transport=httpx.MockTransport(endpoint))
    await replies.start()
    assert [piece async for piece in replies.reply(ReplyRequest(history=(USER,)))] == ["Hello."]
    await replies.stop()
    assert not {"tools", "tool_choice"} & set(endpoint.asked[0])


def test_calls_and_results_become_messages_and_halves_are_left_out() -> None:
    second = HistoryItem(role="assistant", text="{}", call_id="c2", name="time")
    result = HistoryItem(role="tool", text="noon", call_id="c2")
    lost = HistoryItem(role="assistant", text="{}", call_id="c3", name="time")
    stray = HistoryItem(role="tool", text="?", call_id="c4")
    system, *rest = messages(
        ReplyRequest(history=(stray, USER, CALL, second, lost, RESULT, result), instructions="Be brief.")
    )
    assert system == {"role": "system", "content": "Be brief."}
    assert [message["role"] for message in rest] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in rest[1]["tool_calls"]] == ["c1", "c2"]
    assert rest[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"place": "Rome"}'}
    assert rest[2] == {"role": "tool", "tool_call_id": "c1", "content": "sunny"}


# --- the embedded voice ------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("hibari") is None, reason="needs the embedded extra")
async def test_the_embedded_voice_speaks_first_and_then_calls() -> None:
    from duplex.adapters.embedded.voice import VoiceAdapter

    endpoint = Endpoint({"content": "Let me see."}, *TWO_CALLS)
    replies = ChatReplies("http://llm/v1", transport=httpx.MockTransport(endpoint))
    adapter = VoiceAdapter(replies=replies)
    await adapter.start()
    try:
        session = await adapter.open(OpenSession(session_id="s", settings=SessionSettings()))
        deltas = await all_of(session.respond(turn(USER)))
        silent = Endpoint(*TWO_CALLS)
        replies._client = httpx.AsyncClient(transport=httpx.MockTransport(silent))
        only_calls = await all_of(session.respond(turn(USER)))
        await session.close()
    finally:
        await adapter.stop()
    kinds = [type(delta) for delta in deltas]
    assert kinds.index(AudioDelta) < kinds.index(ToolCallDelta)
    assert kinds[-len(TWO_CALLS) :] == [ToolCallDelta] * len(TWO_CALLS)
    assert {type(delta) for delta in only_calls} == {ToolCallDelta}
