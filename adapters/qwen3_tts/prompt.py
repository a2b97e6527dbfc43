"""What the talker reads before and while it speaks, as a description without numbers.

A row of the talker's input is a text embedding, to which in most rows a codec embedding is added. A prompt
is, in this order:

    instructions   text alone: <|im_start|>user \\n … <|im_end|> \\n, where there are any
    role           text alone: <|im_start|>assistant \\n
    tags           tts_pad with: think, think_bos, the language, think_eos (or nothink, think_bos, think_eos
                   where the language is left to the model), then the speaker, if there is one
    start          tts_bos with codec_pad
    body           the text, and for in-context cloning the reference, in one of two layouts

The text of the body is that of the reference, if any, then the one to speak, then tts_eos. Its codes are
codec_bos, then the frames of the reference, if any.

- whole: all text with codec_pad, then all codes with tts_pad. After each frame tts_pad is added.
- streaming: text and codes side by side, as far as the codes go, a text that is too short goes on as tts_pad.
  The text that is left goes one token a frame: token f is added to the talker's input after frame f.

So in the streaming layout the first frame needs but one text token, or in context as many as the reference
has frames, and text may come while audio is made. The order of ids is that of the authors' package, checked
against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from duplex.adapters.qwen3_tts.config import TalkerConfig, TtsConfig
from duplex.core.errors import DuplexError, ErrorCode

SPEAKER: Final = "speaker"
"""The codec part of a row that holds the reference's speaker embedding."""


@dataclass(frozen=True, slots=True)
class ReferenceFrame:
    """The codec part of a row that holds the sum of a reference frame's 16 embeddings."""

    index: int


class Row(NamedTuple):
    """One position of the prompt.

    `text` is a text id; `codec` an id of the talker's vocabulary, `SPEAKER` or a frame of the reference;
    None: the row is text alone.
    """

    text: int
    codec: int | Literal["speaker"] | ReferenceFrame | None = None


class ChatIds(msgspec.Struct, frozen=True, kw_only=True):
    """Text ids of the chat layout that `config.json` does not give: "user" and a line break."""

    user: int
    newline: int


class Voice(msgspec.Struct, frozen=True, kw_only=True):
    """What a prompt says besides the text to speak.

    `language` and `speaker` are keys of the talker's configuration, `instructions` text ids. `embedding`:
    there is a speaker embedding, which takes the speaker's place. In-context cloning: `reference_frames`
    frames that say `reference_text`.
    """

    language: str = "auto"
    speaker: str | None = None
    instructions: tuple[int, ...] = ()
    embedding: bool = False
    reference_text: tuple[int, ...] = ()
    reference_frames: int = 0


class Prompt:
    """The prompt of one request, completed as its text comes.

    `rows` are all positions known so far, in order; a row never changes once it is there. `text_tokens`
    counts the tokens of the text to speak. `trailing[f]` is the text id that follows frame f; past its end
    tts_pad does, once the text has `ended`.

    Raises:
        DuplexError: `VOICE_NOT_FOUND` or `INVALID_VALUE`: the checkpoint has no such speaker or language.
    """

    __slots__ = (
        "_aligned",
        "_config",
        "_size",
        "_whole",
        "ended",
        "prefix",
        "rows",
        "text_tokens",
        "trailing",
    )

    def __init__(self, config: TtsConfig, chat: ChatIds, voice: Voice, *, whole: bool) -> None:
        self._config = config
        self._whole = whole
        self.text_tokens = 0
        self.ended = False
        self.trailing: list[int] = []
        self.rows: list[Row] = [*_chat_rows(config, chat, voice.instructions), *_tag_rows(config, voice)]
        codes = range(voice.reference_frames)
        # the codec parts that text is laid beside, last one first
        self._aligned: list[int | ReferenceFrame] = [ReferenceFrame(index) for index in reversed(codes)]
        self._aligned.append(config.talker_config.codec_bos_id)
        self._size = None if whole else len(self.rows) + len(self._aligned)
        self._put(voice.reference_text)
        self.prefix: Final = len(self.rows) if self._size is None else min(len(self.rows), self._size - 1)
        """How many of the first rows are the same for every text of this voice. The last row of a prompt is
        never one of them: it leaves the hidden state that the first frame starts from."""

    @property
    def size(self) -> int | None:
        """Rows in all; None while a text in the whole layout goes on."""
        return self._size

    @property
    def complete(self) -> bool:
        """All rows are there."""
        return len(self.rows) == self._size

    def add(self, ids: Sequence[int], *, ended: bool = False) -> None:
        """More ids of the text to speak; `ended`: they are the last."""
        if self.ended:
            raise ValueError("the text has ended")
        self.text_tokens += len(ids)
        self._put(ids)
        if not ended:
            return
        self.ended = True
        self._put((self._config.tts_eos_token_id,))
        pad = self._config.tts_pad_token_id
        while self._aligned:
            self.rows.append(Row(pad, self._aligned.pop()))
        self._size = len(self.rows)

    def _put(self, ids: Iterable[int]) -> None:
        if self._whole:
            pad = self._config.talker_config.codec_pad_id
            self.rows.extend(Row(text, pad) for text in ids)
            return
        for text in ids:
            if self._aligned:
                self.rows.append(Row(text, self._aligned.pop()))
            else:
                self.trailing.append(text)


def _chat_rows(config: TtsConfig, chat: ChatIds, instructions: Sequence[int]) -> list[Row]:
    start, end, newline = config.im_start_token_id, config.im_end_token_id, chat.newline
    ids = [start, chat.user, newline, *instructions, end, newline] if instructions else []
    return [Row(text) for text in (*ids, start, config.assistant_token_id, newline)]


def _tag_rows(config: TtsConfig, voice: Voice) -> list[Row]:
    talker = config.talker_config
    pad = config.tts_pad_token_id
    language = language_id(talker, voice.language, voice.speaker)
    if language is None:
        tags = [talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id]
    else:
        tags = [talker.codec_think_id, talker.codec_think_bos_id, language, talker.codec_think_eos_id]
    rows = [Row(pad, tag) for tag in tags]
    if voice.embedding:
        rows.append(Row(pad, SPEAKER))
    elif voice.speaker is not None:
        rows.append(Row(pad, talker.spk_id[voice.speaker]))
    rows.append(Row(config.tts_bos_token_id, talker.codec_pad_id))
    return rows


def language_id(talker: TalkerConfig, language: str, speaker: str | None) -> int | None:
    """The codec id of a language's tag; None: the model is left to choose ("auto").

    A speaker of a dialect speaks it where the language is Chinese or left open.

    Raises:
        DuplexError: `VOICE_NOT_FOUND` or `INVALID_VALUE`: the checkpoint has no such speaker or language.
    """
    if speaker is not None and speaker not in talker.spk_id:
        raise DuplexError(
            ErrorCode.VOICE_NOT_FOUND,
            f"the checkpoint has no speaker {speaker!r}; it has {_names(talker.spk_id)}",
            param="voice",
        )
    dialect = talker.spk_is_dialect.get(speaker, False) if speaker is not None else False
    if isinstance(dialect, str) and language in ("auto", "chinese"):
        language = dialect
    if language == "auto":
        return None
    if language not in talker.codec_language_id:
        raise DuplexError(
            ErrorCode.INVALID_VALUE,
            f"the checkpoint does not speak {language!r}; it speaks auto, {_names(talker.codec_language_id)}",
            param="language",
        )
    return talker.codec_language_id[language]


def _names(known: Iterable[str]) -> str:
    return ", ".join(sorted(known)) or "none"
