"""Make the media that ship in duplex/cli/media: a spoken recording and a short clip, both from nothing.

The recording is synthesised with hibari-tts (Apache-2.0), the clip is drawn with numpy and Pillow; no
footage, picture or voice of anyone's is used. Needs the `embedded` extra. Run it from anywhere:

    python tools/make_media.py [FOLDER]

The result differs between machines only by what floating point and the H.264 encoder's version differ.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import matplotlib
import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

MEDIA = Path(__file__).resolve().parents[1] / "duplex" / "cli" / "media"

# --- the recording ---------------------------------------------------------------------------------

RATE: Final = 16000
PITCH: Final = 0.86
"""The user speaks lower than the agent, whose voice this is too: played at this fraction of its rate."""

LINES: Final[tuple[tuple[float, str], ...]] = (
    (0.6, "Please read to me."),
    (4.4, "And what time is it?"),  # over the reading
    (3.4, "Please repeat after me: the train leaves at nine."),
    (0.6, ""),
)
"""Seconds of silence before a line, and the line. The last one is the silence after all."""


def speak(text: str) -> NDArray[np.float32]:
    """One line at `RATE`, without the silence around it."""
    from hibari import Hibari

    samples = np.asarray(Hibari()(text, speed=1 / PITCH, seed=0), np.float32)
    loud = np.flatnonzero(np.abs(samples) > 0.02 * np.abs(samples).max())
    samples = samples[max(0, loud[0] - 480) : loud[-1] + 1920]
    low = soxr.resample(samples, 24000 * PITCH, RATE, quality="VHQ")
    return np.asarray(low * (0.5 / np.abs(low).max()), np.float32)


def make_recording(path: Path) -> None:
    """The user's side of the exchange, and beside it where each line lies (ms)."""
    rng = np.random.default_rng(7)
    parts: list[NDArray[np.float32]] = []
    lines = []
    at = 0
    for pause, text in LINES:
        parts.append(np.zeros(round(pause * RATE), np.float32))
        at += len(parts[-1])
        if not text:
            continue
        spoken = speak(text)
        lines.append({"text": text, "start_ms": at / RATE * 1000, "end_ms": (at + len(spoken)) / RATE * 1000})
        parts.append(spoken)
        at += len(spoken)
    samples = np.concatenate(parts)
    # a quiet room, so that the pauses are not digital silence
    samples += rng.normal(0, 10 ** (-72 / 20), len(samples)).astype(np.float32)
    soundfile.write(path, samples, RATE, subtype="PCM_16")
    path.with_suffix(".json").write_text(json.dumps({"sample_rate": RATE, "lines": lines}, indent=2) + "\n")


# --- the clip --------------------------------------------------------------------------------------

WIDTH: Final = 640
HEIGHT: Final = 360
FPS: Final = 25

Picture = NDArray[np.uint8]


def font(size: int, bold: bool = True) -> ImageFont.FreeTypeFont:
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


def gradient(width: int, height: int, top: tuple[int, ...], bottom: tuple[int, ...]) -> Image.Image:
    ramp = np.linspace(0, 1, height)[:, None, None]
    rows = np.asarray(top) * (1 - ramp) + np.asarray(bottom) * ramp
    return Image.fromarray(np.broadcast_to(rows, (height, width, 3)).astype(np.uint8))


def grain(picture: Image.Image, strength: float, seed: int, blur: float = 1.2) -> Image.Image:
    """Fixed texture: a motion search needs something to hold on to."""
    rng = np.random.default_rng(seed)
    noise = Image.fromarray(rng.integers(0, 256, (picture.height, picture.width), dtype=np.uint8))
    soft = np.asarray(noise.filter(ImageFilter.GaussianBlur(blur)), np.float32) - 127.5
    out = np.asarray(picture, np.float32) + soft[..., None] * strength
    return Image.fromarray(np.clip(out, 0, 255).astype(np.uint8))


def title_card() -> Image.Image:
    picture = gradient(WIDTH, HEIGHT, (18, 32, 74), (40, 86, 150))
    draw = ImageDraw.Draw(picture)
    draw.text((WIDTH / 2, 150), "DUPLEX", font=font(110), fill=(255, 255, 255), anchor="mm")
    draw.text((WIDTH / 2, 255), "LIVE DEMO", font=font(46), fill=(255, 210, 70), anchor="mm")
    return picture


def street() -> Image.Image:
    """A wall and a road, for something to cross."""
    picture = gradient(WIDTH, HEIGHT, (196, 205, 214), (226, 226, 220))
    draw = ImageDraw.Draw(picture)
    for row in range(13):
        for column in range(-1, 14):
            left = column * 50 + (row % 2) * 25
            shade = 150 + (row * 37 + column * 53) % 40
            draw.rectangle((left, row * 18, left + 47, row * 18 + 15), fill=(shade, shade - 62, shade - 84))
    draw.rectangle((0, 236, WIDTH, HEIGHT), fill=(92, 94, 98))
    draw.rectangle((0, 236, WIDTH, 250), fill=(176, 174, 168))
    for left in range(10, WIDTH, 120):
        draw.rectangle((left, 318, left + 60, 326), fill=(235, 235, 225))
    return grain(picture, 0.45, 1)


CAR: Final = 310
"""Length of the car, pixels."""
_ENLARGED: Final = 3  # what has edges is drawn larger and scaled down


def car() -> Image.Image:
    """A blue car from the side, driving to the right."""
    w, h = CAR * _ENLARGED, round(CAR * 0.42) * _ENLARGED
    picture = Image.new("RGBA", (w, h), (0, 0, 0, 0))
    draw = ImageDraw.Draw(picture)
    blue, dark, light = (36, 92, 190), (22, 55, 114), (65, 135, 255)
    glass, shine, steel = (34, 46, 58), (120, 146, 166), (200, 202, 206)

    def shape(points: list[tuple[float, float]], fill: tuple[int, ...]) -> None:
        """A polygon in parts of the car's length, as all measures here."""
        draw.polygon([(x * w, y * w) for x, y in points], fill=fill)

    def disc(x: float, y: float, radius: float, fill: tuple[int, ...]) -> None:
        draw.ellipse(((x - radius) * w, (y - radius) * w, (x + radius) * w, (y + radius) * w), fill=fill)

    draw.ellipse((0.02 * w, 0.3 * w, 0.98 * w, 0.36 * w), fill=(50, 50, 52))
    roof = [(0.06, 0.156), (0.22, 0.143), (0.33, 0.034), (0.37, 0.014), (0.42, 0.003), (0.62, 0.003)]
    bonnet = [(0.68, 0.017), (0.8, 0.129), (0.95, 0.156), (0.99, 0.184), (1.0, 0.218)]
    sill = [(1.0, 0.279), (0.97, 0.299), (0.02, 0.299), (0.0, 0.272)]
    shape([(0.0, 0.211), (0.01, 0.17), *roof, *bonnet, *sill], blue)
    shape([(0.0, 0.238), (1.0, 0.238), *sill], dark)
    shape([(0.26, 0.143), (0.355, 0.041), (0.4, 0.024), (0.5, 0.024), (0.5, 0.143)], glass)
    shape([(0.525, 0.143), (0.525, 0.024), (0.61, 0.024), (0.66, 0.037), (0.765, 0.143)], glass)
    shape([(0.32, 0.143), (0.42, 0.031), (0.45, 0.031), (0.36, 0.143)], shine)
    shape([(0.58, 0.143), (0.6, 0.031), (0.625, 0.031), (0.63, 0.143)], shine)
    draw.line([(0.512 * w, 0.034 * w), (0.512 * w, 0.286 * w)], fill=dark, width=6)
    draw.line([(0.02 * w, 0.177 * w), (0.97 * w, 0.177 * w)], fill=light, width=6)
    for x in (0.45, 0.7):
        draw.rectangle(((x - 0.03) * w, 0.19 * w, (x + 0.02) * w, 0.204 * w), fill=light)
    for x in (0.2, 0.8):
        disc(x, 0.275, 0.105, dark)
        disc(x, 0.28, 0.09, (20, 20, 22))
        disc(x, 0.28, 0.058, (190, 192, 198))
        for spoke in range(5):
            turn = spoke * math.tau / 5
            end = ((x + 0.05 * math.cos(turn)) * w, (0.28 + 0.05 * math.sin(turn)) * w)
            draw.line([(x * w, 0.28 * w), end], fill=(90, 92, 98), width=12)
    draw.ellipse((0.95 * w, 0.17 * w, 0.99 * w, 0.204 * w), fill=(255, 250, 220))
    draw.rectangle((0, 0.17 * w, 0.025 * w, 0.211 * w), fill=(220, 30, 30))
    draw.rectangle((0, 0.252 * w, 0.06 * w, 0.279 * w), fill=steel)
    draw.rectangle((0.94 * w, 0.252 * w, w, 0.279 * w), fill=steel)
    return picture.resize((CAR, h // _ENLARGED), Image.Resampling.LANCZOS)


def stop_sign(radius: int) -> Image.Image:
    """A stop sign on its post, the sign in the middle of the picture's upper square."""
    r = radius * _ENLARGED
    picture = Image.new("RGBA", (2 * r, 5 * r), (0, 0, 0, 0))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((r * 0.94, r, r * 1.06, 5 * r), fill=(150, 152, 156))
    for size, colour in ((1.0, (245, 245, 245)), (0.93, (196, 24, 32))):
        corners = [math.radians(22.5 + 45 * corner) for corner in range(8)]
        draw.polygon([(r + r * size * math.cos(a), r + r * size * math.sin(a)) for a in corners], fill=colour)
    draw.text((r, r), "STOP", font=font(round(r * 0.55)), fill=(250, 250, 250), anchor="mm")
    return picture.resize((2 * radius, 5 * radius), Image.Resampling.LANCZOS)


SIGN_X: Final = 900
"""Where the stop sign stands: out of the picture when the pan begins, in it when the pan ends."""


def landscape(width: int) -> Image.Image:
    """Hills, trees and houses, wider than the picture, for the camera to pan over."""
    rng = np.random.default_rng(3)
    picture = gradient(width, HEIGHT, (110, 176, 236), (226, 240, 250))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((190, 36, 260, 106), fill=(255, 224, 110))
    for left in range(60, width, 260):
        for puff in range(5):
            x = left + puff * 26 + int(rng.integers(-6, 6))
            y = 60 + int(rng.integers(-14, 30))
            draw.ellipse((x, y, x + 58, y + 30), fill=(250, 252, 255))
    for depth, colour in enumerate(((120, 150, 170), (88, 140, 96), (70, 120, 62))):
        base = 190 + depth * 42
        line = [
            (x, base + 34 * math.sin(x / (150 - depth * 30) + depth * 2) + 9 * math.sin(x / 31 + depth))
            for x in range(0, width + 8, 8)
        ]
        draw.polygon([(0, HEIGHT), *line, (width, HEIGHT)], fill=colour)
    for x in range(20, width, 74):
        foot = 300 + int(rng.integers(-14, 36))
        tall = int(rng.integers(46, 84))
        draw.rectangle((x - 4, foot - 24, x + 4, foot), fill=(96, 66, 40))
        green = (30 + int(rng.integers(0, 30)), 92 + int(rng.integers(0, 40)), 40)
        draw.ellipse((x - 22, foot - tall, x + 22, foot - 16), fill=green)
    for x in range(150, width, 330):
        draw.rectangle((x, 262, x + 74, 318), fill=(236, 224, 200))
        draw.polygon([(x - 8, 262), (x + 37, 226), (x + 82, 262)], fill=(172, 62, 48))
        draw.rectangle((x + 28, 286, x + 46, 318), fill=(104, 70, 44))
        draw.rectangle((x + 8, 274, x + 22, 288), fill=(120, 180, 220))
        draw.rectangle((x + 52, 274, x + 66, 288), fill=(120, 180, 220))
    picture = grain(picture, 0.4, 2)
    sign = stop_sign(62)
    picture.paste(sign, (SIGN_X - 62, 96), sign)
    return picture


def clock() -> Image.Image:
    """A wall clock at ten past ten, and the last words."""
    k = _ENLARGED
    picture = grain(gradient(WIDTH * k, HEIGHT * k, (120, 150, 170), (90, 120, 140)), 0.15, 4)
    cx, cy, r = 320 * k, 138 * k, 108 * k
    shadow = Image.new("RGBA", picture.size, (0, 0, 0, 0))
    ImageDraw.Draw(shadow).ellipse((cx - r + 20, cy - r + 40, cx + r + 30, cy + r + 50), fill=(0, 0, 0, 110))
    shadow = shadow.filter(ImageFilter.GaussianBlur(24))
    picture.paste(shadow, (0, 0), shadow)
    draw = ImageDraw.Draw(picture)
    for size, shade in (
        (1.0, (30, 30, 34)),
        (0.97, (90, 90, 96)),
        (0.93, (40, 40, 44)),
        (0.9, (250, 250, 246)),
    ):
        draw.ellipse((cx - r * size, cy - r * size, cx + r * size, cy + r * size), fill=shade)

    def at(degrees: float, length: float) -> tuple[float, float]:
        angle = math.radians(degrees)
        return cx + r * length * math.sin(angle), cy - r * length * math.cos(angle)

    for minute in range(60):
        hour = minute % 5 == 0
        ends = [at(minute * 6, 0.77 if hour else 0.82), at(minute * 6, 0.86)]
        draw.line(ends, fill=(20, 20, 20), width=14 if hour else 4)
    for number in range(1, 13):
        draw.text(
            at(number * 30, 0.64), str(number), font=font(round(r * 0.2)), fill=(20, 20, 20), anchor="mm"
        )
    for degrees, length, width in ((305, 0.45, 0.07), (60, 0.7, 0.045)):
        draw.line([at(degrees, -0.12), at(degrees, length)], fill=(15, 15, 15), width=round(r * width))
    draw.ellipse((cx - r * 0.05, cy - r * 0.05, cx + r * 0.05, cy + r * 0.05), fill=(15, 15, 15))
    draw.text((cx, 306 * k), "THE END", font=font(52 * k), fill=(255, 255, 255), anchor="mm")
    return picture.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


def still(picture: Image.Image) -> Callable[[float], Picture]:
    pixels = np.asarray(picture)
    return lambda _: pixels


def driving() -> Callable[[float], Picture]:
    """The car drives from left to right, ahead of the wall."""
    back, thing = street(), car()
    begin, gone = 0.16, 0.92

    def frame(t: float) -> Picture:
        picture = back.copy()
        if begin <= t < gone:
            x = -CAR + (WIDTH + CAR) * (t - begin) / (gone - begin)
            picture.paste(thing, (round(x), 218), thing)
        return np.asarray(picture)

    return frame


def panning() -> Callable[[float], Picture]:
    """The camera turns to the right, gently at both ends."""
    width = WIDTH + 560
    pixels = np.asarray(landscape(width))

    def frame(t: float) -> Picture:
        eased = 0.5 - 0.5 * math.cos(math.pi * min(1.0, max(0.0, (t - 0.1) / 0.8)))
        left = round((width - WIDTH) * eased)
        return np.ascontiguousarray(pixels[:, left : left + WIDTH])

    return frame


SCENES: Final[tuple[tuple[str, float], ...]] = (("title", 2.6), ("car", 4.4), ("pan", 4.6), ("clock", 3.0))


def frames() -> Iterator[Picture]:
    makers: dict[str, Callable[[float], Picture]] = {
        "title": still(title_card()),
        "car": driving(),
        "pan": panning(),
        "clock": still(clock()),
    }
    for name, seconds in SCENES:
        count = round(seconds * FPS)
        for number in range(count):
            yield makers[name](number / count)


def make_clip(path: Path) -> None:
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as container:
        stream: Any = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"preset": "slow", "crf": "25", "g": "250", "threads": "1"}
        for number, pixels in enumerate(frames()):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else MEDIA
    folder.mkdir(parents=True, exist_ok=True)
    make_recording(folder / "exchange.flac")
    make_clip(folder / "clip.mp4")
    for path in sorted(folder.iterdir()):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
