"""Stored voices: uploaded recordings and precomputed profiles, one `.safetensors` file each.

An uploaded voice is the recording as it came (`audio`, uint8) with its description in the file's metadata,
so a folder can be copied from host to host. Files appear whole or not at all. The precomputed ones are those
of `profiles`.

Blocking: callers run these methods off the event loop.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
import unicodedata
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from duplex.adapters.speech import UploadedVoice
from duplex.core.errors import DuplexError, ErrorCode
from duplex.speech.profiles import load_profiles, voice_file_name, voice_key, write_whole
from duplex.speech.reference import decode_reference

MAX_VOICE_BYTES: Final = 10 * 1024 * 1024
MIME_TYPES: Final = frozenset(
    {
        "audio/wav",
        "audio/x-wav",
        "audio/wave",
        "audio/vnd.wave",
        "audio/mpeg",
        "audio/mp3",
        "audio/flac",
        "audio/x-flac",
        "audio/ogg",
        "audio/opus",
        "audio/aac",
        "audio/webm",
        "audio/mp4",
        "audio/m4a",
        "audio/x-m4a",
        "video/mp4",
        "video/webm",
    }
)
MAX_WORDS: Final = 4096
"""Characters of each of the words about a voice: the list of voices repeats them all."""
_MAX_FILE_NAME: Final = 240
"""Bytes; file systems take 255."""
_NAME = re.compile(r"[^\W_][\w .-]{0,63}")


class VoiceRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the voices list says of an uploaded voice. `created_at` in Unix seconds, `file_size` in bytes."""

    name: str
    consent: str
    created_at: int
    file_size: int
    mime_type: str
    ref_text: str | None = None
    speaker_description: str | None = None


def check_name(name: str) -> str:
    """The name, if it can be a voice's: it becomes a file name, so nothing of a path may be in it."""
    name = unicodedata.normalize("NFC", name.strip())
    fits = len(voice_file_name(name).encode()) <= _MAX_FILE_NAME
    if not _NAME.fullmatch(name) or ".." in name or name.endswith(".") or not fits:
        raise DuplexError(
            ErrorCode.INVALID_VALUE,
            "name must be 1 to 64 letters, digits, spaces, or one of . _ - and begin with a letter or digit",
            param="name",
        )
    return name


class VoiceStore:
    """Uploaded voices in `folder` (None: uploads are refused), precomputed ones in `precomputed`.

    Raises `DuplexError(BAD_CONFIG)` when the precomputed folder cannot be read whole.
    """

    def __init__(self, folder: Path | None, *, most: int = 1000, precomputed: Path | None = None) -> None:
        self._folder = folder
        self._most = most
        self._lock = threading.Lock()
        self._records: dict[str, tuple[VoiceRecord, Path, str]] = {}
        self._precomputed = load_profiles(precomputed) if precomputed is not None else {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.safetensors")):
                self._scan(path)

    @property
    def uploaded(self) -> list[VoiceRecord]:
        """By name."""
        with self._lock:
            return [record for _, (record, _, _) in sorted(self._records.items())]

    @property
    def precomputed(self) -> list[str]:
        return sorted(voice.name for voice in self._precomputed.values())

    def add(
        self,
        *,
        name: str,
        consent: str,
        audio: bytes,
        mime_type: str,
        ref_text: str | None = None,
        speaker_description: str | None = None,
    ) -> tuple[VoiceRecord, bool]:
        """Store a recording. True: it is new; False: the very same upload was there (so a retry is harmless).

        Raises:
            DuplexError: `VOICE_EXISTS` when the name holds another recording, `VOICE_LIMIT`,
                `MEDIA_TOO_LARGE`, `UNSUPPORTED_FORMAT`, `INVALID_MEDIA`, `INVALID_VALUE`.
        """
        if self._folder is None:
            raise DuplexError(ErrorCode.BAD_CONFIG, "uploads are off: set SPEAKER_SAMPLES_DIR")
        name = check_name(name)
        if not consent.strip():
            raise DuplexError(ErrorCode.INVALID_VALUE, "consent must not be empty", param="consent")
        for param, words in (
            ("consent", consent),
            ("ref_text", ref_text),
            ("speaker_description", speaker_description),
        ):
            if words is not None and len(words) > MAX_WORDS:
                raise DuplexError(
                    ErrorCode.INVALID_VALUE, f"{param} has over {MAX_WORDS} characters", param=param
                )
        kind = mime_type.partition(";")[0].strip().lower()
        if kind not in MIME_TYPES:
            raise DuplexError(
                ErrorCode.UNSUPPORTED_FORMAT, f"{kind or 'no'} media type is no audio", param="audio_sample"
            )
        if len(audio) > MAX_VOICE_BYTES:
            raise DuplexError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"audio_sample has over {MAX_VOICE_BYTES} bytes",
                param="audio_sample",
            )
        decode_reference(
            audio, param="audio_sample"
        )  # what cannot be decoded is refused now, not at first use
        record = VoiceRecord(
            name=name,
            consent=consent.strip(),
            created_at=int(time.time()),
            file_size=len(audio),
            mime_type=kind,
            ref_text=ref_text or None,
            speaker_description=speaker_description or None,
        )
        digest = hashlib.sha256(audio).hexdigest()
        with self._lock:
            key = voice_key(name)
            if key in self._precomputed:
                raise DuplexError(ErrorCode.VOICE_EXISTS, f"voice {name} is a precomputed one", param="name")
            if key in self._records:
                old, _, old_digest = self._records[key]
                same = msgspec.structs.replace(record, created_at=old.created_at) == old
                if same and digest == old_digest:
                    return old, False
                raise DuplexError(
                    ErrorCode.VOICE_EXISTS, f"voice {name} exists with other content; delete it", param="name"
                )
            if len(self._records) >= self._most:
                raise DuplexError(ErrorCode.VOICE_LIMIT, f"{self._most} voices are stored; delete one")
            path = self._folder / voice_file_name(name)
            write_whole(path, _pack(record, audio, digest))
            self._records[key] = (record, path, digest)
        return record, True

    def remove(self, name: str) -> None:
        """Delete an uploaded voice. Raises `VOICE_NOT_FOUND`."""
        with self._lock:
            found = self._records.pop(voice_key(name), None)
            if found is None:
                raise DuplexError(ErrorCode.VOICE_NOT_FOUND, f"no uploaded voice {name[:64]}", param="name")
            found[1].unlink(missing_ok=True)

    def find(self, name: str) -> UploadedVoice | None:
        """The stored voice of that name, decoded; None when there is none."""
        key = voice_key(name)
        if key in self._precomputed:
            return self._precomputed[key]
        with self._lock:
            found = self._records.get(key)
        if found is None:
            return None
        record, path, _ = found
        try:
            with safe_open(path, "np") as file:
                audio = file.get_tensor("audio").tobytes()
        except FileNotFoundError:  # deleted since
            return None
        except (SafetensorError, OSError) as error:
            words = f"the file of voice {record.name} cannot be read"
            raise DuplexError(ErrorCode.VOICE_NOT_FOUND, words, param="voice") from error
        reference = decode_reference(audio, param="voice")
        return UploadedVoice(name=record.name, text=record.ref_text, reference=reference)

    def _scan(self, path: Path) -> None:
        try:
            with safe_open(path, "np") as file:
                metadata = file.metadata() or {}
            record = msgspec.json.decode(metadata["voice"], type=VoiceRecord)
            self._records[voice_key(record.name)] = (record, path, metadata["sha256"])
        except (SafetensorError, KeyError, msgspec.MsgspecError, OSError):
            return  # somebody else's file: leave it alone


def _pack(record: VoiceRecord, audio: bytes, digest: str) -> bytes:
    metadata = {"voice": msgspec.json.encode(record).decode(), "sha256": digest}
    return bytes(save({"audio": np.frombuffer(audio, np.uint8)}, metadata=metadata))
