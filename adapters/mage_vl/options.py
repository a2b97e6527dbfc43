"""The adapter's options: `[adapters.mage-vl]`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, Literal

import msgspec

from duplex.adapters.base import NotConfigured
from duplex.adapters.engine.language import SEEDS
from duplex.adapters.mage_vl.windows.backends import WindowOptions
from duplex.core.errors import DuplexError, ErrorCode

PROMPT: Final = "Please describe the video content in detail based on the provided information."
"""What the published model is asked for a comment."""
NOT_CONFIGURED: Final = (
    "mage-vl: neither model is set (a checkpoint's folder, or its name on the hub) nor remote "
    "(a server that has it)"
)
MOST_WINDOWS: Final = 64
"""Windows that a session keeps at most."""
_MIB = 1024 * 1024


class RemoteOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[adapters.mage-vl.remote]`: an OpenAI-compatible server that decodes.

    Attributes:
        url: its address, such as `http://cluster:8000/v1`.
        model: the name of the model there; None: the first that it lists.
        api_key: for its bearer header; None: the environment's `DUPLEX_LLM_API_KEY`.
        context_tokens: prompt and answer together; None: what the server tells.
        image_tokens: what one image is counted as, for the context; None: one for each 32 × 32 pixels.
        required: without the server the gateway does not start; else it starts, and is ready once the server
            is.
        silent_s: the server's longest silence.
        stalled_s: its longest time without a word, in which it may say that it is there.
        extra: more fields of each request.
    """

    url: str
    model: str | None = None
    api_key: str | None = None
    context_tokens: int | None = None
    image_tokens: int | None = None
    required: bool = True
    silent_s: float = 60.0
    stalled_s: float = 120.0
    extra: dict[str, Any] = {}


class VoiceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[adapters.mage-vl.speech]`: what speaks the words. A bare name is `adapter` alone.

    Attributes:
        adapter: an installed speech adapter, or `module:factory`.
        voice: one of its voices; None: its default.
        language, instructions: of each utterance.
        options: the adapter's own.
    """

    adapter: str
    voice: str | None = None
    language: str = "Auto"
    instructions: str = ""
    options: dict[str, Any] = {}


class MageOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the adapter. `model` or `remote` must be given.

    Attributes:
        id: the model id that clients name.
        model: a checkpoint's folder, or its name on the hub.
        revision: of a name on the hub.
        download: fetch it if it is not in the hub's cache.
        device: where the eye (vision encoder and gate) runs: "auto", "cpu", "cuda", "cuda:1" …
        dtype: of the vision encoder; None: bfloat16 on a GPU, float32 on the CPU. The gate is float32.
        gate: the model decides by itself when to speak. Off: only when asked. With `remote` the gate
            needs `model` too: the eye runs here.
        backend: how windows become images: sampled frames, canvases from the codec's own side information,
            or canvases made by the package codec-video-prep. None: "codec", and "frames" with `remote`.
        input: the backend's own options, see `WindowOptions`.
        prompt: what a comment is asked with.
        windows: most windows in the prompt of a comment.
        question_windows: most windows in the prompt of an answer.
        history_mb: MiB of seen windows that a session keeps.
        history_items: items of the conversation that go with a question.
        max_new_tokens: most tokens of a comment or an answer.
        temperature, seed: of the draws; 0 takes the likeliest token.
        answer_wait_s: how long an answer waits for windows before the question to be looked at.
        preparers: processes that prepare windows, for all sessions; None: half as many as there are cores,
            from one to eight; 0: none, this process does it, in `threads`.
        threads: that make JPEGs for a server, and prepare windows without `preparers` or with `cv-preinfer`;
            0: one for each core, at most four.
        eye_threads: torch's threads of an eye on the CPU; None: torch's choice.
        engine: vLLM's own engine arguments, by their names.
        remote: decode on a server instead.
        speech: speak the words, see `VoiceOptions`.
        start_timeout_s: how long loading may take.
        hang_s, decoder_hang_s: an eye, or a decoder, that is silent for so long is ended and started again.
    """

    id: str = "mage-vl"
    model: str | None = None
    revision: str | None = None
    download: bool = False
    device: str = "auto"
    dtype: Literal["bfloat16", "float32"] | None = None
    gate: bool | None = None
    backend: Literal["frames", "codec", "cv-preinfer"] | None = None
    input: dict[str, Any] = {}
    prompt: str = PROMPT
    windows: int = 4
    question_windows: int = 8
    history_mb: int = 256
    history_items: int = 6
    max_new_tokens: int = 80
    temperature: float = 0.0
    seed: int | None = None
    answer_wait_s: float = 10.0
    preparers: int | None = None
    threads: int = 0
    eye_threads: int | None = None
    engine: dict[str, Any] = {}
    remote: RemoteOptions | None = None
    speech: str | VoiceOptions | None = None
    start_timeout_s: float = 600.0
    hang_s: float = 30.0
    decoder_hang_s: float = 60.0

    @property
    def voice(self) -> VoiceOptions | None:
        """Who speaks; None: nobody."""
        return VoiceOptions(adapter=self.speech) if isinstance(self.speech, str) else self.speech

    @property
    def looks(self) -> bool:
        """The eye runs here."""
        return self.remote is None or (self.model is not None and self.gate is not False)

    @property
    def gated(self) -> bool:
        """The gate runs."""
        return self.looks and self.gate is not False

    @property
    def window_options(self) -> WindowOptions:
        """How windows become images. Raises `DuplexError(BAD_CONFIG)`: an unknown name, a wrong value."""
        backend = self.backend or ("codec" if self.remote is None else "frames")
        try:
            return msgspec.convert({**self.input, "backend": backend}, WindowOptions)
        except msgspec.ValidationError as error:
            raise _bad(f"input: {error}", "input") from None

    @property
    def workers(self) -> int:
        """Threads that do what `threads` says."""
        return self.threads or min(4, os.cpu_count() or 1)

    @property
    def limits(self) -> Limits:
        """What a session is held to."""
        return Limits(
            prompt=self.prompt,
            windows=self.windows,
            question_windows=self.question_windows,
            kept_windows=max(self.windows, self.question_windows),
            history_bytes=self.history_mb * _MIB,
            history_items=self.history_items,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            seed=self.seed,
            answer_wait_s=self.answer_wait_s,
        )


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a session is held to, see `MageOptions`."""

    prompt: str = PROMPT
    windows: int = 4
    question_windows: int = 8
    kept_windows: int = 8
    history_bytes: int = 256 * _MIB
    history_items: int = 6
    max_new_tokens: int = 80
    temperature: float = 0.0
    seed: int | None = None
    answer_wait_s: float = 10.0


def read_options(options: Mapping[str, Any]) -> MageOptions:
    """The options of a mapping.

    Raises:
        NotConfigured: neither `model` nor `remote` is given.
        DuplexError: `BAD_CONFIG`: an unknown name or an impossible value.
    """
    try:
        read = msgspec.convert(dict(options), MageOptions)
    except msgspec.ValidationError as error:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"mage-vl: {error}") from None
    if read.model is None and read.remote is None:
        raise NotConfigured(NOT_CONFIGURED, param="model")
    _check(read)
    return read


def _check(read: MageOptions) -> None:
    windows = f"is from 1 to {MOST_WINDOWS}"
    rules: tuple[tuple[str, bool, str], ...] = (
        ("id", bool(read.id), "is a name"),
        ("prompt", bool(read.prompt.strip()), "has words"),
        ("windows", 1 <= read.windows <= MOST_WINDOWS, windows),
        ("question_windows", 1 <= read.question_windows <= MOST_WINDOWS, windows),
        ("history_mb", read.history_mb >= 1, "is 1 or more"),
        ("history_items", read.history_items >= 0, "is 0 or more"),
        ("max_new_tokens", read.max_new_tokens >= 1, "is 1 or more"),
        ("temperature", 0 <= read.temperature <= 2, "is from 0 to 2"),
        ("seed", read.seed is None or SEEDS[0] <= read.seed <= SEEDS[1], "has 64 bits"),
        ("answer_wait_s", isfinite(read.answer_wait_s) and read.answer_wait_s > 0, "is above 0"),
        ("preparers", read.preparers is None or 0 <= read.preparers <= 64, "is from 0 to 64"),
        ("threads", read.threads >= 0, "is 0 or more"),
        ("eye_threads", read.eye_threads is None or read.eye_threads >= 1, "is 1 or more"),
        ("start_timeout_s", read.start_timeout_s > 0, "is above 0"),
        ("hang_s", read.hang_s >= 2, "is 2 or more"),
        ("decoder_hang_s", read.decoder_hang_s >= 2, "is 2 or more"),
    )
    for name, good, words in rules:
        if not good:
            raise _bad(f"{name} {words}, not {getattr(read, name)!r}", name)
    if "backend" in read.input:
        raise _bad("backend is an option of its own, not one of input", "input")
    made = read.window_options
    if read.remote is not None:
        if read.engine:
            raise _bad(
                "engine is for a model that decodes here: with remote the server has its own", "engine"
            )
        if made.backend != "frames":
            raise _bad(f"a server is shown frames: backend {made.backend!r} cannot go with remote", "backend")
        if read.gate and read.model is None:
            raise _bad("the gate runs here and needs model, a checkpoint's folder", "gate")
        for name, least in (("context_tokens", 64), ("image_tokens", 1), ("silent_s", 1), ("stalled_s", 1)):
            value = getattr(read.remote, name)
            if value is not None and not value >= least:  # nor NaN
                raise _bad(f"remote.{name} is {least} or more, not {value!r}", f"remote.{name}")


def _bad(message: str, param: str) -> DuplexError:
    return DuplexError(ErrorCode.BAD_CONFIG, f"mage-vl: {message}", param=param)
