"""The command line: which commands and flags there are. Cheap: it loads no model, no media library."""

from __future__ import annotations

import argparse
import types
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

ADAPTER_FLAGS: Final = {
    "llm_url": ("embedded-voice", "URL", "replies come from this OpenAI-compatible chat endpoint"),
    "llm_model": ("embedded-voice", "NAME", "the model to ask for at that endpoint"),
}
"""Flags that are an adapter's option: the adapter, the value's name, the words."""

_HELP: Final = {
    "host": "address to listen on",
    "port": "port to listen on; 0 takes a free one",
    "adapter": "model to serve: an installed name or module:factory; repeat for more (default: all)",
    "default_model": "model of a client that names none",
    "default_video_model": "model of /v1/mage-vl/duplex",
    "auth_token": "bearer token that clients must send",
    "max_sessions": "sessions at one time",
    "max_message_bytes": "largest message of a client",
    "max_errors": "bad messages in a row that end a session",
    "idle_timeout_s": "a session without activity ends after this",
    "config_timeout_s": "a client that must configure its session first has this long",
    "ping_interval_s": "time between keepalive pings",
    "ping_timeout_s": "a ping unanswered for this long ends the connection",
    "resume_grace_s": "a client that vanished may come back within this",
    "resume_hold_s": "what is being said waits this long for a client that vanished",
    "redis_url": "gateways find each other's sessions there",
    "advertised_url": "how clients reach this very gateway, behind a balancer too: wss://…",
    "journal_s": "a client that comes back is told what it missed within this",
    "journal_bytes": "bytes of sent messages that are kept for one client",
    "close_grace_s": "what runs may take this long to finish after a close",
    "drain_grace_s": "what runs may take this long to finish after SIGTERM",
    "response_stall_s": "a response that yields nothing for this long fails",
    "abort_timeout_s": "a model that does not stop within this loses its session",
    "slow_reader_timeout_s": "a client that does not read for this long loses its session",
    "max_queue_bytes": "bytes that may wait for one client",
    "max_queue_audio_s": "audio that may wait for one client",
    "encoder_threads": "threads that encode audio",
    "window_history": "video windows that a session keeps",
    "open_timeout_s": "a model that takes longer to open a session refuses it",
    "speaker_samples_dir": "folder of uploaded voices",
    "speaker_max_uploaded": "uploaded voices that are kept",
    "custom_voice_dir": "folder of voices that were prepared ahead",
    "ref_audio_dir": "folder that reference audio may be read from by file:// address",
    "ref_audio_hosts": "host that reference audio may be fetched from; repeat for more",
    "max_speech_requests": "speech requests at one time",
    "log_level": "how much is logged",
}


def build_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser for `argv`: all commands, and the flags of the one that it names."""
    parser = argparse.ArgumentParser(
        prog="duplex",
        description="Realtime full-duplex streaming gateway for speech, vision and omni models.",
        epilog="Begin with `duplex demo`. `duplex COMMAND --help` tells a command's flags.",
    )
    parser.add_argument("--version", action="version", version=f"duplex {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # the first word that is no flag: no flag of `duplex` itself takes a value
    named = next((word for word in argv if not word.startswith("-")), None)
    for name, words, description, fill in _COMMANDS:
        command = commands.add_parser(name, help=words, description=description)
        if name == named:
            fill(command)
    return parser


_SERVE = (
    "Run a gateway. Settings come from the defaults, then --config FILE (TOML), then the environment"
    " (DUPLEX_PORT=…), then flags; the later wins."
)
_DEMO = (
    "Start a gateway on a free port and use it as any client would: cut a spoken passage mid-word, hold a"
    " short spoken exchange with an interruption, have a clip commented on. Sound files, a timeline and its"
    " picture are written into a folder, the measured times are printed."
)
_SAY = "Speak TEXT, or what comes on standard input, into a sound file."
_WATCH = (
    "Stream a clip to the commentary model as a live camera would, and print what it says, when it says it;"
    " or show it a picture, or with --whole a whole clip, and print its description or its answers."
)
_VOICES = (
    "Compute voices ahead for a Qwen3-TTS Base model: into a folder that custom_voice_dir names."
    " `duplex voices TOOL --help` tells a tool's flags."
)
_TALK = "Talk with the agent through the microphone, or stream recordings to it in real time."


def _serve(parser: argparse.ArgumentParser) -> None:
    import msgspec

    from duplex.config import ServerConfig

    parser.add_argument("--config", metavar="FILE", help="settings in TOML")
    hints = get_type_hints(ServerConfig)
    for field in msgspec.structs.fields(ServerConfig):
        if field.name == "adapters":
            continue
        flag = "--" + field.name.replace("_", "-")
        words = _HELP.get(field.name, "")
        options = _value_options(hints[field.name])
        if field.name.endswith("_s"):
            options["metavar"] = "S"
        if field.default not in (None, (), msgspec.NODEFAULT):
            words = f"{words} (default: {field.default})".strip()
        parser.add_argument(flag, dest=field.name, default=None, help=words, **options)
    _options(parser)
    _adapter_flags(parser)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="ADAPTER.KEY=VALUE",
        help="an option of an adapter; the value is TOML, or a plain string; repeat for more",
    )


def _adapter_flags(parser: argparse.ArgumentParser) -> None:
    for name, (_, metavar, words) in ADAPTER_FLAGS.items():
        parser.add_argument("--" + name.replace("_", "-"), metavar=metavar, help=words)


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="DIR", default="duplex-demo", help="where the files go (default: ./duplex-demo)"
    )
    parser.add_argument("--no-plot", action="store_true", help="do not draw timeline.png")


def _say(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", nargs="?", help="what to say (default: standard input)")
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        required=True,
        help="sound file: .wav, .flac, .mp3, .opus, .ogg, .aac",
    )
    parser.add_argument("--voice", help="one of the model's voices")
    parser.add_argument("--sample-rate", type=int, metavar="HZ", help="of the file (default: 24000)")
    _connection(parser)


def _watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("clip", metavar="CLIP", help="any video file, mp4, webm, mkv …; or a picture")
    parser.add_argument(
        "--whole", action="store_true", help="show the whole clip at once, and have it described or --ask"
    )
    parser.add_argument("--ask", metavar="QUESTION", action="append", help="ask about what is seen")
    parser.add_argument(
        "--ask-at", metavar="S", type=float, action="append", help="when, in s of the clip (default: its end)"
    )
    parser.add_argument(
        "--speed",
        choices=("realtime", "max"),
        default="realtime",
        help="how fast to send (default: realtime)",
    )
    parser.add_argument(
        "--window-ms", type=float, help="length of a window (default: 500 for the embedded model, else 1000)"
    )
    parser.add_argument("--timeline", metavar="FILE", help="write all events as JSON lines")
    _connection(parser)


def _talk(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wav",
        metavar="FILE",
        nargs="+",
        help="stream these recordings in real time instead of the microphone",
    )
    parser.add_argument("-o", "--out", metavar="FILE", help="write what was heard of the agent")
    parser.add_argument(
        "--silence",
        metavar="S",
        type=float,
        default=None,
        help="silence after each recording (default: until the agent has finished)",
    )
    parser.add_argument("--instructions", help="how the agent should answer")
    parser.add_argument("--voice", help="one of the model's voices")
    parser.add_argument("--timeline", metavar="FILE", help="write all events as JSON lines")
    _connection(parser)
    _adapter_flags(parser)


def _voices(parser: argparse.ArgumentParser) -> None:
    tools = parser.add_subparsers(dest="tool", required=True, metavar="TOOL")
    words = "voices from recordings"
    precompute = tools.add_parser("precompute", help=words, description=f"Compute {words}.")
    precompute.add_argument(
        "--model", required=True, metavar="MODEL", help="Base checkpoint: a folder, or its name on the hub"
    )
    precompute.add_argument("--out", required=True, metavar="DIR", help="folder of the voices")
    precompute.add_argument(
        "--mode",
        choices=("icl", "xvec"),
        help="icl: with the recording itself as an example, needs transcripts; xvec: the embedding alone"
        " (default: icl where there is a transcript)",
    )
    precompute.add_argument("--device", metavar="DEVICE", default="cpu", help="where (default: cpu)")
    precompute.add_argument(
        "recording",
        metavar="NAME=FILE[:TRANSCRIPT]",
        nargs="+",
        help="a voice's name, its recording, and what that says",
    )
    words = "a voice between voices"
    interpolate = tools.add_parser("interpolate", help=words, description=f"Make {words} of a folder.")
    interpolate.add_argument("--dir", required=True, metavar="DIR", help="folder of the voices")
    interpolate.add_argument("--out-name", required=True, metavar="NAME", help="name of the new voice")
    interpolate.add_argument(
        "voice", metavar="NAME=WEIGHT", nargs="+", help="a voice and its share; shares need not add up to 1"
    )
    for tool in (precompute, interpolate):
        tool.add_argument("--replace", action="store_true", help="write over a voice of that name")


def _connection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", help="a running gateway, such as ws://127.0.0.1:8600 (default: $DUPLEX_URL, or start one)"
    )
    parser.add_argument("--token", help="its bearer token (default: $DUPLEX_TOKEN)")
    parser.add_argument("--model", help="one of its models")
    _options(parser)


_COMMANDS: Final[tuple[tuple[str, str, str, Callable[[argparse.ArgumentParser], None]], ...]] = (
    ("serve", "run a gateway", _SERVE, _serve),
    ("demo", "see it all work, in a minute", _DEMO, _demo),
    ("say", "turn text into a sound file", _SAY, _say),
    ("watch", "have a clip commented on", _WATCH, _watch),
    ("talk", "talk with the agent", _TALK, _talk),
    ("voices", "compute voices ahead", _VOICES, _voices),
)


def _value_options(hint: Any) -> dict[str, Any]:
    """argparse keywords for a setting of this type."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    origin = get_origin(hint)
    if origin is Literal:
        return {"choices": get_args(hint)}
    if origin is tuple:
        return {"action": "append", "metavar": "NAME"}
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if hint in (int, float):
        return {"type": hint, "metavar": "N"}
    return {"metavar": "VALUE"}


def _version() -> str:
    try:
        return version("duplex-gateway")
    except PackageNotFoundError:
        return "unknown"


def flags_of(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of `ServerConfig` that flags of `duplex serve` gave, by name."""
    from duplex.config import ServerConfig

    names: Sequence[str] = ServerConfig.__struct_fields__
    given = {name: getattr(args, name, None) for name in names if name != "adapters"}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v is not None}
