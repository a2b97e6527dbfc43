"""The frame model of Qwen3-TTS, driven without a worker, on tiny checkpoints on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="needs the extra qwen3-tts")
pytest.importorskip("tokenizers", reason="needs the extra qwen3-tts")

from driven import OPTIONS, Driver, job_of, model_of, speak  # noqa: E402
from golden_talker import BY_NAME, golden  # noqa: E402

from duplex.adapters.qwen3_tts.codec import CodecDecoder  # noqa: E402
from duplex.adapters.qwen3_tts.config import read_codec_config  # noqa: E402
from duplex.adapters.qwen3_tts.encoder import ReferenceEncoder  # noqa: E402
from duplex.adapters.qwen3_tts.job import EncodeReference, Job, Reference, Sampling  # noqa: E402
from duplex.adapters.qwen3_tts.model import load  # noqa: E402
from duplex.adapters.qwen3_tts.speaker import SpeakerEncoder  # noqa: E402
from duplex.adapters.qwen3_tts.weights import load_weights  # noqa: E402
from duplex.core.errors import DuplexError, ErrorCode  # noqa: E402

GREEDY = Sampling(temperature=0.0, predictor_temperature=0.0)
FRAME = 1920
VOICES = ("custom_voice_streaming", "base_context_streaming", "base_context_short", "base_embedding")


class Models:
    """Warm models by golden case, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, str], Any] = {}

    def __call__(self, name: str, **options: Any) -> Any:
        key = (self.folder(name).name, repr(sorted(options.items())))
        if key not in self._made:
            self._made[key] = model_of(BY_NAME[name], self.folder(name), **options)
        return self._made[key]

    def folder(self, name: str) -> Path:
        """The checkpoint of a case."""
        case = BY_NAME[name]
        return self._folder / f"{case.model_type}-{case.size}-{case.seed}-{case.end_gain}"

    def free(self) -> None:
        """What a test that failed has left behind."""
        for model in self._made.values():
            for slot in list(model._runs):
                model.free(slot)


@pytest.fixture(scope="module")
def all_models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture
def models(all_models: Models) -> Iterator[Models]:
    yield all_models
    all_models.free()


def whole_decode(folder: Path, codes: NDArray[Any]) -> NDArray[np.float32]:
    """All frames' audio at once, without state."""
    codec = CodecDecoder(
        read_codec_config(folder).decoder_config,
        load_weights(folder / "speech_tokenizer", "decoder.", "cpu", None),
        device="cpu",
        dtype=torch.float32,
        slots=1,
        frames=(len(codes),),
        max_batch=1,
    )
    slots = torch.zeros(1, dtype=torch.int64)
    return np.asarray(codec.decode(slots, torch.from_numpy(codes.astype(np.int64))[None])[0].numpy())


# --- against the authors' package -----------------------------------------------------------------------


@pytest.mark.parametrize("name", BY_NAME)
def test_a_request_sounds_like_the_authors_codes(models: Models, name: str) -> None:
    """In context: the sound begins where the reference ends, to the sample."""
    case, arrays = BY_NAME[name], golden(name)
    run = speak(models(name), job_of(case, sampling=GREEDY, max_frames=8))
    codes = arrays["codes"][:8]
    before = arrays["reference_codes"] if case.reference == "context" else codes[:0]
    expected = whole_decode(models.folder(name), np.concatenate([before, codes]))[len(before) * FRAME :]
    assert run.samples.shape == expected.shape == (len(codes) * FRAME,)
    assert np.abs(run.samples - expected).max() < 1e-4
    assert np.abs(expected).max() > 1e-2  # there is something to hear


def test_a_request_ends_where_the_authors_does(models: Models) -> None:
    case = BY_NAME["custom_voice_ends"]
    run = speak(models(case.name), job_of(case, sampling=GREEDY))
    assert run.finish == "stop"
    assert len(run.samples) == len(golden(case.name)["codes"]) * FRAME


# --- text that comes while audio is made ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        *((name, "characters") for name in VOICES),
        ("base_context_streaming", "words"),
        ("custom_voice_streaming", "end alone"),
    ],
)
def test_text_in_pieces_sounds_like_the_same_text_at_once(models: Models, name: str, pieces: str) -> None:
    model, case = models(name), BY_NAME[name]
    job = job_of(case, text="you and me, 好 42!", seed=3, max_frames=16)
    at_once = speak(model, job)
    assert len(at_once.samples) == 16 * FRAME
    parts = {"characters": list(job.text), "words": job.text.split(" "), "end alone": [job.text]}[pieces]
    if pieces == "words":
        parts = [parts[0], *(f" {part}" for part in parts[1:])]
    driver = Driver(model)
    first, *rest = parts
    waiting = msgspec.structs.replace(job, text=first, ended=False)
    run = driver.begin(1, waiting, [*((part, False) for part in rest), ("", True)])
    driver.finish()
    assert not run.pieces
    assert np.array_equal(run.samples, at_once.samples)
    assert run.finish == at_once.finish


def test_a_request_waits_for_the_text_of_its_next_frame(models: Models) -> None:
    model = models("custom_voice_streaming")
    driver = Driver(model)
    run = driver.begin(0, Job(text="zebra", ended=False, whole=False, speaker="vivian", max_frames=12))
    while driver.step():
        pass
    assert not run.view.steppable
    assert not run.audio  # the word may go on
    model.add_text(0, " two", ended=False)
    assert run.view.prompt_rows == 1
    while driver.step():
        pass
    # all of the word but its first token goes along with frames
    assert len(run.samples) == (len(model._tokenizer.encode("zebra")) - 1) * FRAME > 0
    assert run.finish is None
    model.add_text(0, "", ended=True)
    assert run.view.steppable
    driver.finish()
    assert (len(run.samples), run.finish) == (12 * FRAME, "length")


def test_text_after_its_end_is_refused(models: Models) -> None:
    model = models("custom_voice_streaming")
    driver = Driver(model)
    driver.begin(0, Job(text="one", ended=True, whole=False, speaker="vivian"))
    with pytest.raises(DuplexError, match="ended") as caught:
        model.add_text(0, "two", ended=False)
    assert caught.value.code is ErrorCode.INVALID_VALUE
    driver.free(0)


def test_an_empty_text_speaks_of_nothing_but_ends(models: Models) -> None:
    model = models("custom_voice_streaming")
    for whole in (False, True):
        run = speak(model, Job(text="", ended=True, whole=whole, speaker="vivian", max_frames=3))
        assert run.finish == "length"
        assert len(run.samples) == 3 * FRAME


# --- the same, however it is computed -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["base_context_streaming", "base_context_whole", "custom_voice_whole", "voice_design"]
)
def test_chunks_of_prompt_and_audio_change_nothing(models: Models, name: str) -> None:
    model, case = models(name, prefix_cache_mb=0), BY_NAME[name]
    job = job_of(case, seed=11, max_frames=7)
    whole = speak(model, job)
    for rows, chunk in ((1, lambda ready: 2), (7, lambda ready: 4 if ready >= 4 else 0)):
        chunked = speak(model, job, slot=2, rows=rows, chunk=chunk)
        assert chunked.samples.shape == whole.samples.shape
        assert np.abs(chunked.samples - whole.samples).max() < 1e-4


@pytest.mark.parametrize(
    "name", ["base_context_streaming", "base_context_whole", "base_embedding", "custom_voice_whole"]
)
def test_a_known_voice_is_the_same_bit_for_bit(models: Models, name: str) -> None:
    model, case = models(name), BY_NAME[name]
    model._memo.clear()
    job = job_of(case, seed=7, max_frames=6)
    first = speak(model, job)
    known = len(model._memo)
    assert known == 1 + (case.reference == "context")
    driver = Driver(model)
    again = driver.begin(2, job)
    other = driver.begin(1, msgspec.structs.replace(job, text="Other words.", seed=8))
    # the rows of the voice are there already
    assert again.view.prompt_rows < first.view.prompt_rows + 200
    prefix = again.view.prompt.prefix  # type: ignore[attr-defined]
    assert prefix > 0
    assert again.view.prompt_rows == len(again.view.prompt.rows) - prefix  # type: ignore[attr-defined]
    driver.finish()
    assert len(model._memo) == known
    assert np.array_equal(again.samples, first.samples)
    assert not np.array_equal(other.samples, first.samples)
    uncached = speak(models(name, prefix_cache_mb=0), job)
    assert np.array_equal(uncached.samples, first.samples)


def test_another_voice_is_not_taken_for_a_known_one(models: Models) -> None:
    case = BY_NAME["base_context_streaming"]
    model, cold = models(case.name), models(case.name, prefix_cache_mb=0)
    job = job_of(case, seed=7, max_frames=3)
    assert job.reference is not None
    speak(model, job)
    reference = job.reference
    frames = np.frombuffer(reference.codes, "<i2").copy()
    frames[5] ^= 1
    others = [
        msgspec.structs.replace(reference, codes=frames.tobytes()),
        msgspec.structs.replace(reference, embedding=bytes(len(reference.embedding))),
        msgspec.structs.replace(reference, text="Other people have made their way to it."),
        msgspec.structs.replace(reference, codes=b"", text=""),
    ]
    jobs = [msgspec.structs.replace(job, reference=other) for other in others]
    jobs += [
        msgspec.structs.replace(job, **change)
        for change in ({"language": "german"}, {"instructions": "Calm."})
    ]
    sounds = [speak(model, job).samples]
    for other in jobs:
        warm = speak(model, other).samples
        assert np.array_equal(warm, speak(cold, other).samples)
        assert not any(np.array_equal(warm, sound) for sound in sounds)
        sounds.append(warm)


def test_requests_together_sound_as_each_alone(models: Models) -> None:
    case = BY_NAME["base_context_streaming"]
    model = models(case.name)
    jobs = [
        job_of(case, seed=1, max_frames=7),
        job_of(case, seed=2, max_frames=5, text="Short."),
        job_of(BY_NAME["base_embedding"], seed=1, max_frames=6),
    ]
    alone = [speak(model, job) for job in jobs]
    driver = Driver(model, rows=20)
    together = [driver.begin(2, jobs[0])]
    driver.step()
    driver.step()
    together += [driver.begin(slot, job) for slot, job in zip((0, 1), jobs[1:], strict=True)]
    driver.finish()
    for mine, other in zip(together, alone, strict=True):
        assert np.array_equal(mine.samples, other.samples)
        assert mine.finish == other.finish


def test_a_codec_on_another_device_makes_the_same_sound(models: Models) -> None:
    name = "base_context_streaming"
    models(name)
    apart = load({"model": str(models.folder(name)), **OPTIONS})
    apart._sound._mirror = torch.zeros_like(apart._core.codes)  # as if the CPU were two devices
    apart.warm_up()
    job = job_of(BY_NAME[name], seed=4, max_frames=6)
    together = speak(models(name), job)
    run = speak(apart, job)
    assert np.array_equal(run.samples, together.samples)


# --- slots ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_a_slot_freed_in_the_middle_leaves_nothing_behind(models: Models, steps: int) -> None:
    case = BY_NAME["base_context_streaming"]
    model = models(case.name)
    job = job_of(BY_NAME["base_embedding"], seed=9, max_frames=6)
    chunked = {"rows": 16, "chunk": lambda ready: 2}  # other chunks differ in the last bits
    clean = speak(model, job, **chunked)
    driver = Driver(model, **chunked)
    driver.begin(0, job_of(case, seed=5, text=case.text * 3, sampling=Sampling(temperature=1.5)))
    for _ in range(steps):
        driver.step()
    flying = model.launch_frame([0]) if driver.runs[0].view.steppable else None
    driver.free(0)
    run = driver.begin(0, job)
    if flying is not None:
        assert len(flying.result().finish) == 1  # collected and dropped
    driver.finish()
    assert np.array_equal(run.samples, clean.samples)


def test_a_taken_slot_is_not_given_again(models: Models) -> None:
    model = models("custom_voice_streaming")
    job = msgspec.msgpack.encode(Job(text="a", ended=True, whole=False, speaker="vivian"))
    model.begin(0, job)
    with pytest.raises(ValueError, match="slot 0"):
        model.begin(0, job)
    with pytest.raises(ValueError, match="slot 3"):
        model.begin(3, job)
    with pytest.raises(ValueError, match="frames to decode"):
        model.launch_decode([0], 1)
    model.free(0)
    model.begin(0, job)
    model.free(0)


# --- how requests end -------------------------------------------------------------------------------------


def test_the_request_s_own_ceiling_is_frames_of_sound(models: Models) -> None:
    for frames in (1, 5):
        run = speak(
            models("custom_voice_streaming"),
            Job(text="Some words.", ended=True, whole=False, speaker="vivian", max_frames=frames),
        )
        assert run.finish == "length"
        assert len(run.samples) == frames * FRAME


def test_positions_are_a_ceiling(models: Models) -> None:
    model = models("custom_voice_streaming", positions=64)
    job = Job(text="!" * 45, ended=True, whole=True, speaker="vivian", max_frames=1000)
    run = speak(model, job)
    assert run.finish == "length"
    assert len(run.samples) == (64 - 8 - 45 - 2) * FRAME
    with pytest.raises(DuplexError, match="64 positions") as caught:
        model.begin(0, msgspec.msgpack.encode(msgspec.structs.replace(job, text="!" * 54)))
    assert caught.value.code is ErrorCode.INVALID_VALUE


def test_a_text_without_a_ceiling_gets_one_by_its_length(models: Models) -> None:
    model = models("base_embedding")
    job = job_of(BY_NAME["base_embedding"], text="one two", max_frames=None)
    view = model.begin(0, msgspec.msgpack.encode(job))
    assert view.limit == 192
    model.free(0)
    long = msgspec.structs.replace(job, text="some word " * 12, ended=False)
    view = model.begin(0, msgspec.msgpack.encode(long))
    tokens = len(model._tokenizer.encode("some word " * 12))
    assert tokens > 16
    assert 192 < view.limit <= 12 * tokens
    before = view.limit
    model.add_text(0, " and one more", ended=True)
    assert view.limit > before
    model.free(0)


# --- what is refused --------------------------------------------------------------------------------------


def changed(job: Job, **changes: Any) -> Job:
    """A job whose reference is changed."""
    assert job.reference is not None
    return msgspec.structs.replace(job, reference=msgspec.structs.replace(job.reference, **changes))


PLAIN = Job(text="Hi.", ended=True, whole=False)
HIGH, ENDLESS = np.full(16, 2048, "<i2").tobytes(), np.full(128, np.nan, "<f4").tobytes()
BAD: dict[str, Job | Callable[[Job], Job]] = {
    "no such speaker": msgspec.structs.replace(PLAIN, speaker="nobody"),
    "no such language": msgspec.structs.replace(PLAIN, language="klingon"),
    "whole without its text": msgspec.structs.replace(PLAIN, ended=False, whole=True),
    "no frames": msgspec.structs.replace(PLAIN, max_frames=0),
    "a reference for another model": msgspec.structs.replace(
        PLAIN, reference=Reference(embedding=bytes(512))
    ),
    "an embedding of another size": lambda clone: changed(clone, embedding=bytes(4)),
    "an embedding that is no number": lambda clone: changed(clone, embedding=ENDLESS),
    "half a frame": lambda clone: changed(clone, codes=bytes(16)),
    "codes that are none": lambda clone: changed(clone, codes=HIGH),
    "codes without their text": lambda clone: changed(clone, text=" "),
    "a reference that fills the slot": lambda clone: changed(clone, codes=bytes(32 * 400)),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_job_is_refused_and_leaves_the_slot_free(models: Models, name: str) -> None:
    bad = BAD[name]
    case = BY_NAME["custom_voice_streaming" if isinstance(bad, Job) else "base_context_streaming"]
    model, good = models(case.name), job_of(case, max_frames=1)
    job = bad if isinstance(bad, Job) else bad(good)
    with pytest.raises(DuplexError) as caught:
        model.begin(0, msgspec.msgpack.encode(job))
    speaker = name == "no such speaker"
    assert caught.value.code is (ErrorCode.VOICE_NOT_FOUND if speaker else ErrorCode.INVALID_VALUE)
    assert len(speak(model, good).samples) == FRAME


def test_what_is_no_job_is_refused(models: Models) -> None:
    with pytest.raises(DuplexError, match="no job") as caught:
        models("custom_voice_streaming").begin(0, b"\x01")
    assert caught.value.code is ErrorCode.INVALID_VALUE


# --- recordings of voices ---------------------------------------------------------------------------------


def recording(seconds: float = 0.8, rate: int = 24000) -> NDArray[np.float32]:
    time = np.arange(int(seconds * rate)) / rate
    sound = 0.3 * np.sin(2 * np.pi * 220 * time) + 0.1 * np.sin(2 * np.pi * 1330 * time)
    return sound.astype(np.float32)


def encode(model: Any, samples: NDArray[np.float32], *, rate: int = 24000, codes: bool = True) -> Reference:
    asked = EncodeReference(samples=samples.astype("<f4").tobytes(), sample_rate=rate, codes=codes)
    answer = model.call("encode_reference", msgspec.msgpack.encode(asked))
    return msgspec.msgpack.decode(answer, type=Reference)


def test_a_recording_is_encoded_as_the_encoders_do(models: Models) -> None:
    name = "base_embedding"
    model, folder = models(name), models.folder(name)
    samples = recording()
    found = encode(model, samples)
    speaker = SpeakerEncoder(
        model._config.speaker_encoder_config, load_weights(folder, "speaker_encoder.", "cpu", None)
    )
    encoder = ReferenceEncoder(
        read_codec_config(folder), load_weights(folder / "speech_tokenizer", "encoder.", "cpu", None)
    )
    assert np.array_equal(np.frombuffer(found.embedding, "<f4"), speaker.embed(samples).numpy())
    assert np.array_equal(
        np.frombuffer(found.codes, "<i2").reshape(-1, 16), encoder.encode(samples).numpy().astype(np.int16)
    )
    alone = encode(model, samples, codes=False)
    assert (alone.embedding, alone.codes, alone.text) == (found.embedding, b"", "")


def test_a_recording_of_another_rate_is_the_same_voice(models: Models) -> None:
    model = models("base_embedding")
    here = np.frombuffer(encode(model, recording(), codes=False).embedding, "<f4")
    there = np.frombuffer(encode(model, recording(rate=48000), rate=48000, codes=False).embedding, "<f4")
    assert here @ there / np.linalg.norm(here) / np.linalg.norm(there) > 0.99


def test_an_encoded_voice_speaks_and_the_codec_has_heard_it(models: Models) -> None:
    model = models("base_embedding")
    reference = msgspec.structs.replace(encode(model, recording()), text="A tone.")
    heard = model._memo.get(("codec", reference.codes))
    assert heard is not None
    job = job_of(BY_NAME["base_embedding"], reference=reference, max_frames=4, seed=1)
    first = speak(model, job)
    assert len(first.samples) == 4 * FRAME
    cold = speak(models("base_embedding", prefix_cache_mb=0), job)
    assert np.array_equal(first.samples, cold.samples)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (EncodeReference(samples=b"", sample_rate=24000, codes=True), ErrorCode.INVALID_AUDIO),
        (EncodeReference(samples=bytes(6), sample_rate=24000, codes=True), ErrorCode.INVALID_AUDIO),
        (EncodeReference(samples=bytes(400), sample_rate=24000, codes=True), ErrorCode.INVALID_AUDIO),
        (EncodeReference(samples=bytes(40000), sample_rate=0, codes=True), ErrorCode.INVALID_AUDIO),
        (
            EncodeReference(samples=np.full(9999, np.inf, "<f4").tobytes(), sample_rate=24000, codes=True),
            ErrorCode.INVALID_AUDIO,
        ),
        ({"samples": b""}, ErrorCode.INVALID_VALUE),
    ],
)
def test_a_bad_recording_is_refused(models: Models, asked: Any, code: ErrorCode) -> None:
    with pytest.raises(DuplexError) as caught:
        models("base_embedding").call("encode_reference", msgspec.msgpack.encode(asked))
    assert caught.value.code is code


def test_only_base_models_encode_and_no_model_does_more(models: Models) -> None:
    with pytest.raises(DuplexError, match="clones no voice"):
        models("custom_voice_streaming").call("encode_reference", b"")
    with pytest.raises(DuplexError, match="sing"):
        models("base_embedding").call("sing", b"")


# --- loading ----------------------------------------------------------------------------------------------


def test_the_model_says_what_it_is(models: Models) -> None:
    info = models("base_embedding").info
    assert (info.sample_rate, info.frame_samples, info.slots, info.decode_frames) == (
        24000,
        FRAME,
        3,
        (1, 2, 4),
    )
    assert info.detail["type"] == "base"
    assert info.detail["dtype"] == "float32"


def test_random_weights_need_the_configurations_alone(models: Models, tmp_path: Path) -> None:
    folder = models.folder("base_embedding")
    (tmp_path / "speech_tokenizer").mkdir()
    for name in ("config.json", "speech_tokenizer/config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    options = {"model": str(tmp_path), "device": "cpu", "slots": 2, "positions": 64}
    with pytest.raises(DuplexError, match=r"model\.safetensors"):
        load(options)
    model = load({**options, "random_weights": True})
    model.warm_up()
    reference = encode(model, recording(), codes=False)
    run = speak(model, Job(text="Hello.", ended=True, whole=False, reference=reference, max_frames=2))
    assert len(run.samples) == 2 * FRAME or run.finish == "stop"
    assert model.info.detail["weights"] == "random"
