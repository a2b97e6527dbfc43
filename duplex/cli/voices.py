"""`duplex voices`: voices of Qwen3-TTS Base checkpoints, computed ahead."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from duplex.adapters.speech import ReferenceAudio
from duplex.cli.errors import CommandError, UsageError
from duplex.cli.gateway import in_words, loading


def run(args: argparse.Namespace) -> int:
    """Write voices into a folder for `custom_voice_dir`."""
    try:
        with in_words():
            return _precompute(args) if args.tool == "precompute" else _interpolate(args)
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error


def _precompute(args: argparse.Namespace) -> int:
    from duplex.speech.profiles import save_profile, voice_key
    from duplex.speech.voices import check_name

    recordings = [_recording(words, args.mode) for words in args.recording]
    names = [check_name(name) for name, _, _ in recordings]
    folder = Path(args.out)
    if len({voice_key(name) for name in names}) < len(names):
        raise UsageError("two recordings have one name")
    for name in names:
        _check_free(folder, name, replace=args.replace)
    heard = [_heard(path) for _, path, _ in recordings]
    try:
        from duplex.adapters.qwen3_tts.precompute import VoiceEncoder
        from duplex.adapters.qwen3_tts.weights import find_checkpoint
    except ImportError as error:
        raise UsageError(f"needs {error.name!r}: pip install 'duplex-gateway[qwen3-tts]'") from error
    with loading():
        encoder = VoiceEncoder(find_checkpoint(args.model), args.device)
    for name, recording, (_, _, text) in zip(names, heard, recordings, strict=True):
        path = save_profile(folder, encoder.encode(name, recording, text), replace=args.replace)
        seconds = len(recording.samples) / recording.sample_rate
        print(f"{name}: {seconds:.1f} s, {'icl' if text is not None else 'xvec'}, {path}", file=sys.stderr)
    return 0


def _interpolate(args: argparse.Namespace) -> int:
    import numpy as np

    from duplex.adapters.qwen3_tts.blending import blend
    from duplex.adapters.speech import UploadedVoice
    from duplex.speech.profiles import load_profiles, save_profile, voice_key
    from duplex.speech.voices import check_name

    folder = Path(args.dir)
    name = check_name(args.out_name)
    known = load_profiles(folder)
    _check_free(folder, name, replace=args.replace)
    shares = [_weight(words) for words in args.voice]
    missing = [voice for voice, _ in shares if voice_key(voice) not in known]
    if missing:
        there = ", ".join(sorted(voice.name for voice in known.values())) or "none"
        raise UsageError(f"{folder} has no voice {missing[0]!r}; there are: {there}")
    embeddings = [np.asarray(known[voice_key(voice)].embedding, np.float32) for voice, _ in shares]
    blended = blend(embeddings, [weight for _, weight in shares])
    voice = UploadedVoice(name=name, embedding=tuple(blended.tolist()))
    print(f"{name}: xvec, {save_profile(folder, voice, replace=args.replace)}", file=sys.stderr)
    return 0


def _recording(words: str, mode: str | None) -> tuple[str, Path, str | None]:
    """`name=file[:transcript]`. A file may have colons in its name: the first part that is a file counts."""
    name, equals, rest = words.partition("=")
    if not (name and equals and rest):
        raise UsageError(f"{words}: must be NAME=FILE or NAME=FILE:TRANSCRIPT")
    cuts = [index for index, character in enumerate(rest) if character == ":"]
    cut = next((index for index in [*cuts, len(rest)] if Path(rest[:index]).is_file()), None)
    if cut is None:
        raise UsageError(f"{words}: there is no file {rest.partition(':')[0]}")
    text = rest[cut + 1 :].strip() or None
    if mode == "icl" and text is None:
        raise UsageError(f"{words}: mode icl needs what the recording says: {name}=FILE:TRANSCRIPT")
    return name, Path(rest[:cut]), None if mode == "xvec" else text


def _heard(path: Path) -> ReferenceAudio:
    """The recording in a file."""
    from duplex.core.errors import DuplexError
    from duplex.speech.reference import decode_reference

    try:
        return decode_reference(path.read_bytes(), param="recording")
    except DuplexError as error:
        raise CommandError(f"{path}: {error.message}") from error


def _weight(words: str) -> tuple[str, float]:
    name, _, number = words.rpartition("=")
    try:
        return name or words, float(number) if name else 1.0
    except ValueError:
        raise UsageError(f"{words}: must be NAME=WEIGHT, the weight a number") from None


def _check_free(folder: Path, name: str, *, replace: bool) -> None:
    """Told before any work is done."""
    from duplex.speech.profiles import MANIFEST, load_profiles, voice_key

    known = load_profiles(folder) if (folder / MANIFEST).exists() else {}
    if voice_key(name) in known and not replace:
        raise UsageError(f"{folder} has a voice {name} already: --replace writes over it")
