"""Audio in MP4, M4A and fragmented MP4: the boxes are followed here, libav decodes."""

from __future__ import annotations

from typing import Final

from duplex.codecs.decoding import AudioDecoder, MonoSink, invalid, too_large
from duplex.codecs.libav_decoder import LibavDecoder
from duplex.codecs.video_limits import Budget, VideoLimits
from duplex.codecs.video_mp4 import check_mp4

_MAX_INDEX_BYTES: Final = 8 << 20
_INDEXES: Final = (b"moov", b"moof")


class _Boxes:
    """Cuts bytes at the top-level boxes, and holds each index box until all of it is there."""

    def __init__(self) -> None:
        self.index_is_behind: bool | None = None
        """Whether audio comes before the first index. None: neither came yet."""
        self.ready = bytearray()
        """Bytes that may be passed on."""
        self._head = bytearray()
        self._left = 0  # bytes of the present box to come
        self._open_ended = False
        self._index: bytearray | None = None

    @property
    def complete(self) -> bool:
        """True at the end of a box."""
        return not self._head and not self._left

    def feed(self, data: bytes) -> None:
        """Take bytes. Raises for an index that lies or asks for too much; what came before it is ready."""
        at = 0
        while at < len(data):
            if self._open_ended:
                self.ready += data[at:]
                break
            if self._left:
                part = data[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                self.ready += self._body(part)
                continue
            wanted = 16 if len(self._head) >= 8 else 8
            part = data[at : at + wanted - len(self._head)]
            at += len(part)
            self._head += part
            if len(self._head) >= 8 and (self._head[:4] != b"\0\0\0\1" or len(self._head) == 16):
                self.ready += self._begin()

    def _begin(self) -> bytes:
        head, self._head = bytes(self._head), bytearray()
        size, kind = int.from_bytes(head[:4], "big"), head[4:8]
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        if not all(0x20 <= byte < 0x7F for byte in kind):
            raise invalid("the data is not an MP4 file, or is damaged")
        if size == 0:
            self._open_ended = True
        elif size < len(head):
            raise invalid("the data is not an MP4 file, or is damaged")
        else:
            self._left = size - len(head)
        if self.index_is_behind is None and kind in (*_INDEXES, b"mdat"):
            self.index_is_behind = kind == b"mdat"
        if kind not in _INDEXES:
            return head
        if size == 0:
            raise invalid("the MP4 file has an index of unknown length")
        if size > _MAX_INDEX_BYTES:
            raise too_large(f"the MP4 file has an index of {size} bytes")
        self._index = bytearray(head)
        return b"" if self._left else self._body(b"")

    def _body(self, part: bytes) -> bytes:
        if self._index is None:
            return part
        self._index += part
        if self._left:
            return b""
        index, self._index = bytes(self._index), None
        # the duration that it declares is judged by the sink, as for all formats
        check_mp4(index, Budget(VideoLimits(max_duration_ms=float("inf"))))
        return index


class Mp4Decoder(AudioDecoder):
    """MP4. A file with its index behind the audio is decoded when that comes.

    An index may list 100,000 packets of all its tracks: half an hour of AAC at 48 kHz. Fragments count
    one by one.
    """

    format = "mp4"

    def __init__(self, sink: MonoSink) -> None:
        super().__init__(sink)
        self._boxes = _Boxes()
        self._demuxer: LibavDecoder | None = None

    def _feed(self, data: bytes) -> None:
        try:
            self._boxes.feed(data)
        finally:
            # what stands before a bad box is judged first, however the bytes were cut
            self._pass_on()

    def _pass_on(self) -> None:
        if self._demuxer is None:
            if self._boxes.index_is_behind is None:
                if len(self._boxes.ready) > self._sink.limits.max_header_bytes:
                    raise invalid("the MP4 file has no index and no audio near its start")
                return
            self._demuxer = LibavDecoder(self._sink, "mp4", seekable=self._boxes.index_is_behind)
        if self._boxes.ready:
            ready, self._boxes.ready = bytes(self._boxes.ready), bytearray()
            self._demuxer.pass_on(ready)

    def _end(self) -> None:
        if self._demuxer is None:
            raise invalid("the data is empty, or ends before the audio of an MP4 file")
        if not self._boxes.complete:
            raise invalid("the MP4 file is cut off inside a box")
        self._demuxer.end()

    def close(self) -> None:
        if self._demuxer is not None:
            self._demuxer.close()
