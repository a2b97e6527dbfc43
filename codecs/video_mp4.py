"""A look at an MP4's boxes before libav sees them.

libav believes some counts: a `stsz` or `trun` of a few bytes can claim 2³² samples, for which it
allocates and fills an index of gigabytes; `cmov` inflates to any size; a `dref` names another file. This
walk reads the headers alone, in one pass over the box tree, and refuses such a file by name.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from duplex.codecs.video_limits import Budget, invalid, too_large, unsupported

_PARENTS = frozenset(
    (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"mvex", b"moof", b"traf", b"dinf", b"edts")
)
_HEADERS = frozenset((b"moov", b"moof", b"udta", b"meta"))
_MAX_SAMPLES = 100_000
"""Of all tracks, sound included: half an hour of AAC at 48 kHz."""
_MAX_BOXES = 20_000
_MAX_DEPTH = 8

# Tables: bytes of an entry.
_TABLES = {b"stts": 8, b"ctts": 8, b"stsc": 12, b"stss": 4, b"stco": 4, b"co64": 8, b"elst": 12}


class Box(NamedTuple):
    """A box: its four-letter name, and where its payload begins and ends in the file."""

    name: bytes
    start: int
    end: int


def check_mp4(data: bytes, budget: Budget) -> None:
    """Refuse an MP4 whose headers lie or ask for too much.

    Raises:
        DuplexError: `invalid_media` for a truncated or broken file, `media_too_large` for a claim over
            the limits, `unsupported_format` for compressed headers.
    """
    counts = {b"stsz": 0, b"stts": 0, b"ctts": 0, b"trun": 0}
    seen: Counter[bytes] = Counter()
    for box in _walk(data):
        seen[box.name] += 1
        _check(data, box, counts, budget)
    if not seen[b"moov"] and not seen[b"moof"]:
        raise invalid("the mp4 has no moov or moof box: it is truncated, or no video")
    # libav looks for these in more places than the walk does
    headers = [data[b.start : b.end] for b in _boxes(data, 0, len(data)) if b.name in _HEADERS]
    for name in (b"stsz", b"trun", b"cmov"):
        if sum(part.count(name) for part in headers) > seen[name]:
            raise invalid(f"the mp4 has a box {_name(name)} where none belongs")


def starts_fragment(data: bytes) -> bool:
    """True when `data` has media fragments but no `moov` of its own: it continues a stream."""
    names = {box.name for box in _boxes(data, 0, len(data))}
    return b"moof" in names and b"moov" not in names


def init_segment(data: bytes) -> bytes:
    """The part before the first `moof`, or nothing when the file is not fragmented."""
    position = 0
    for box in _boxes(data, 0, len(data)):
        if box.name == b"moof":
            return data[:position]
        position = box.end
    return b""


def _boxes(data: bytes, position: int, end: int) -> Iterator[Box]:
    """Boxes that lie side by side between two offsets."""
    while position + 8 <= end:
        size = int.from_bytes(data[position : position + 4], "big")
        name = data[position + 4 : position + 8]
        start = position + 8
        if size == 1:
            size = int.from_bytes(data[position + 8 : position + 16], "big")
            start += 8
        elif size == 0:
            size = end - position
        if size < start - position:
            raise invalid(f"the mp4 box {_name(name)} has an impossible size")
        if position + size > end:
            raise invalid(
                f"the mp4 is truncated: its box {_name(name)} needs {position + size - end:,} more bytes"
            )
        yield Box(name, start, position + size)
        position += size


def _walk(data: bytes) -> Iterator[Box]:
    pending: list[tuple[int, Iterator[Box]]] = [(0, _boxes(data, 0, len(data)))]
    total = 0
    while pending:
        depth, boxes = pending[-1]
        box = next(boxes, None)
        if box is None:
            pending.pop()
            continue
        total += 1
        if total > _MAX_BOXES or depth >= _MAX_DEPTH:
            raise invalid("the mp4's boxes are too many or nested too deep")
        yield box
        if box.name in _PARENTS:
            pending.append((depth + 1, _boxes(data, box.start, box.end)))


def _check(data: bytes, box: Box, counts: dict[bytes, int], budget: Budget) -> None:
    name = box.name
    if name == b"cmov":
        raise unsupported("mp4 files with compressed headers are not supported")
    payload = memoryview(data)[box.start : box.end]
    try:
        if name == b"mvhd":
            _check_mvhd(payload, budget)
        elif name == b"tkhd":
            width, height = struct.unpack_from(">II", payload, 76 if payload[0] == 0 else 88)
            budget.check_size(width >> 16, height >> 16)
        elif name == b"stsd":
            _check_stsd(data, box, budget)
        elif name == b"dref":
            _check_dref(data, box)
        elif name == b"stsz":
            fixed, samples = struct.unpack_from(">II", payload, 4)
            if not fixed and samples * 4 > len(payload) - 12:
                raise invalid("the mp4's table 'stsz' is longer than its box")
            _count(counts, name, samples)
        elif name == b"trun":
            _count(counts, name, struct.unpack_from(">I", payload, 4)[0])
        elif name in _TABLES:
            _check_table(name, payload, counts)
    except (struct.error, IndexError) as error:
        raise invalid(f"the mp4 box {_name(name)} is too short") from error


def _check_mvhd(payload: memoryview, budget: Budget) -> None:
    long = payload[0] == 1
    scale, duration = struct.unpack_from(">IQ" if long else ">II", payload, 20 if long else 12)
    if scale and duration < (2**64 - 1 if long else 2**32 - 1):  # all ones: not known
        budget.check_duration(duration / scale * 1000)


def _check_stsd(data: bytes, box: Box, budget: Budget) -> None:
    for entry in _boxes(data, box.start + 8, box.end):
        if entry.name in _VIDEO_ENTRIES:
            width, height = struct.unpack_from(">HH", memoryview(data)[entry.start : entry.end], 24)
            budget.check_size(width, height)


_VIDEO_ENTRIES = frozenset(
    (b"avc1", b"avc3", b"hvc1", b"hev1", b"vp08", b"vp09", b"av01", b"mp4v", b"mjpg", b"jpeg", b"s263")
)


def _check_dref(data: bytes, box: Box) -> None:
    for entry in _boxes(data, box.start + 8, box.end):
        if not int.from_bytes(data[entry.start : entry.start + 4], "big") & 1:
            raise invalid("the mp4 refers to another file; a window must hold its own media")


def _check_table(name: bytes, payload: memoryview, counts: dict[bytes, int]) -> None:
    entry = _TABLES[name]
    (entries,) = struct.unpack_from(">I", payload, 4)
    if entries * entry > len(payload) - 8:
        raise invalid(f"the mp4's table {_name(name)} is longer than its box")
    if name in (b"stts", b"ctts"):
        runs = struct.iter_unpack(">II", payload[8 : 8 + entries * entry])
        _count(counts, name, sum(samples for samples, _ in runs))


def _count(counts: dict[bytes, int], name: bytes, samples: int) -> None:
    counts[name] += samples
    if counts[name] > _MAX_SAMPLES:
        raise too_large(f"the mp4's {_name(name)} claims {counts[name]:,} samples in one window")


def _name(name: bytes) -> str:
    return repr(name.decode("latin-1"))
