"""The page of Mage-VL says what the code does; its example is run."""

from __future__ import annotations

import importlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mage_fakes import Fakes
from video_clips import encode, moving_square

from duplex.adapters.mage_vl.options import PROMPT, MageOptions, RemoteOptions, VoiceOptions
from duplex.adapters.mage_vl.session import SessionOptions
from duplex.server.run import Gateway

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "mage-vl.md").read_text()


def table(heading: str) -> dict[str, str]:
    """The first table with option names below a heading: names and defaults."""
    text = PAGE[PAGE.index(f"\n## {heading}\n") + 1 :].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[1] for row in rows}


def shown(value: object) -> str:
    """A default as the page has it."""
    if value is msgspec.NODEFAULT:
        return "must be given"
    if value in (None, ""):
        return "none"
    if value == PROMPT:
        return "the published one"
    return f"`{value}`" if isinstance(value, str) else str(value)


@pytest.mark.parametrize(
    ("heading", "options"),
    [("Options", MageOptions), ("A voice", VoiceOptions), ("A server as decoder", RemoteOptions)],
)
def test_the_page_has_every_option_with_its_default(heading: str, options: type[msgspec.Struct]) -> None:
    fields = {}
    for field in msgspec.structs.fields(options):
        made = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        fields[field.name] = shown(made)
    assert table(heading) == fields


def test_the_page_has_every_option_of_a_session() -> None:
    names = {field.name for field in msgspec.structs.fields(SessionOptions)}
    rows = re.search(r"\| `session.update` `options` \|.*?\n\n", PAGE, re.DOTALL)
    assert rows
    assert set(re.findall(r"^\| `(\w+)` \|", rows[0], re.MULTILINE)) == names


def test_the_page_shows_the_example() -> None:
    example = (DOCS / "examples" / "watch_live.py").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code in example


async def test_the_example_prints_comments_and_the_answer(
    start_gateway: Callable[..., Awaitable[Gateway]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    example: Any = importlib.import_module("watch_live")
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(encode(moving_square(20), fps=25))
    fakes = Fakes(0.9)
    gateway = await start_gateway(fakes.adapter)
    await example.main(str(clip), "What?", f"{gateway.ws_url}/v1/mage-vl/duplex")
    assert capsys.readouterr().out.splitlines()[-1] == "a dog runs"
    assert fakes.engine.prompts[-1]["question"] == "What?"
