"""The embedded voice: hibari, a small English synthesiser that ships inside its package.

Everything here blocks for the length of one piece (a sentence of 3 s takes about 30 ms on one core) and is
safe to call from several threads; the asynchronous face runs it in a thread. Audio is float32 mono, 24 kHz.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from duplex.adapters.embedded.word_times import SpokenWord, TimedModel, align, phoneme_words, words_of
from duplex.adapters.speech import WordTime
from duplex.adapters.text import has_words, split
from duplex.core.errors import DuplexError, ErrorCode

if TYPE_CHECKING:
    from hibari import Hibari

SAMPLE_RATE: Final = 24000
MIN_SPEED: Final = 0.25
MAX_SPEED: Final = 4.0
MAX_PIECE: Final = 180
"""Characters synthesised in one step: about 12 s of speech, 150 ms of work. A cancel waits for one step."""
MAX_TEXT: Final = 128 * 1024
"""Characters of one request."""

_FRAME = SAMPLE_RATE // 200  # 5 ms
_ONSET_DB = -40.0  # below the piece's peak: hibari's lead-in lies at −45 dB and less, its onsets above
_ONSET_PAD_MS = 15
_FADE_MS = 5
_TAIL_MS = 260  # silence kept after a piece: the pause between two sentences
_MAX_PHONEMES = 300
_SHORTEST_CAP_S = 1.5
_SECONDS_PER_PHONEME = 0.35  # at speed 1; real speech has 0.06 to 0.1


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of text and its sound: float32, shape (n,). Joined texts equal the request's text."""

    text: str
    samples: NDArray[np.float32]
    truncated: bool = False
    """The sound was cut at the length that the text can have."""
    words: tuple[WordTime, ...] | None = None
    """When each word is said, from the piece's start; None when it was not asked for."""

    @property
    def duration_ms(self) -> float:
        return len(self.samples) / SAMPLE_RATE * 1000


class Speech:
    """The synthesiser, loaded once and shared by all sessions."""

    def __init__(self, voice: str = "heart", *, threads: int = 1) -> None:
        self._default = voice
        self._threads = threads
        self._voices: dict[str, Hibari] = {}
        self._timed: dict[str, TimedModel] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Load the default voice and warm it up: the first call would take 0.7 s longer.

        Raises `DuplexError(BAD_CONFIG)` when the package is missing or the voice is not installed.
        """
        voice = self._voice(None)
        # one ordinary sentence, and a word that no lexicon has, so that its reader is loaded too
        for text in ("This is a short sentence to begin with.", "Zyxquor."):
            self._synthesise(voice, text, 1.0)

    def stop(self) -> None:
        """Unload."""
        self._voices.clear()
        self._timed.clear()

    @property
    def default_voice(self) -> str:
        return self._default

    @staticmethod
    def installed_voices() -> tuple[str, ...]:
        """Voices whose weights are on this machine: "heart" is in the package, others were fetched."""
        voices = _hibari_voices()
        found = []
        for name in voices.VOICES:
            try:
                voices.voice_path(name, download_missing=False)
            except FileNotFoundError:
                continue
            found.append(name)
        return tuple(found)

    @staticmethod
    def describe(name: str) -> str:
        """A voice in words, such as "American English, female"."""
        facts = _hibari_voices().VOICES.get(name, {})
        accent, gender = facts.get("accent", ""), facts.get("gender", "")
        return f"{accent} English, {gender}" if accent else ""

    def check(self, *, voice: str | None = None, speed: float = 1.0, text: str | None = None) -> None:
        """Refuse what cannot be spoken, before any work: `DuplexError(INVALID_VALUE)` with its `param`."""
        if voice is not None and voice not in (installed := self.installed_voices()):
            raise DuplexError(
                ErrorCode.INVALID_VALUE,
                f"unknown voice {voice[:64]!r}; this model has: {', '.join(installed)}",
                param="voice",
            )
        if not MIN_SPEED <= speed <= MAX_SPEED:  # NaN fails too
            raise DuplexError(
                ErrorCode.INVALID_VALUE, f"speed must be from {MIN_SPEED:g} to {MAX_SPEED:g}", param="speed"
            )
        if text is not None and len(text) > MAX_TEXT:
            raise DuplexError(
                ErrorCode.INVALID_VALUE, f"the text is longer than {MAX_TEXT} characters", param="text"
            )

    def speak(
        self, text: str, *, voice: str | None = None, speed: float = 1.0, timed: bool = False
    ) -> Iterator[Piece]:
        """The sound of a text, sentence by sentence; long sentences in clauses. Each step blocks for one.

        Text that has no words for this voice gives pieces without samples.
        """
        self.check(voice=voice, speed=speed, text=text)
        for sentence in split(text, "sentence"):
            for part in cut(sentence):
                yield self.say(part, voice=voice, speed=speed, timed=timed)

    def say(
        self,
        text: str,
        *,
        voice: str | None = None,
        speed: float = 1.0,
        seed: int = 0,
        timed: bool = False,
    ) -> Piece:
        """The sound of one sentence or clause, in one step, with its words' times if `timed`.

        See `cut` for what is a fit length. `seed` is of the noise in it: the same gives the same samples.
        """
        name = voice or self._default
        hibari = self._voice(voice)
        if not timed:
            samples, truncated = self._synthesise(hibari, text, speed, seed=seed)
            return Piece(text=text, samples=samples, truncated=truncated)
        spoken: list[SpokenWord] = []
        timer = self._timed_model(name, hibari)
        samples, truncated = self._synthesise(hibari, text, speed, timer, spoken, seed=seed)
        words = align(words_of(text), spoken, lambda word: _read(hibari, word))
        return Piece(text=text, samples=samples, truncated=truncated, words=words)

    # --- inside -------------------------------------------------------------------------------------

    def _voice(self, name: str | None) -> Hibari:
        name = name or self._default
        with self._lock:
            voice = self._voices.get(name)
            if voice is None:
                voices = _hibari_voices()
                if name not in (installed := self.installed_voices()):
                    raise DuplexError(
                        ErrorCode.BAD_CONFIG if name in voices.VOICES else ErrorCode.INVALID_VALUE,
                        f"voice {name[:64]!r} is not installed; installed: {', '.join(installed)}",
                        param="voice",
                    )
                from hibari import Hibari

                voice = self._voices[name] = Hibari(voice=name, threads=self._threads)
            return voice

    def _timed_model(self, name: str, voice: Hibari) -> TimedModel:
        with self._lock:
            if name not in self._timed:
                self._timed[name] = TimedModel(voice.model_path, self._threads)
            return self._timed[name]

    def _synthesise(
        self,
        voice: Any,
        text: str,
        speed: float,
        timed: TimedModel | None = None,
        spoken: list[SpokenWord] | None = None,
        *,
        seed: int = 0,
    ) -> tuple[NDArray[np.float32], bool]:
        """The sound of a text, and whether it was cut; with `timed`, its words are added to `spoken`."""
        parts: list[NDArray[np.float32]] = []
        truncated = False
        sentences = _phonemes(voice, speakable(text))
        for phonemes in (step for sentence in sentences for step in _steps(sentence)):
            if not has_words(phonemes):
                continue
            found: list[SpokenWord] = []
            if timed is None:
                samples = voice.from_phonemes(phonemes, speed, seed=seed)
            else:
                samples, found = timed(voice, phonemes, speed, seed=seed)
            cap = int(SAMPLE_RATE * (_SHORTEST_CAP_S + len(phonemes) * _SECONDS_PER_PHONEME) / speed)
            truncated = truncated or len(samples) > cap
            samples = samples[:cap]
            if spoken is not None:
                start, end = sound_bounds(samples)
                before_ms = sum(map(len, parts)) / SAMPLE_RATE * 1000
                spoken += _placed(found, start / SAMPLE_RATE * 1000, end / SAMPLE_RATE * 1000, before_ms)
            parts.append(trim(samples))
        if not parts:
            return np.zeros(0, np.float32), False
        return np.concatenate(parts), truncated


def cut(sentence: str) -> list[str]:
    """One sentence in pieces that are short enough for one step, at clauses where there are any."""
    # a digit takes as long to say as a word of four letters
    limit = MAX_PIECE if sum(c.isdigit() for c in sentence) * 4 < MAX_PIECE else MAX_PIECE // 4
    if len(sentence) <= limit:
        return [sentence]
    joined: list[str] = []
    for clause in split(sentence, "clause", max_unit=limit):
        if joined and len(joined[-1]) + len(clause) <= limit:
            joined[-1] += clause
        else:
            joined.append(clause)
    return joined


def trim(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Without the silence that hibari puts before a sentence (230 to 330 ms) and most of that after it.

    The onset is found in the sound itself: the first 5 ms within 40 dB of the loudest. A pad before it keeps
    soft consonants, and short fades keep the cuts from clicking.
    """
    if len(samples) < 4 * _FRAME:
        return samples
    start, end = sound_bounds(samples)
    kept = samples[start:end].copy()
    fade = min(SAMPLE_RATE * _FADE_MS // 1000, len(kept) // 2)
    ramp = np.linspace(0.0, 1.0, fade, dtype=np.float32)
    kept[:fade] *= ramp
    kept[len(kept) - fade :] *= ramp[::-1]
    return kept


def sound_bounds(samples: NDArray[np.float32]) -> tuple[int, int]:
    """First and last sample that `trim` keeps."""
    frames = len(samples) // _FRAME
    if frames < 4:
        return 0, len(samples)
    energy = np.square(samples[: frames * _FRAME]).reshape(frames, _FRAME).mean(axis=1)
    loud = np.flatnonzero(energy >= energy.max() * 10 ** (_ONSET_DB / 10))
    pad = SAMPLE_RATE * _ONSET_PAD_MS // 1000
    start = max(0, int(loud[0]) * _FRAME - pad)
    end = min(len(samples), (int(loud[-1]) + 1) * _FRAME + SAMPLE_RATE * _TAIL_MS // 1000)
    return start, end


def _placed(
    words: list[SpokenWord], start_ms: float, end_ms: float, before_ms: float
) -> Iterator[SpokenWord]:
    """Words of a sound of which only `start_ms` to `end_ms` is kept, behind `before_ms` of other sound."""
    for word in words:
        if word.start_ms < end_ms:
            yield SpokenWord(
                phonemes=word.phonemes,
                start_ms=before_ms + max(0.0, word.start_ms - start_ms),
                end_ms=before_ms + max(0.0, min(word.end_ms, end_ms) - start_ms),
            )


def _read(voice: Any, word: str) -> list[str]:
    """How the voice reads one word by itself."""
    return [part for phonemes in _phonemes(voice, speakable(word)) for part in phoneme_words(phonemes)]


_LINK = re.compile(r"!?\[([^\]\n]*)\]\([^)\n]*\)")
_URL = re.compile(r"https?://(?:www\.)?([^\s/?#]+)\S*")
_FENCE = re.compile(r"```[^\n]*\n?|~~~[^\n]*\n?")
_LINE_START = re.compile(r"(?m)^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?|[-*+•][ \t]+)")
_TIMES = re.compile(r"(?<=\d)\s*\*\s*(?=\d)")
_LONG_NUMBER = re.compile(r"\d{16,}")  # read digit by digit: hibari has no names for such numbers
_MARKS = re.compile(r"[*`~|]+|\b_+|_+\b")


def speakable(text: str) -> str:
    """The text as it should be read aloud: Markdown, links and symbols that are not words are taken away.

    Numbers, dates, money, units and abbreviations are the synthesiser's own business: it reads them well.
    """
    text = _FENCE.sub(" ", text)
    text = _LINK.sub(r"\1", text)
    text = _URL.sub(r"\1", text)
    text = _LINE_START.sub("", text)
    text = _TIMES.sub(" times ", text)
    text = _MARKS.sub(" ", text)
    text = "".join(_plain(c) if ord(c) > 127 else c for c in text)
    return _LONG_NUMBER.sub(lambda number: " ".join(number.group()), text)


def _plain(character: str) -> str:
    """Compatibility forms (①, ﬁ, Ⅳ, full-width letters) as ordinary characters, as the synthesiser's reader
    fails on some. Fractions and powers, which it reads, stay."""
    if character in "²³¼½¾":
        return character
    plain = unicodedata.normalize("NFKC", character)
    return "I" if plain == "İ" else plain


def _phonemes(voice: Any, text: str) -> list[str]:
    """Phonemes of each sentence. The reader fails on rare mixtures of symbols: then words alone count."""
    try:
        return list(voice.phonemize(text))
    except (ValueError, TypeError, LookupError, AttributeError):
        words = re.findall(r"[a-z']+|[0-9]", text.lower())
        return list(voice.phonemize(" ".join(words)))


def _steps(phonemes: str) -> Iterator[str]:
    """Phonemes in stretches of at most `_MAX_PHONEMES`, cut at spaces: a number may be very long read out."""
    while len(phonemes) > _MAX_PHONEMES:
        at = phonemes.rfind(" ", 0, _MAX_PHONEMES) + 1 or _MAX_PHONEMES
        yield phonemes[:at]
        phonemes = phonemes[at:]
    yield phonemes


def _hibari_voices() -> Any:
    try:
        from hibari import voices
    except ImportError as error:
        raise DuplexError(
            ErrorCode.BAD_CONFIG,
            "the embedded voice needs the hibari-tts package: pip install 'duplex-gateway[embedded]'",
        ) from error
    return voices
