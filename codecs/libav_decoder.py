"""MP4, and codecs other than Opus in Ogg, by libav's demuxers from bytes that arrive in pieces.

libav pulls and we are fed, so the demuxer runs on a thread of its own; `feed` hands it bytes and waits until
it asks for more. Nothing of a file can make libav open another one: the container is fixed beforehand and
every nested open is refused.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Final, NoReturn

import av
import av.error
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer

from duplex.codecs.decoding import MonoSink, invalid
from duplex.codecs.packet_decoder import frame_samples
from duplex.core.errors import DuplexError, ErrorCode

_READ_BYTES: Final = 32 << 10


class _Pipe:
    """The bytes between `feed` and the demuxer's thread, and whose turn it is.

    A seekable pipe keeps all it was given (the input limit bounds it); the other forgets what was read.
    """

    def __init__(self, *, seekable: bool) -> None:
        self._turn = threading.Condition()
        self._bytes = bytearray()
        self._start = 0  # stream position of the first kept byte
        self._position = 0
        self._ended = False
        self._closed = False
        self._waiting = False
        self.finished = False
        self.failure: BaseException | None = None
        self._seekable = seekable

    # the feeding side

    def put(self, data: bytes, *, last: bool = False) -> None:
        """Hand over bytes, and wait until the reader wants more, or is done."""
        with self._turn:
            self._bytes += data
            self._ended |= last
            self._waiting = False
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._waiting or self.finished or self._closed)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    def close(self) -> None:
        """Let the reader's thread end; all later reads find the end."""
        with self._turn:
            self._closed = self._ended = True
            self._bytes.clear()
            self._turn.notify_all()

    def finish(self, failure: BaseException | None) -> None:
        with self._turn:
            self.finished = True
            self.failure = failure
            self._turn.notify_all()

    # the demuxer's side, as a file object

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._seekable

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        target = offset if whence == os.SEEK_SET else self._position + offset
        if whence == os.SEEK_END or target < self._start:
            return -1  # libav's error value: the length is not known, and read bytes may be gone
        self._position = target
        return target

    def read(self, size: int) -> bytes:
        with self._turn:
            while not self._ended and self._position >= self._start + len(self._bytes):
                self._waiting = True
                self._turn.notify_all()
                self._turn.wait()
            at = self._position - self._start
            data = bytes(self._bytes[at : at + size])
            self._position += len(data)
            if not self._seekable:
                del self._bytes[: at + len(data)]
                self._start = self._position
            return data


def _refuse_open(*_: Any) -> NoReturn:
    raise PermissionError("media files must not refer to other files")


def _decode(pipe: _Pipe, sink: MonoSink, container_format: str) -> None:
    """The demuxer's thread: all audio of the stream into `sink`."""
    try:
        with av.open(
            pipe,
            "r",
            format=container_format,
            options={"protocol_whitelist": "none"},
            buffer_size=_READ_BYTES,
            io_open=_refuse_open,
        ) as container:
            _decode_container(container, sink, container_format)
    except DuplexError as error:
        pipe.finish(error)
    except (av.error.FFmpegError, OSError, ValueError, IndexError) as error:
        failure = invalid(f"the {container_format} data is damaged, cut off or of another format")
        failure.__cause__ = error
        pipe.finish(failure)
    except BaseException as error:
        pipe.finish(error)
    else:
        pipe.finish(None)


def _decode_container(container: InputContainer, sink: MonoSink, container_format: str) -> None:
    if not container.streams.audio:
        raise DuplexError(ErrorCode.UNSUPPORTED_FORMAT, f"the {container_format} file has no audio stream")
    stream: AudioStream = container.streams.audio[0]
    if stream.codec_context is None:
        raise DuplexError(ErrorCode.UNSUPPORTED_FORMAT, f"the {container_format} file's codec is not known")
    stream.codec_context.thread_count = 1
    rate = stream.codec_context.sample_rate
    declared = None
    if stream.duration is not None and stream.time_base is not None:
        declared = int(stream.duration * stream.time_base * rate)
    elif container.duration is not None:
        declared = int(container.duration * rate // av.time_base)
    if rate:
        sink.open(rate, stream.codec_context.channels, declared)
    held: tuple[list[AudioFrame], float] = ([], 0.0)
    for packet in container.demux(stream):
        frames = packet.decode()
        if frames:
            _add(sink, held[0])
            seconds = float((packet.duration or 0) * packet.time_base) if packet.size else 0.0
            held = (frames, seconds)
    # MP4 says where the audio ends by the duration of its last packet, Ogg by marks that libav follows
    _add(sink, held[0], seconds=held[1] if container_format == "mp4" else 0.0)
    if sink.native_rate is None or not held[0]:
        raise invalid(f"the {container_format} file has no audio data")


def _add(sink: MonoSink, frames: list[AudioFrame], *, seconds: float = 0.0) -> None:
    """Frames of one packet, cut to `seconds` (0: whole)."""
    for frame in frames:
        sink.open(frame.sample_rate, frame.layout.nb_channels)
        kept = round(seconds * frame.sample_rate) if seconds else frame.samples
        sink.add(frame_samples(frame), discard=max(0, frame.samples - kept))


class LibavDecoder:
    """One demuxer thread. `pass_on` and `end` return when it has done what the bytes so far allow.

    An owner that goes away without `close` ends the thread too.
    """

    def __init__(self, sink: MonoSink, container_format: str, *, seekable: bool = False) -> None:
        self._pipe = _Pipe(seekable=seekable)
        self._finalizer = weakref.finalize(self, self._pipe.close)
        thread = threading.Thread(
            target=_decode,
            args=(self._pipe, sink, container_format),
            name=f"duplex-demux-{container_format}",
            daemon=True,
        )
        thread.start()

    def pass_on(self, data: bytes) -> None:
        """More bytes of the stream."""
        self._pipe.put(data)

    def end(self) -> None:
        """No more bytes."""
        self._pipe.put(b"", last=True)
        self.close()

    def close(self) -> None:
        """End the thread."""
        self._finalizer()
