"""The backend `cv-preinfer`: the published selector, run as a program of its own for each window.

The package codec-video-prep brings it. It reads whole files only, so each window has to stand alone: begin
with a key frame, in MP4, Matroska or MPEG-TS.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from duplex.adapters.mage_vl.windows.codec import CodecWindows
from duplex.adapters.mage_vl.windows.cv_preinfer_output import read_output
from duplex.adapters.mage_vl.windows.selection import GROUP_FRAMES, GROUP_IMAGES
from duplex.adapters.mage_vl.windows.source import Place, Visible
from duplex.adapters.mage_vl.windows.types import MOST_PATCHES, PATCH, VisualInput
from duplex.codecs.video import VideoLimits
from duplex.codecs.video_demux import probe
from duplex.codecs.video_sniff import Container
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import CodecWindow, ImageWindow

PROGRAM: Final = "cv-preinfer"
TIMEOUT_S: Final = 60.0

_SUFFIXES: Final = {Container.MP4: ".mp4", Container.MATROSKA: ".mkv", Container.MPEG_TS: ".ts"}
_CODECS: Final = ("h264", "hevc", "vp9")
_LEAST_GROUP: Final = 8  # frames; it makes the groups as large as it sees fit
_TRIAL_S: Final = 60.0
_WORDS: Final = 300  # of what the program says, in an error
_INSTALL: Final = (
    "install codec-video-prep==0.2.5 (it wants numpy below 2: give it an environment of its own) and put its "
    "cv-preinfer on the PATH or name it by the option cv_preinfer"
)


def find_program(program: str | None) -> str:
    """Path of a cv-preinfer that runs.

    Args:
        program: Where it is; None: on the PATH.

    Raises:
        DuplexError: `bad_config`, with words that say what to install.
    """
    found = shutil.which(program or PROGRAM)
    if found is None:
        where = f"{program!r} is no program" if program else "cv-preinfer is not installed"
        raise DuplexError(ErrorCode.BAD_CONFIG, f"{where}: {_INSTALL}", param="cv_preinfer")
    if shutil.which("ffprobe") is None:
        raise DuplexError(
            ErrorCode.BAD_CONFIG, "cv-preinfer needs ffprobe on the PATH: install ffmpeg", param="cv_preinfer"
        )
    try:
        trial = subprocess.run(
            [found, "--help"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRIAL_S, check=False
        )
        failed = trial.stderr.decode(errors="replace").strip().splitlines()[-1:] if trial.returncode else None
    except (OSError, subprocess.TimeoutExpired) as error:
        failed = [str(error)]
    if failed is not None:
        said = (failed or [""])[0][:_WORDS]
        raise DuplexError(
            ErrorCode.BAD_CONFIG, f"{found} does not run ({said}): {_INSTALL}", param="cv_preinfer"
        )
    return found


class PreinferWindows:
    """Has one session's windows selected by cv-preinfer. Stills have no codec: `CodecWindows` takes them.

    Args:
        program: Path of the program.
        timeout_s: How long it may take for a window.
        max_pixels: Pixels of a canvas.
        image_max_pixels: Pixels of a lone image.
        limits: Bounds of a window.
        place: Where the session's video goes on.
    """

    def __init__(
        self,
        *,
        program: str,
        timeout_s: float = TIMEOUT_S,
        max_pixels: int,
        image_max_pixels: int,
        limits: VideoLimits | None = None,
        place: Place | None = None,
    ) -> None:
        self._program, self._timeout_s, self._max_pixels = program, timeout_s, max_pixels
        self._limits = limits
        patches = GROUP_IMAGES * max_pixels // PATCH**2  # of a group
        self._most_frames = max(_LEAST_GROUP, MOST_PATCHES // patches * _LEAST_GROUP)
        self._stills = CodecWindows(max_pixels=max_pixels, image_max_pixels=image_max_pixels, limits=limits)
        self._origin_ms, self._end_ms = place or Place()
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._closed = False

    def see(self, window: Visible, codec: CodecWindow | None = None) -> VisualInput | None:
        """The window's canvases. `codec` is not used.

        Raises:
            DuplexError: `empty_input`, `invalid_media`, `media_too_large` or `unsupported_format` for a
                window that cannot be used, `adapter_failed` when the program takes too long,
                `session_closing` after `close`. The windows before and after it are not touched by that.
        """
        if isinstance(window, ImageWindow) or window.frames:
            return self._stills.see(window)
        if not window.data:
            raise DuplexError(ErrorCode.EMPTY_INPUT, "a video window without bytes or frames", param="data")
        found = probe(window.data, window.kind, self._limits)
        if found.codec not in _CODECS:
            raise DuplexError(
                ErrorCode.UNSUPPORTED_FORMAT, f"cv-preinfer reads {', '.join(_CODECS)}, not {found.codec}"
            )
        start_ms = self._end_ms if window.pts_ms is None else window.pts_ms
        if self._origin_ms is None:
            self._origin_ms = start_ms
        with tempfile.TemporaryDirectory(prefix="duplex-cv-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            video = folder / f"window{_SUFFIXES[found.container]}"
            video.write_bytes(window.data)
            self._run(video, folder / "out", min(found.frames, self._most_frames))
            output = read_output(folder / "out", self._limits)
        lasts = window.duration_ms
        lasts = found.frames * output.frame_ms if lasts is None else lasts
        self._end_ms = start_ms + lasts
        start_s = max(0.0, start_ms - self._origin_ms) / 1000
        frame_times_s = start_s + np.arange(output.positions[..., 0].max() + 1) * (output.frame_ms / 1000)
        return VisualInput(
            images=output.images,
            positions=output.positions,
            times_s=frame_times_s[output.positions[..., 0].min((1, 2))],
            frame_times_s=frame_times_s,
            segment_id=window.segment_id,
            pts_ms=start_ms,
            duration_ms=lasts,
        )

    def finish(self) -> VisualInput | None:
        """The input ends. Nothing was held back."""
        return None

    def reset(self) -> None:
        """Windows are missing before the next: each stands alone, so that nothing is to be done."""

    def close(self) -> None:
        """Kill what runs. From any thread."""
        self._stills.close()
        with self._lock:
            self._closed = True
            if self._running is not None:
                _kill(self._running)

    @property
    def place(self) -> Place:
        """Where the session's video is."""
        return Place(self._origin_ms, self._end_ms)

    def _run(self, video: Path, out: Path, frames: int) -> None:
        command = _command(self._program, video, out, frames, self._max_pixels)
        said = video.with_name("said.txt")
        with said.open("wb") as sink:
            with self._lock:
                if self._closed:
                    raise _closing()
                # a group of its own: what it starts (ffprobe) is killed with it
                running = self._running = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=sink,
                    cwd=video.parent,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    start_new_session=True,
                )
            try:
                status = running.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                raise DuplexError(
                    ErrorCode.ADAPTER_FAILED, f"cv-preinfer took more than {self._timeout_s:g} s for a window"
                ) from None
            finally:
                with self._lock:
                    _kill(running)
                    self._running = None
        if self._closed:
            raise _closing()
        if status:
            lines = said.read_bytes()[-4096:].decode(errors="replace").strip().splitlines() or ["no words"]
            words = lines[-1].replace(str(video.parent), "…")[:_WORDS]
            raise DuplexError(ErrorCode.INVALID_MEDIA, f"cv-preinfer could not use the window: {words}")


def _command(program: str, video: Path, out: Path, frames: int, max_pixels: int) -> list[str]:
    return [
        *(program, "--video", str(video), "--out_dir", str(out)),
        *("--num_sampled_frames", str(frames), "--grouping_mode", "readiness"),
        *("--group_size", str(GROUP_FRAMES), "--images_per_group", str(GROUP_IMAGES)),
        *("--patch", str(PATCH), "--max_pixels", str(max_pixels)),
        *("--min_group_frames", str(_LEAST_GROUP), "--max_group_frames", "64"),
        *("--readiness_sum_threshold", "0"),
        *("--avoid_keyframes", "--canvas_format", "jpg"),
    ]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End it and all that it started. `start_new_session` made its number that of its group."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_program(
    program: str, video: Path, out: Path, frames: int, *, max_pixels: int, timeout_s: float
) -> None:
    """Run cv-preinfer on a file of one's own, as for a window. Raises `subprocess.SubprocessError`."""
    command = _command(program, video, out, frames, max_pixels)
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=True)


def _closing() -> DuplexError:
    return DuplexError(ErrorCode.SESSION_CLOSING, "the session was closed")
