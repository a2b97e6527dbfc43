"""The commands as a user runs them, against a gateway of scripted models."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from talking_models import beholder, lines_of, listener, loud, silence, watcher
from test_clip import make_clip
from video_clips import still, texture

from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions
from duplex.cli import main, say, talk
from duplex.cli.screen import clock, time_in
from duplex.server.run import Gateway

StartGateway = Callable[..., Awaitable[Gateway]]
Capture = pytest.CaptureFixture[str]

SCRIPTED = "duplex.adapters.scripted:create"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUPLEX_URL", "DUPLEX_TOKEN", "DUPLEX_CONFIG"):
        monkeypatch.delenv(name, raising=False)


async def run(*words: str) -> int:
    """A command has an event loop of its own: it gets a thread."""
    return await asyncio.to_thread(main, list(words))


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return make_clip(tmp_path / "clip.mp4", "libx264", bf="0")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    soundfile.write(tmp_path / "question.wav", np.concatenate([loud(300), silence(50)]), 16000)
    return tmp_path / "question.wav"


# --- say -------------------------------------------------------------------------------------------


async def test_say_writes_what_was_spoken(
    start_gateway: StartGateway, tmp_path: Path, capsys: Capture
) -> None:
    gateway = await start_gateway(ScriptedAdapter(ScriptedOptions(audio_ms=700, paced=False)))
    assert await run("say", "Hello.", "-o", str(tmp_path / "a.flac"), "--url", gateway.ws_url) == 0
    assert soundfile.info(tmp_path / "a.flac").duration == pytest.approx(0.7)
    out, err = lines_of(capsys)
    assert out == []
    assert len(err) == 1
    assert "0.7 s of speech" in err[0]


def test_say_starts_a_gateway_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    assert main(["say", "Hello.", "-o", str(path), "--model", SCRIPTED, "--sample-rate", "16000"]) == 0
    assert soundfile.info(path).samplerate == 16000
    assert soundfile.info(path).duration == pytest.approx(2.0)


def test_say_reads_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(say, "_standard_input", lambda: "From elsewhere.")
    assert main(["say", "-o", str(tmp_path / "a.wav"), "--model", SCRIPTED]) == 0


async def test_address_and_token_may_come_from_the_environment(
    start_gateway: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    model = ScriptedAdapter(ScriptedOptions(audio_ms=100, paced=False))
    gateway = await start_gateway(model, auth_token="secret")
    monkeypatch.setenv("DUPLEX_URL", gateway.url)
    assert await run("say", "Hello.", "-o", str(tmp_path / "a.wav"), "--token", "wrong") == 1
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("DUPLEX_TOKEN", "secret")
    assert await run("say", "Hello.", "-o", str(tmp_path / "a.wav")) == 0
    _, err = lines_of(capsys)
    assert "secret" not in "".join(err)


# --- watch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("speed", ["realtime", "max"])
async def test_watch_prints_comments_with_their_time(
    start_gateway: StartGateway, clip: Path, tmp_path: Path, capsys: Capture, speed: str
) -> None:
    gateway = await start_gateway(watcher())
    timeline = tmp_path / "t.jsonl"
    words = ["watch", str(clip), "--speed", speed, "--window-ms", "400", "--timeline", str(timeline)]
    assert await run(*words, "--ask", "How many?", "--url", gateway.ws_url) == 0
    out, err = lines_of(capsys)
    # 60 frames of 40 ms in windows of 400: comments on the second, the fourth and the sixth
    assert [line.split("   ")[0] for line in out] == [
        "0:00.4  At 0.4 seconds a window came.",
        "0:01.2  At 1.2 seconds a window came.",
        "0:02.0  At 2 seconds a window came.",
        "0:02.4  answer: How many? I have seen 6 windows.",
    ]
    assert err[-1].startswith("0:02.4 watched; 3 comments; 1 answer")
    assert ("lag" in err[-1]) is (speed == "realtime")
    rows = [json.loads(line) for line in timeline.read_text("utf-8").splitlines()]
    sent = [row for row in rows if row["kind"] == "video.sent"]
    assert [row["pts_ms"] for row in sent] == pytest.approx([0, 400, 800, 1200, 1600, 2000])
    assert [row["clip_ms"] for row in rows if row["kind"] == "comment"][:3] == [400, 1200, 2000]


async def test_a_question_is_asked_when_the_clip_is_there(
    start_gateway: StartGateway, clip: Path, capsys: Capture
) -> None:
    gateway = await start_gateway(watcher(each=100))
    words = ["watch", str(clip), "--speed", "max", "--window-ms", "400", "--url", gateway.ws_url]
    assert await run(*words, "--ask", "Now?", "--ask-at", "0.9", "--ask", "And now?") == 0
    out, _ = lines_of(capsys)
    assert out == [
        "0:01.2  answer: Now? I have seen 3 windows.",
        "0:02.4  answer: And now? I have seen 6 windows.",
    ]


async def test_a_comment_without_a_moment_claims_none_at_full_speed(
    start_gateway: StartGateway, clip: Path, capsys: Capture
) -> None:
    gateway = await start_gateway(watcher(each=1, says="A window came."))
    words = ["watch", str(clip), "--speed", "max", "--window-ms", "100000", "--url", gateway.ws_url]
    assert await run(*words) == 0
    assert lines_of(capsys)[0] == ["     –  A window came."]


async def test_a_model_that_does_not_tell_its_pace_gets_everything(
    start_gateway: StartGateway, clip: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("duplex.cli.watch.PACE_S", 0.05)
    gateway = await start_gateway(watcher(tells=False))
    assert await run("watch", str(clip), "--speed", "max", "--url", gateway.ws_url) == 0
    assert lines_of(capsys)[1][-1].startswith("0:02.4 watched")


async def test_a_model_that_does_not_watch_is_refused(
    start_gateway: StartGateway, clip: Path, capsys: Capture
) -> None:
    from duplex.adapters.base import AdapterInfo
    from duplex.core.types import Modality

    text = (Modality.TEXT,)
    model = ScriptedAdapter(info=AdapterInfo(id="reader", input_modalities=text, output_modalities=text))
    gateway = await start_gateway(model)
    assert await run("watch", str(clip), "--model", "reader", "--url", gateway.ws_url) == 2
    assert lines_of(capsys)[1] == ["duplex watch: the model reader does not watch video"]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("At 8.2 seconds the view turns.", 8200.0),
        ("Cut at 8 seconds, back to the view we left at 4.3 seconds.", 8000.0),
        ("By 1 second it is dark.", 1000.0),
        ("At 1:05 a dog appears.", 65_000.0),
        ("A new shot at 1:02:03 shows a car.", 3_723_000.0),
        ("At the start there is a person.", 0.0),
        ("The picture shows a person.", None),
        ("It is 8:50 a.m.", None),
    ],
)
def test_the_moment_of_a_comment_is_the_first_that_it_names(text: str, ms: float | None) -> None:
    assert time_in(text) == ms


def test_times_are_printed_in_minutes() -> None:
    assert [clock(ms) for ms in (0, 950, 62_500)] == ["0:00.0", "0:00.9", "1:02.5"]


async def test_a_picture_is_described_or_asked_about(
    start_gateway: StartGateway, tmp_path: Path, capsys: Capture
) -> None:
    gateway = await start_gateway(beholder())
    picture = tmp_path / "picture.dat"  # the name does not matter
    picture.write_bytes(still(texture(48, 64), "mjpeg"))
    assert await run("watch", str(picture), "--url", gateway.ws_url) == 0
    words = ["watch", str(picture), "--ask", "What?", "--ask", "Where?", "--url", gateway.ws_url]
    assert await run(*words) == 0
    out, err = lines_of(capsys)
    assert out == [
        "None of 1 image and 0 windows",
        *("> What?", "What? of 1 image and 0 windows"),
        *("> Where?", "Where? of 1 image and 0 windows"),
    ]
    assert err == []


async def test_a_whole_clip_is_shown_at_once(
    start_gateway: StartGateway, clip: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start_gateway(beholder())
    timeline = tmp_path / "t.jsonl"
    words = ["watch", str(clip), "--whole", "--ask", "What?", "--url", gateway.ws_url]
    assert await run(*words, "--timeline", str(timeline)) == 0
    assert lines_of(capsys)[0] == ["> What?", "What? of 0 images and 1 window"]
    assert '"video.sent"' in timeline.read_text()
    monkeypatch.setattr("duplex.cli.look.MOST_BYTES", 3_500)
    assert await run(*words) == 0
    assert lines_of(capsys)[0] == ["> What?", "What? of 0 images and 12 windows"]
    monkeypatch.setattr("duplex.cli.look.MOST_BYTES", 300)
    assert await run(*words) == 2
    assert "leave --whole out" in lines_of(capsys)[1][-1]


async def test_a_model_that_says_nothing_unasked_is_asked_in_the_end(
    start_gateway: StartGateway, clip: Path, capsys: Capture
) -> None:
    gateway = await start_gateway(beholder())
    words = ["watch", str(clip), "--speed", "max", "--window-ms", "800", "--url", gateway.ws_url]
    assert await run(*words) == 0
    assert lines_of(capsys)[0] == ["     –  None of 0 images and 3 windows"]


async def test_options_are_for_a_gateway_that_is_started(clip: Path, capsys: Capture) -> None:
    words = ["watch", str(clip), "--option", "mage-vl.model=x", "--url", "ws://127.0.0.1:1"]
    assert await run(*words) == 2
    assert "--option is for a gateway that is started here" in lines_of(capsys)[1][0]


# --- talk ------------------------------------------------------------------------------------------


async def test_talk_prints_both_sides_and_writes_what_was_heard(
    start_gateway: StartGateway, recording: Path, tmp_path: Path, capsys: Capture
) -> None:
    gateway = await start_gateway(listener(["how are you", "and now"], answer_ms=400))
    out_file = tmp_path / "heard.wav"
    words = ["talk", "--wav", str(recording), str(recording), "-o", str(out_file)]
    assert await run(*words, "--timeline", str(tmp_path / "t.jsonl"), "--url", gateway.ws_url) == 0
    out, err = lines_of(capsys)
    assert out == [
        "you:    how are you",
        "agent:  You said: how are you",
        "you:    and now",
        "agent:  You said: and now",
    ]
    assert [line.endswith("question.wav: 0.3 s") for line in err] == [True, True, False]
    assert err[-1].startswith(f"{out_file}: ")
    assert err[-1].endswith(" s of what was heard")
    heard, rate = soundfile.read(out_file)
    assert (np.abs(heard) > 0.05).sum() / rate > 0.6
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text("utf-8").splitlines()]
    assert sum(row["ms"] for row in rows if row["kind"] == "audio.sent") > 700


async def test_talk_tells_what_an_interrupted_answer_was_heard_to_say(
    start_gateway: StartGateway, tmp_path: Path, capsys: Capture
) -> None:
    gateway = await start_gateway(listener(["read", "stop"], answer_ms=6000))
    soundfile.write(
        tmp_path / "a.wav", np.concatenate([loud(300), silence(1500), loud(300), silence(300)]), 16000
    )
    assert (
        await run("talk", "--wav", str(tmp_path / "a.wav"), "--silence", "0.3", "--url", gateway.ws_url) == 0
    )
    out, _ = lines_of(capsys)
    assert out[0] == "you:    read"
    assert out[1].startswith("agent:  ")
    assert "interrupted after 1." in out[1]
    assert out[2] == "you:    stop"


async def test_talk_goes_on_when_nothing_was_understood(
    start_gateway: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(talk, "NOTICE_S", 0.3)
    gateway = await start_gateway(listener([]))
    soundfile.write(tmp_path / "a.wav", silence(200), 16000)
    assert await run("talk", "--wav", str(tmp_path / "a.wav"), "--url", gateway.ws_url) == 0
    assert lines_of(capsys)[0] == []


# --- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["say", "hi", "-o", "{tmp}/a.xyz"], 2, "unknown sound format"),
        (["say", "hi", "-o", "{tmp}/no/a.wav"], 1, "cannot be written"),
        (["say", " ", "-o", "{tmp}/a.wav"], 2, "there is no text to say"),
        (["say", "hi", "-o", "{tmp}/a.wav", "--model", "nonsense"], 2, "no adapter 'nonsense'"),
        (["say", "hi", "-o", "{tmp}/a.wav", "--model", "no_such_module:create"], 2, "no_such_module"),
        (["say", "hi", "-o", "{tmp}/a.wav", "--url", "ftp://x"], 2, "not an address"),
        (["say", "hi", "-o", "{tmp}/a.wav", "--url", "ws://h:99999"], 2, "not an address"),
        (["say", "hi", "-o", "{tmp}/a.wav", "--url", "ws://127.0.0.1:1"], 1, "no connection"),
        (["watch", "{tmp}/none.mp4"], 2, "no such file"),
        (["watch", "{tmp}"], 2, "is a folder"),
        (["watch", "{tmp}/text.txt"], 2, "not a video"),
        (["watch", "{tmp}/text.txt", "--window-ms", "1"], 2, "--window-ms"),
        (["watch", "{tmp}/text.txt", "--window-ms", "nan"], 2, "--window-ms"),
        (["watch", "{tmp}/text.txt", "--ask", " "], 2, "--ask without a question"),
        (["talk", "--wav", "{tmp}/none.wav"], 2, "no such file"),
        (["talk", "--wav", "{tmp}/noise.wav"], 2, "not a recording"),
        (["serve", "--config", "{tmp}/none.toml"], 2, "cannot read the configuration file"),
        (["serve", "--config", "{tmp}/key.toml"], 2, "unknown configuration key 'prot'"),
        (["serve", "--config", "{tmp}/type.toml"], 2, "port"),
        (["serve", "--option", "colour=red"], 2, "must be ADAPTER.KEY=VALUE"),
        (["serve", "--port", "70000"], 2, "port must be"),
        (["serve", "--adapter", "nonsense"], 2, "no adapter 'nonsense'"),
        (["serve", "--adapter", SCRIPTED, "--option", f"{SCRIPTED}.colour=1"], 2, "colour"),
        (["serve", "--adapter", "json:loads"], 1, "cannot be loaded"),
        (["demo", "--out", "{tmp}/text.txt"], 1, "cannot be made"),
    ],
)
def test_bad_input_is_told_in_one_line(
    tmp_path: Path, capsys: Capture, words: list[str], code: int, says: str
) -> None:
    (tmp_path / "text.txt").write_text("not media " * 500)
    (tmp_path / "noise.wav").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "key.toml").write_text("prot = 1\n")
    (tmp_path / "type.toml").write_text('port = "many"\n')
    assert main([word.replace("{tmp}", str(tmp_path)) for word in words]) == code
    out, err = lines_of(capsys)
    assert out == []
    assert len(err) == 1
    assert err[0].startswith(f"duplex {words[0]}: ")
    assert says in err[0]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use_is_named(taken_port: int, capsys: Capture) -> None:
    assert main(["serve", "--adapter", SCRIPTED, "--port", str(taken_port)]) == 1
    (line,) = lines_of(capsys)[1]
    assert f"cannot listen on 127.0.0.1:{taken_port}" in line
