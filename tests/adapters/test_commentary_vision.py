"""Cuts, motion, looks and object tracks: what is noticed, and what must not be."""

from __future__ import annotations

import numpy as np
import pytest
from commentary_scenes import ScriptedDetector, ScriptedTagger, frame_of, frames_of, noisy, seen
from hypothesis import given
from hypothesis import strategies as st
from video_clips import encode, moving_square, texture

from duplex.adapters.embedded.events import Kind
from duplex.adapters.embedded.object_tracks import FAINT, ObjectTracks, sure_score
from duplex.adapters.embedded.scene import Care, Scene
from duplex.adapters.embedded.vision_look import colour_words, likeness, look_of
from duplex.codecs.video import VideoStream

H, W = 144, 256


def told(scene: Scene, frames) -> list:
    return [event for frame in frames for event in scene.watch(frame)]


def panned(count: int, dx: int, dy: int = 0, fps_hold: int = 1):
    wide = texture(H * 3, W * 4, seed=9)
    x0 = 0 if dx >= 0 else W * 3 - 1
    y0 = 0 if dy >= 0 else H * 2 - 1
    return [wide[y0 + dy * i : y0 + dy * i + H, x0 + dx * i : x0 + dx * i + W].copy() for i in range(count)]


# --- cuts --------------------------------------------------------------------------------------------


def test_a_cut_is_said_once_at_its_time():
    pictures = noisy([texture(H, W, 1)] * 30 + [texture(H, W, 2)] * 30)
    events = told(Scene(), frames_of(pictures))
    assert [e.kind for e in events] == [Kind.OPENING, Kind.CUT]
    assert events[1].at_ms == pytest.approx(30 * 40)


def test_a_flash_is_no_cut():
    pictures = [texture(H, W, 1)] * 25 + [np.full((H, W, 3), 255, np.uint8)] + [texture(H, W, 1)] * 25
    assert [e.kind for e in told(Scene(), frames_of(noisy(pictures)))] == [Kind.OPENING]


def test_fast_motion_is_no_cut():
    events = told(Scene(), frames_of(panned(60, 9)))
    assert Kind.CUT not in [e.kind for e in events]


def test_a_cut_back_names_the_time_when_the_view_was_left():
    one, two = texture(H, W, 1), texture(H, W, 2)
    pictures = noisy([one] * 25 + [two] * 25 + [one] * 25)
    cuts = [e for e in told(Scene(), frames_of(pictures)) if e.kind is Kind.CUT]
    assert [c.at_ms for c in cuts] == pytest.approx([1000, 2000])
    assert cuts[0].returns_to_ms is None
    assert cuts[1].returns_to_ms == pytest.approx(1000)


def test_a_dissolve_is_a_change_not_a_cut():
    one, two = texture(H, W, 1).astype(float), texture(H, W, 2).astype(float)
    mix = [(one * (1 - a) + two * a).astype(np.uint8) for a in np.linspace(0, 1, 20)]
    events = told(Scene(), frames_of(noisy([mix[0]] * 40 + mix + [mix[-1]] * 60)))
    assert [e.kind for e in events] == [Kind.OPENING, Kind.CHANGE]
    assert 2200 <= events[1].at_ms <= 3200


def test_stills_far_apart_are_compared_as_views():
    same = noisy([texture(H, W, 1)] * 3)
    events = told(Scene(), frames_of([*same, texture(H, W, 2)], fps=2.0))
    assert [(e.kind, e.at_ms) for e in events if e.kind is Kind.CUT] == []  # not described yet
    scene = Scene()
    events = told(scene, frames_of([*same, *noisy([texture(H, W, 2)] * 3)], fps=2.0))
    assert [e.at_ms for e in events if e.kind is Kind.CUT] == [1500]


def test_a_codec_stream_gives_the_same_cut():
    clip = encode([*moving_square(25, H, W), *[texture(H, W, 7)] * 25])
    events = told(Scene(), VideoStream().decode(clip, "mp4"))
    assert [e.at_ms for e in events if e.kind is Kind.CUT] == pytest.approx([1000])


# --- motion ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dx", "dy", "direction"), [(3, 0, "right"), (-3, 0, "left"), (0, 3, "down"), (0, -3, "up")]
)
@pytest.mark.parametrize("codec", ["libx264", "libvpx", None])
def test_a_pan_has_the_camera_s_direction(dx, dy, direction, codec):
    pictures = panned(45, dx, dy)
    if codec is None:
        frames = frames_of(pictures)
    else:
        container = "mp4" if codec == "libx264" else "webm"
        frames = VideoStream().decode(encode(pictures, codec=codec, container=container), container)
    pans = [e for e in told(Scene(), frames) if e.kind is Kind.PAN]
    assert [p.direction for p in pans] == [direction]


def test_a_moving_thing_is_no_pan():
    still = moving_square(1, H, W) * 60
    moving = moving_square(30, H, W, step=6)
    for frames in (
        frames_of(noisy([*still, *moving])),
        VideoStream().decode(encode([*still, *moving]), "mp4"),
    ):
        events = told(Scene(), frames)
        assert [e.kind for e in events] == [Kind.OPENING, Kind.MOVEMENT]
        assert 2400 <= events[1].at_ms <= 3200


def test_the_codec_says_where_a_thing_goes():
    still = moving_square(1, H, W) * 60
    clip = encode([*still, *moving_square(30, H, W, step=4)], options={"bf": "0"})
    movement = [e for e in told(Scene(), VideoStream().decode(clip, "mp4")) if e.kind is Kind.MOVEMENT]
    assert [m.direction for m in movement] == ["right"]


def test_calm_after_movement_is_said_and_noise_is_no_movement():
    moving = moving_square(30, H, W, step=6)
    events = told(Scene(), frames_of(noisy([*moving, *[moving[-1]] * 100])))
    assert [e.kind for e in events] == [Kind.OPENING, Kind.STILLNESS]
    assert told(Scene(), frames_of(noisy([moving[0]] * 150)))[1:] == []


# --- looks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("colour", "words"),
    [
        ((40, 160, 50), "mostly green"),
        ((40, 60, 200), "mostly blue"),
        ((200, 30, 30), "mostly red"),
        ((5, 5, 5), "almost black"),
        ((250, 250, 250), "almost white"),
    ],
)
def test_colours_in_words(colour, words):
    picture = np.zeros((H, W, 3), np.uint8) + np.array(colour, np.uint8)
    assert colour_words(look_of(frame_of(picture, 0))) == words


def test_no_colour_stands_out_in_a_mixture():
    assert colour_words(look_of(frame_of(texture(H, W, 1), 0))) is None
    grey = np.repeat(texture(H, W, 1).mean(-1, keepdims=True), 3, -1).astype(np.uint8)
    assert colour_words(look_of(frame_of(grey, 0))) == "black and white"


def test_likeness_of_views():
    one, two = look_of(frame_of(texture(H, W, 1), 0)), look_of(frame_of(texture(H, W, 2), 0))
    assert likeness(one, one) == pytest.approx(1)
    assert likeness(one, two) < 0.35


# --- objects -----------------------------------------------------------------------------------------

PLAIN = np.full((18, 32), 100, np.float32)
OTHER = np.full((18, 32), 140, np.float32)


def present(tracks: ObjectTracks) -> dict[str, int]:
    return {c.label: c.count for c in tracks.present}


def test_an_object_counts_from_its_second_picture_in_a_row():
    tracks = ObjectTracks()
    tracks.feed([seen("person")], PLAIN)
    assert present(tracks) == {}
    tracks.feed([], PLAIN)
    tracks.feed([seen("person")], PLAIN)
    assert present(tracks) == {}
    tracks.feed([seen("person")], PLAIN)
    assert present(tracks) == {"person": 1}


def test_faint_objects_never_count():
    tracks = ObjectTracks()
    for _ in range(5):
        tracks.feed([seen("person", 0.49), seen("bird", 0.58, x0=0.6, x1=0.9)], PLAIN)
    assert present(tracks) == {}


def test_boxes_inside_each_other_are_one_object():
    tracks = ObjectTracks()
    for _ in range(2):
        tracks.feed([seen("person", 0.8), seen("person", 0.7, x0=0.12, x1=0.29, y0=0.4)], PLAIN)
    assert present(tracks) == {"person": 1}


def test_bicycle_and_motorcycle_on_one_box_are_either():
    tracks = ObjectTracks()
    for _ in range(2):
        tracks.feed([seen("bicycle", 0.45), seen("motorcycle", 0.40)], PLAIN)
    assert present(tracks) == {"bicycle or motorcycle": 1}


def test_an_arrival_needs_pictures_without_it():
    tracks = ObjectTracks()
    tracks.feed([], PLAIN)
    tracks.feed([], PLAIN)
    tracks.feed([seen("dog")], PLAIN)
    assert [c.label for c in tracks.feed([seen("dog")], PLAIN).appeared] == ["dog"]
    doubtful = ObjectTracks()
    doubtful.feed([seen("dog", 0.35)], PLAIN)
    doubtful.feed([seen("dog", 0.35)], PLAIN)
    doubtful.feed([seen("dog")], PLAIN)
    assert doubtful.feed([seen("dog")], PLAIN).appeared == ()
    assert present(doubtful) == {"dog": 1}


def test_gone_means_two_pictures_without_it_and_another_look():
    def lost(luma, others=()):
        tracks = ObjectTracks()
        for _ in range(2):
            tracks.feed([seen("person")], PLAIN)
        tracks.feed(list(others), luma)
        return [c.label for c in tracks.feed(list(others), luma).left]

    assert lost(OTHER) == ["person"]
    assert lost(PLAIN) == [], "the place looks the same: the detector has lost it"
    assert lost(OTHER, [seen("truck", 0.8, x0=0.0, x1=0.6)]) == [], "it may be behind something"


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["person", "car", "bicycle", "motorcycle", "bird"]),
                st.floats(FAINT, 1.0),
                st.floats(0, 0.9),
                st.floats(0.02, 0.5),
            ),
            max_size=6,
        ),
        max_size=12,
    )
)
def test_never_more_than_the_detector_gave(pictures):
    tracks = ObjectTracks()
    most: dict[str, int] = {}
    for picture in pictures:
        found = [seen(label, score, x0=x, x1=min(1.0, x + w)) for label, score, x, w in picture]
        tracks.feed(found, PLAIN)
        for counted in tracks.present:
            parts = counted.label.split(" or ")
            now = sum(d.label in parts and (d.score >= sure_score(d.label) or len(parts) > 1) for d in found)
            most[counted.label] = max(most.get(counted.label, 0), now)
            assert counted.count <= most[counted.label]


# --- a whole scene -----------------------------------------------------------------------------------


def test_a_shot_is_described_with_what_was_confirmed():
    detector = ScriptedDetector((0, [seen("person"), seen("cup", 0.5, x0=0.6, x1=0.7)]))
    events = told(Scene(detector), frames_of(noisy([texture(H, W, 1)] * 25)))
    assert [(e.kind, [(o.label, o.count) for o in e.objects]) for e in events] == [
        (Kind.OPENING, [("person", 1)])
    ]
    assert 2 <= len(detector.asked) <= 4, "twice to confirm, then every half second"


def test_coming_and_going_are_each_said_once():
    person = seen("person")
    detector = ScriptedDetector((0, []), (2000, [person]), (4000, []))
    with_person = texture(H, W, 1).copy()
    with_person[int(0.2 * H) : int(0.8 * H), int(0.1 * W) : int(0.3 * W)] = 255
    pictures = noisy([texture(H, W, 1)] * 50 + [with_person] * 50 + [texture(H, W, 1)] * 75)
    events = [e for e in told(Scene(detector), frames_of(pictures)) if e.objects]
    assert [(e.kind, e.objects[0].label) for e in events] == [
        (Kind.APPEARED, "person"),
        (Kind.LEFT, "person"),
    ]
    assert 2000 <= events[0].at_ms <= 2800
    assert 4000 <= events[1].at_ms <= 5200


def test_a_tag_must_be_sure_and_repeated():
    pictures = noisy([texture(H, W, 1)] * 75)
    sure = told(Scene(None, ScriptedTagger("a beach", 0.9)), frames_of(pictures))
    assert [e.tag for e in sure if e.tag] == ["a beach"]
    unsure = told(Scene(None, ScriptedTagger("a beach", 0.65)), frames_of(pictures))
    assert [e.tag for e in unsure if e.tag] == []


def test_words_on_the_screen_are_said_once_and_only_in_their_shot():
    asked = []
    scene = Scene(read_text=lambda frame, shot: asked.append((frame.pts_ms, shot)))
    told(scene, frames_of(noisy([texture(H, W, 1)] * 25)))
    assert len(asked) == 1
    _, shot = asked[0]
    assert [e.lines for e in scene.text_found(("GOAL", "ENG"), shot, 400.0)] == [("GOAL", "ENG")]
    assert [e.lines for e in scene.text_found(("Goal!", "ARG"), shot, 900.0)] == [("ARG",)]
    assert scene.view().lines == ("Goal!", "ARG")
    assert scene.text_found(("LATE",), shot + 1, 900.0) == []


def test_skimming_asks_no_detector_and_makes_no_claim():
    detector = ScriptedDetector((0, [seen("person")]))
    scene = Scene(detector, ScriptedTagger("a beach", 0.9))
    frames = frames_of(noisy([texture(H, W, 1)] * 40 + [texture(H, W, 2)] * 40))
    events = [e for f in frames for e in scene.watch(f, care=Care.SKIM)]
    assert detector.asked == []
    assert [e.kind for e in events] == [Kind.OPENING, Kind.CUT]
    assert not any(e.looked or e.objects or e.tag for e in events)


def test_a_brief_look_describes_the_shot_and_no_more():
    detector = ScriptedDetector((0, [seen("person")]))
    scene = Scene(detector)
    frames = frames_of(noisy([texture(H, W, 1)] * 60))
    events = [e for f in frames for e in scene.watch(f, care=Care.BRIEF)]
    assert [[o.label for o in e.objects] for e in events] == [["person"]]
    assert len(detector.asked) == 2


def test_state_stays_bounded_over_hours():
    detector = ScriptedDetector((0, []))
    scene = Scene(detector)
    pictures = noisy([texture(36, 64, s) for s in range(4)])
    for number in range(400):
        scene.watch(frame_of(pictures[number % 4], number * 5000.0))
        scene.text_found((f"line {number}",), scene.view().shots, number * 5000.0)
    view = scene.view()
    assert view.pts_ms == 399 * 5000.0
    assert len(view.events) <= 128
    assert len(scene._views) <= 24
    assert len(scene._read) <= 64
    assert len(scene._meter._samples) <= 64
