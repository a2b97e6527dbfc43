"""`qwen3-tts`: Qwen3-TTS on the frame engine, as an adapter. The models, and torch, are in workers.

It speaks for the speech endpoints, and in sessions it reads the client's text aloud.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any, Final

import msgspec

from duplex.adapters.base import AdapterInfo, NotConfigured
from duplex.adapters.engine.client import Engine, EngineSettings, WorkerSpec
from duplex.adapters.health import Figure
from duplex.adapters.qwen3_tts.config import CodecConfig, TtsConfig, read_codec_config, read_config
from duplex.adapters.qwen3_tts.face import QwenSpeech, TextLayout
from duplex.adapters.qwen3_tts.job import Sampling
from duplex.adapters.qwen3_tts.options import ModelOptions, read_options
from duplex.adapters.qwen3_tts.rules import Rules
from duplex.adapters.qwen3_tts.session import ReadingSession
from duplex.adapters.qwen3_tts.utterances import LEAST_POSITIONS
from duplex.adapters.qwen3_tts.weights import find_checkpoint
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Modality, OpenSession
from duplex.speech.profiles import load_profiles

log = logging.getLogger("duplex.adapters")

FACTORY: Final = "duplex.adapters.qwen3_tts.model:load"
"""Makes the model in a worker."""
_PACKAGES = ("torch", "tokenizers")


class TtsOptions(ModelOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the adapter, `[adapters.qwen3-tts]`: those of a worker's model, and these.

    Attributes:
        id: the model id that clients name.
        devices: one worker each, in place of `device`.
        voice: voice of requests that name none; None: the checkpoint's first.
        custom_voice_dir: folder of precomputed voices that this model has, also in sessions.
        text_layout: where a text goes that is there when a request begins: before the first frame ("whole")
            or beside the frames ("streaming"); "auto" is the reference's choice, streaming for cloned voices.
            "whole" waits for the end of texts that come in pieces.
        temperature, top_k, repetition_penalty: of the talker's draws; None: the checkpoint's.
        start_timeout_s: how long loading may take.
        hang_s: a worker that is silent for so long is ended and started again. On the CPU nothing is said
            during a prefill or a decode, and one of a full-size model can take many seconds.
    """

    id: str = "qwen3-tts"
    devices: tuple[str, ...] = ()
    voice: str | None = None
    custom_voice_dir: str | None = None
    text_layout: TextLayout = "auto"
    temperature: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    start_timeout_s: float = 600.0
    hang_s: float = 10.0


class QwenTts:
    """The adapter: one checkpoint, on one worker or more."""

    def __init__(self, options: TtsOptions, folder: Path, config: TtsConfig, codec: CodecConfig) -> None:
        stored = load_profiles(Path(options.custom_voice_dir)) if options.custom_voice_dir else {}
        self.options = options
        self.rules = Rules(config, voice=options.voice, stored=stored)
        self.engine = Engine(
            options.id,
            [WorkerSpec(factory=FACTORY, options=worker) for worker in _workers(options, folder)],
            EngineSettings(start_timeout_s=options.start_timeout_s, hang_s=options.hang_s),
        )
        self.speech = QwenSpeech(
            self.engine,
            self.rules,
            sample_rate=codec.output_sample_rate,
            frame_samples=codec.decode_upsample_rate,
            positions=options.positions,
            layout=options.text_layout,
            sampling=_sampling(options, folder),
        )
        self.info = AdapterInfo(
            id=options.id,
            input_modalities=(Modality.TEXT,),
            output_modalities=(Modality.TEXT, Modality.AUDIO),
            output_sample_rate=codec.output_sample_rate,
            voices=tuple(voice.id for voice in self.rules.voices),
            description=f"Qwen3-TTS {self.rules.task}: reads text aloud.",
        )

    @property
    def healthy(self) -> bool:
        """A worker is up."""
        return self.engine.healthy

    @property
    def fault(self) -> str | None:
        """What is wrong with the workers that are down."""
        return self.engine.fault

    def figures(self) -> Iterable[Figure]:
        """The engine's, for `/metrics`."""
        return self.engine.figures()

    async def start(self) -> None:
        """Load the model in every worker.

        Raises:
            DuplexError: a worker cannot start: what its model says, or `ENGINE_DOWN`.
        """
        await self.engine.start()

    async def stop(self) -> None:
        """End the workers."""
        await self.speech.references.close()
        await self.engine.stop()

    async def open(self, request: OpenSession) -> ReadingSession:
        """A session. Raises `DuplexError` for a voice, instructions or options that the model cannot have."""
        return ReadingSession(self.speech, self.rules, request.settings)


class _Generation(msgspec.Struct, frozen=True, kw_only=True):
    """`generation_config.json`, as far as it is about drawing codes."""

    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    subtalker_dosample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0


def _sampling(options: TtsOptions, folder: Path) -> Sampling:
    """The checkpoint's own sampling, and what the options say over it."""
    path = folder / "generation_config.json"
    try:
        own = msgspec.json.decode(path.read_bytes(), type=_Generation) if path.exists() else _Generation()
    except msgspec.DecodeError as error:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"qwen3-tts: {path}: {error}", param="model") from error
    if own.top_p != 1.0 or own.subtalker_top_p != 1.0:
        log.warning("qwen3-tts: the checkpoint's top_p is not followed: codes are drawn with top_p 1")
    sampling = Sampling(
        temperature=own.temperature if own.do_sample else 0.0,
        top_k=own.top_k,
        repetition_penalty=own.repetition_penalty,
        predictor_temperature=own.subtalker_temperature if own.subtalker_dosample else 0.0,
        predictor_top_k=own.subtalker_top_k,
    )
    given = {name: getattr(options, name) for name in ("temperature", "top_k", "repetition_penalty")}
    return msgspec.structs.replace(sampling, **{name: v for name, v in given.items() if v is not None})


def _workers(options: TtsOptions, folder: Path) -> list[dict[str, Any]]:
    """The options of each worker's model."""
    # the checkpoint was found, and perhaps fetched, here: workers must not fetch it again
    own = {name: getattr(options, name) for name in ModelOptions.__struct_fields__}
    own |= {"model": str(folder.resolve()), "revision": None, "download": False}
    return [own | {"device": device} for device in options.devices or (options.device,)]


def create(options: Mapping[str, Any]) -> QwenTts:
    """The factory of entry point `qwen3-tts`.

    Raises:
        NotConfigured: there are no options.
        DuplexError: `BAD_CONFIG` for an unknown or impossible option, a checkpoint that is not there or not
            whole, voices that do not fit it.
        ImportError: a package of the extra `qwen3-tts` is missing.
    """
    if not options:
        raise NotConfigured(
            "qwen3-tts: the option model is not set: a checkpoint's folder, or its name on the hub",
            param="model",
        )
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    parsed = _parsed(options)
    if parsed.random_weights and (folder := Path(parsed.model).expanduser()).is_dir():
        pass  # the two configurations are all that is needed of it
    else:
        folder = find_checkpoint(parsed.model, revision=parsed.revision, download=parsed.download)
    return QwenTts(parsed, folder, read_config(folder), read_codec_config(folder))


def _parsed(options: Mapping[str, Any]) -> TtsOptions:
    try:
        parsed = msgspec.convert(dict(options), TtsOptions)
    except msgspec.ValidationError as error:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"qwen3-tts: {error}") from None
    read_options({name: getattr(parsed, name) for name in ModelOptions.__struct_fields__})
    checks = {
        "id": bool(parsed.id),
        "devices": all(parsed.devices),
        "positions": parsed.positions >= LEAST_POSITIONS,
        "temperature": parsed.temperature is None or 0 <= parsed.temperature < inf,
        "top_k": parsed.top_k is None or parsed.top_k >= 0,
        "repetition_penalty": parsed.repetition_penalty is None or 0 < parsed.repetition_penalty < inf,
        "start_timeout_s": parsed.start_timeout_s > 0,
        "hang_s": parsed.hang_s >= 2,  # workers speak once a second
    }
    for name, good in checks.items():
        if not good:
            words = f"qwen3-tts: {name} cannot be {getattr(parsed, name)!r}"
            raise DuplexError(ErrorCode.BAD_CONFIG, words, param=name)
    return parsed
