"""The parts of an adapter, from its options. What is heavy is imported here, when it is needed."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final

from duplex.adapters.engine.language import LanguageEngine
from duplex.adapters.engine.settings import EngineSettings
from duplex.adapters.engine.vllm_settings import INSTALL
from duplex.adapters.mage_vl.eyes import FrameSight, ModelSight
from duplex.adapters.mage_vl.options import MageOptions, RemoteOptions, VoiceOptions
from duplex.adapters.mage_vl.ports import Sight, Stream
from duplex.adapters.mage_vl.weights import GATE_FILE, find_checkpoint, read_checked
from duplex.adapters.mage_vl.windows.backends import wants_codec
from duplex.adapters.mage_vl.windows.pairing import Pairing
from duplex.adapters.mage_vl.windows.preparers import Preparers
from duplex.adapters.mage_vl.windows.preparing import Threads
from duplex.adapters.speech import SpeechRequest
from duplex.adapters.spoken import SpeechStage, load_speech
from duplex.core.errors import DuplexError, ErrorCode

log = logging.getLogger("duplex.adapters.mage_vl")

API_KEY_VARIABLE: Final = "DUPLEX_LLM_API_KEY"
"""Where a server's key is looked for when the option is not given."""
_DECODING = ("torch", "transformers", "vllm")


class Windows:
    """The `Backend` that the options name: windows are prepared by processes, or by threads of the pool where
    there are to be none, or where another program does the work (`cv-preinfer`)."""

    def __init__(self, options: MageOptions, pool: Executor) -> None:
        read = options.window_options
        made: Threads | Preparers
        if options.preparers == 0 or read.backend == "cv-preinfer":
            made = Threads.of(read, pool)
        else:
            made = Preparers(read, options.preparers)
        self.takes_codec = wants_codec(read)
        self._wait_s = read.side_information_wait_s
        self._made = made
        self.start, self.stop = made.start, made.stop
        self.open: Callable[[], Stream] = made.open
        self.figures = made.figures

    @property
    def healthy(self) -> bool:
        return self._made.healthy

    @property
    def fault(self) -> str | None:
        return self._made.fault

    def pairing(self) -> Pairing | None:
        return Pairing(wait_s=self._wait_s) if self.takes_codec else None


def require(options: MageOptions) -> None:
    """Raise `DuplexError(BAD_CONFIG)`, with what to install, for a package that is missing."""
    needed = dict.fromkeys(_DECODING, INSTALL)
    if options.remote is not None:
        needed = {"httpx": "pip install 'duplex-gateway[remote]'"}
        if options.looks:
            needed["torch"] = "pip install torch"
    for package, remedy in needed.items():
        if importlib.util.find_spec(package) is None:
            missing = ModuleNotFoundError(f"No module named {package!r}", name=package)
            words = f"mage-vl needs {package!r}: {remedy}"
            raise DuplexError(ErrorCode.BAD_CONFIG, words, param="model") from missing


def checkpoint(options: MageOptions) -> Path:
    """The folder of the checkpoint. Raises `DuplexError(BAD_CONFIG)`: it is not there, or not all of it."""
    assert options.model is not None
    # a checkpoint without the gate's file can answer, where nobody asked for the gate
    folder = find_checkpoint(
        options.model, revision=options.revision, download=options.download, gate=options.gate is True
    )
    read_checked(folder, gate=has_gate(options, folder))
    return folder


def has_gate(options: MageOptions, folder: Path) -> bool:
    """The gate runs."""
    return options.gate is not False and (folder / GATE_FILE).is_file()


def local_engine(options: MageOptions, folder: Path) -> LanguageEngine:
    """The decoder in vLLM's engine core, on this machine or as vLLM's own options spread it."""
    from duplex.adapters.engine.vllm_engine import VllmEngine
    from duplex.adapters.engine.vllm_settings import VllmSettings
    from duplex.adapters.mage_vl.vllm_plugin import engine_arguments

    arguments: dict[str, Any] = {**engine_arguments(folder), **options.engine}
    life = EngineSettings(start_timeout_s=options.start_timeout_s, hang_s=options.decoder_hang_s)
    settings = VllmSettings(model=str(folder), engine=arguments, life=life)
    return VllmEngine(settings, name=f"{options.id} decoder")


def remote_engine(id: str, remote: RemoteOptions) -> LanguageEngine:
    """The decoder on a server."""
    from duplex.adapters.engine.remote import RemoteEngine, RemoteSettings

    fields = {name: getattr(remote, name) for name in RemoteOptions.__struct_fields__}
    del fields["image_tokens"]
    fields["api_key"] = remote.api_key or os.environ.get(API_KEY_VARIABLE)
    return RemoteEngine(RemoteSettings(**fields), name=f"{id} decoder")


def sight(options: MageOptions, folder: Path | None, pool: Executor) -> Sight:
    """The eye: the model's in a worker, or none where a server looks."""
    if folder is None or not options.looks:
        return FrameSight(pool)
    if options.remote is not None and not has_gate(options, folder):
        log.warning("%s has no %s: the server looks, and nothing speaks unasked", folder, GATE_FILE)
        return FrameSight(pool)
    from duplex.adapters.mage_vl.sight.client import Sight as Client
    from duplex.adapters.mage_vl.sight.client import SightOptions

    gate = has_gate(options, folder)
    told = {
        "model": str(folder),
        "device": options.device,
        "dtype": options.dtype,
        "gate": gate,
        "threads": options.eye_threads,
    }
    client = Client(
        SightOptions(options={name: value for name, value in told.items() if value is not None}),
        EngineSettings(start_timeout_s=options.start_timeout_s, hang_s=options.hang_s),
        name=f"{options.id} eye",
    )
    return ModelSight(client, gate=gate, jpeg=pool if options.remote is not None else None)


def voice(options: VoiceOptions) -> SpeechStage:
    """What speaks the words."""
    request = SpeechRequest(voice=options.voice, language=options.language, instructions=options.instructions)
    return SpeechStage(load_speech(options.adapter, options.options), request)
