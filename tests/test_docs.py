"""The documentation says what the code does: its tables are compared with the code, its examples are run."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import re
import shlex
import sys
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from duplex.adapters.qwen3_tts.adapter import TtsOptions
from duplex.adapters.qwen3_tts.names import SPEAKERS
from duplex.adapters.registry import load_adapters
from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions
from duplex.adapters.speech import SpeechAdapter
from duplex.cli.options import build_parser
from duplex.clients import AsyncDuplexClient
from duplex.config import ServerConfig, load_config
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import AudioFormat, Modality, SessionSettings, TurnDetection
from duplex.dialects import native_events
from duplex.dialects.native_commands import COMMANDS
from duplex.dialects.native_frames import FrameKind
from duplex.runtime.gateway import Gateway
from duplex.runtime.metrics import Gauges, Metrics
from duplex.server.run import running_gateway
from duplex.speech import connection as speech_connection
from duplex.speech import socket as speech_socket
from duplex.speech.fields import SocketConfig, SpeechBody, SpeechFields

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def section(page: str, heading: str) -> str:
    """The text below a heading, down to the next of its level or above."""
    text = (DOCS / page).read_text()
    match = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,9}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"{page} has no heading {heading!r}"
    return match[2]


def rows(text: str) -> list[list[str]]:
    """Cells of all table rows, less header rows."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("|")]
    table = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line[1:-1])] for line in lines]
    rules = {i for i, cells in enumerate(table) if all(re.fullmatch(r":?-+:?", cell) for cell in cells)}
    return [cells for i, cells in enumerate(table) if i not in rules and i + 1 not in rules]


def code_words(text: str) -> set[str]:
    """Everything in backticks."""
    return set(re.findall(r"`([^`\n]+)`", text))


def keys(text: str, column: int = 0) -> list[str]:
    """The backticked words of one column, in order."""
    return [word for cells in rows(text) for word in re.findall(r"`([^`]+)`", cells[column])]


# --- operations ---------------------------------------------------------------------------------------


def test_error_table_is_the_vocabulary() -> None:
    table = {cells[0].strip("`"): cells for cells in rows(section("operations.md", "Error codes"))}
    assert list(table) == [code.value for code in ErrorCode]
    for code in ErrorCode:
        _, ends, http, words = table[code.value]
        traits = code.traits
        assert ends == (str(traits.close_code) if traits.fatal else "no"), code
        assert http == str(traits.http_status), code
        assert words, code


def test_metrics_table_is_what_is_exported() -> None:
    metrics = Metrics(Gauges)
    metrics.errors[ErrorCode.INVALID_JSON] += 1
    exported = dict(re.findall(r"^# TYPE (\S+) (\S+)$", metrics.render().decode(), re.MULTILINE))
    # the time at which a series began is no figure of ours
    exported = {name: kind for name, kind in exported.items() if not name.endswith("_created")}
    table = {cells[0].strip("`"): cells[1] for cells in rows(section("operations.md", "Metrics"))}
    assert table == exported


def test_settings_that_the_operations_page_names_exist() -> None:
    names = set(ServerConfig.__struct_fields__) | set(SessionSettings.__struct_fields__)
    named = set(keys(section("operations.md", "Limits"), column=1))
    assert named
    assert named <= names


# --- configuration ------------------------------------------------------------------------------------


def test_configuration_table_has_every_key_with_its_default() -> None:
    text = (DOCS / "configuration.md").read_text()
    table = {cells[0].strip("`"): cells[1].strip("`") for cells in rows(text)}
    fields = {field.name: field for field in msgspec.structs.fields(ServerConfig)}
    assert sorted(table) == sorted(fields)
    for name, field in fields.items():
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        if default is None:
            expected = "none"
        elif isinstance(default, float):
            expected = f"{default:g}"
        elif isinstance(default, tuple | dict):
            expected = "[]" if isinstance(default, tuple) else "{}"
            assert not default, name
        else:
            expected = str(default)
        assert table[name] == expected, name


def test_configuration_example_is_valid(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", (DOCS / "configuration.md").read_text(), re.DOTALL)
    assert examples
    for number, example in enumerate(examples):
        assert tomllib.loads(example)
        file = tmp_path / f"{number}.toml"
        file.write_text(example)
        load_config({}, file=file, environ={})


def test_variables_that_the_docs_name_are_known() -> None:
    text = "\n".join(page.read_text() for page in [*DOCS.glob("*.md"), ROOT / "README.md"])
    for name, value in set(re.findall(r"\b(DUPLEX_[A-Z_]+)(?:=([^\s`…]+))?", text)):
        if value.startswith("tcp:"):
            continue  # the example of a value that is refused
        load_config({}, environ={name: value or "1"}, file="/dev/null")


# --- the wire -----------------------------------------------------------------------------------------


def test_every_client_message_is_documented() -> None:
    assert set(keys(section("native.md", "Client to server"))) == {"input.append", *COMMANDS}


def test_every_server_message_is_documented_with_its_fields() -> None:
    main = {cells[0].strip("`"): cells[1] for cells in rows(section("native.md", "Server to client"))}
    extensions = section("native.md", "Extensions")
    documented = dict(main)
    extension = ""
    for name, adds, fields in rows(extensions):
        extension = name.strip("`") or extension
        assert extension in set(native_events.Extension)
        for message in code_words(adds):
            documented[message] = documented.get(message, "") + fields
    messages = typing.get_args(native_events.ServerMessage)
    assert set(documented) == {message.__struct_config__.tag for message in messages}
    for message in messages:
        words = code_words(documented[message.__struct_config__.tag])
        named = {word for entry in words for word in re.findall(r"[a-z_]+", entry)}
        missing = set(message.__struct_fields__) - named
        assert not missing, f"{message.__struct_config__.tag}: {missing}"


def test_every_extension_is_documented() -> None:
    assert set(keys(section("native.md", "Extensions"))) == set(native_events.Extension)


def test_every_setting_is_documented_with_its_default() -> None:
    text = section("native.md", "Settings")
    table = {cells[0].strip("`"): cells[1] for cells in rows(text)}
    settings = msgspec.json.decode(msgspec.json.encode(SessionSettings()))
    turns = msgspec.to_builtins(TurnDetection())
    assert set(table) == set(settings) | set(turns)
    for name, default in {**settings, **turns}.items():
        if name == "turn_detection":
            continue  # has a table of its own
        assert msgspec.json.decode(table[name].strip("`")) == default, name


def test_every_codec_and_rate_is_documented() -> None:
    text = next(line for line in section("native.md", "Settings").splitlines() if "`output_format`" in line)
    hints = typing.get_type_hints(AudioFormat)
    for choice in (*typing.get_args(hints["codec"]), *typing.get_args(hints["sample_rate"])):
        assert re.search(rf"\b{choice}\b", text), choice


def test_every_modality_is_documented() -> None:
    assert keys(section("native.md", "Windows"))[: len(Modality)] == [m.value for m in Modality]


def test_every_frame_kind_is_documented() -> None:
    kinds = [int(cells[0]) for cells in rows(section("native.md", "Binary frames")) if len(cells) == 2]
    assert kinds == [kind.value for kind in FrameKind]


def test_close_codes_are_those_of_the_error_codes() -> None:
    text = section("native.md", "Connection") + section("native.md", "Ends")
    checked = set()
    for cells in rows(text):
        if not cells[0].isdigit():
            continue
        for name in code_words(cells[1]) & {code.value for code in ErrorCode}:
            assert ErrorCode(name).traits.close_code == int(cells[0]), name
            checked.add(name)
    assert {"unauthorized", "server_full", "slow_reader"} <= checked


# --- speech -------------------------------------------------------------------------------------------


def test_every_speech_option_is_documented_with_its_default() -> None:
    table = {cells[0].strip("`"): cells[1] for cells in rows(section("speech.md", "Options"))}
    fields = {field.name: field for field in msgspec.structs.fields(SpeechFields)}
    assert list(table) == list(fields)
    for name, field in fields.items():
        if field.default is not None:
            assert msgspec.json.decode(table[name].strip("`")) == field.default, name


def test_fields_of_speech_bodies_and_sockets_are_documented() -> None:
    body = set(SpeechBody.__struct_fields__) - set(SpeechFields.__struct_fields__)
    assert body <= code_words(section("speech.md", "`POST /v1/audio/speech`"))
    socket = set(SocketConfig.__struct_fields__) - set(SpeechFields.__struct_fields__)
    assert socket <= code_words(section("speech.md", "`WS /v1/audio/speech/stream`"))


def test_messages_of_the_speech_socket_are_documented() -> None:
    source = "".join(inspect.getsource(module) for module in (speech_socket, speech_connection))
    sent = set(re.findall(r'"type": "([a-z.]+)"', source))
    taken = set(re.findall(r'case "([a-z.]+)":', source))
    documented = keys(section("speech.md", "`WS /v1/audio/speech/stream`"))
    assert len(sent) > 5
    assert len(taken) > 3
    assert sent | taken == {name for name in documented if "." in name or name == "error"}


# --- models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("embedded-voice", "duplex.adapters.embedded.voice_options:VoiceOptions"),
        ("embedded-commentary", "duplex.adapters.embedded.commentary:CommentaryOptions"),
    ],
)
def test_every_option_of_an_embedded_model_is_documented_with_its_default(model: str, options: str) -> None:
    module, _, name = options.partition(":")
    fields = {
        field.name: field for field in msgspec.structs.fields(getattr(importlib.import_module(module), name))
    }
    table = {cells[0].strip("`"): cells[1].strip("`") for cells in rows(section("embedded.md", model))}
    assert list(table) == list(fields)
    for field in fields.values():
        assert table[field.name] == ("none" if field.default is None else str(field.default)), field.name


def test_every_option_of_qwen3_tts_is_documented_with_its_default() -> None:
    table = {cells[0].strip("`"): cells[1].strip("`") for cells in rows(section("qwen3-tts.md", "Options"))}
    fields = {field.name: field for field in msgspec.structs.fields(TtsOptions)}
    assert list(table) == list(fields)
    for name, field in fields.items():
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        if field.required:
            assert table[name] == "must be given", name
        else:
            assert table[name] == ("none" if default is None else str(default)), name


def test_voices_of_qwen3_tts_are_documented() -> None:
    table = {cells[0].strip("`"): cells[1:] for cells in rows(section("qwen3-tts.md", "Voices"))}
    assert table == {name: [voice.language, voice.description] for name, voice in SPEAKERS.items()}


def test_configuration_example_of_qwen3_tts_is_valid(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", (DOCS / "qwen3-tts.md").read_text(), re.DOTALL)
    (tmp_path / "duplex.toml").write_text(example)
    config = load_config({}, file=tmp_path / "duplex.toml", environ={})
    assert len(config.adapter) == len(config.adapters) == 2
    for name in config.adapter:
        msgspec.convert(config.adapters[name], TtsOptions)


def test_models_that_are_served_by_default() -> None:
    """What getting-started.md says of `duplex serve`; and the speech endpoints find one that speaks."""
    config = ServerConfig()
    adapters = load_adapters(config)
    gateway = Gateway(config, adapters)
    assert gateway.default_model == "embedded-voice"
    assert gateway.default_video_model == "embedded-commentary"
    speaking = [adapter for adapter in adapters if isinstance(adapter, SpeechAdapter)]
    assert [adapter.info.id for adapter in speaking] == ["embedded-voice"]


# --- benchmarks ---------------------------------------------------------------------------------------


def test_benchmark_tables_show_the_recorded_results() -> None:
    """`python docs/benchmarks/tables.py` writes them."""
    spec = importlib.util.spec_from_file_location("tables", DOCS / "benchmarks" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    page = (DOCS / "benchmarks.md").read_text()
    assert tables.filled(page) == page
    assert len(rows(section("benchmarks.md", "The gateway"))) >= 4


# --- examples -----------------------------------------------------------------------------------------


def test_json_examples_are_json() -> None:
    for page in DOCS.glob("*.md"):
        for example in re.findall(r"```json\n(.*?)```", page.read_text(), re.DOTALL):
            msgspec.json.decode(example)


@pytest.mark.parametrize("page", sorted(page.name for page in DOCS.glob("*.md")))
def test_python_examples_run(page: str) -> None:
    """What a page shows are definitions: names that it imports exist, and nothing in it is no Python."""
    for example in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        exec(compile(example, page, "exec"), {"__name__": "example"})


def test_echo_adapter_has_forty_lines() -> None:
    lines = (DOCS / "examples" / "echo_adapter.py").read_text().splitlines()
    assert len(lines) <= 40
    assert "in 40 lines" in lines[0]


@pytest.mark.parametrize("page", sorted(page.name for page in DOCS.glob("*.md")))
def test_every_page_is_in_a_table_of_contents(page: str) -> None:
    listed = re.findall(r"^([a-z0-9-]+)$", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert page == "index.md" or page.removesuffix(".md") in listed


@pytest.fixture
def echo_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    yield "echo_adapter:Echo"
    sys.modules.pop("echo_adapter", None)


def test_echo_adapter_is_served(echo_module: str) -> None:
    samples = np.arange(-2400, 2400, dtype=np.int16)

    async def talk() -> tuple[str, bytes]:
        async with (
            running_gateway(ServerConfig(port=0, adapter=(echo_module,))) as gateway,
            AsyncDuplexClient(f"{gateway.ws_url}/v1/duplex") as client,
        ):
            await client.append_text("Say it again.")
            await client.append_audio(samples, 24000)
            await client.commit()
            response = await client.response()
            return response.text, response.audio

    text, audio = asyncio.run(talk())
    assert text == "Say it again. "
    assert audio == samples.tobytes()


def test_echo_adapter_refuses_an_unknown_option_by_name(echo_module: str) -> None:
    config = ServerConfig(adapter=(echo_module,), adapters={echo_module: {"vioce": "x"}})
    with pytest.raises(DuplexError, match="vioce") as caught:
        load_adapters(config)
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_barge_in_example_cuts_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    example = importlib.import_module("barge_in")
    model = ScriptedAdapter(ScriptedOptions(audio_ms=60_000))

    async def run() -> None:
        async with running_gateway(ServerConfig(port=0, drain_grace_s=0), [model]) as gateway:
            await example.main(f"{gateway.ws_url}/v1/duplex")

    asyncio.run(run())
    assert re.fullmatch(r"cancelled after [1-9]\d* ms, heard: '.*'\n", capsys.readouterr().out)


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{page.name}" for page in DOCS.glob("*.md"))])
def test_commands_in_the_docs_are_taken(page: str) -> None:
    """Each `duplex …` line is one that the command line understands."""
    for block in re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line.removeprefix("$ ")) if line.startswith("$ ") else []
            while "&&" in words:
                words = words[words.index("&&") + 1 :]
            if words and "=" in words[0]:
                words = words[1:]
            if words[:1] == ["duplex"]:
                build_parser(words[1:]).parse_args(words[1:])


def test_readme_shows_the_barge_in_example() -> None:
    shown = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown
    example = (DOCS / "examples" / "barge_in.py").read_text()
    assert shown[1] == example.replace(
        'if __name__ == "__main__":\n    asyncio.run(main())', "asyncio.run(main())"
    )
