"""Reference audio that a request brings: data URLs, files under one allowed folder, allowed hosts.

Blocking: callers run these functions off the event loop.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

import msgspec
import pybase64

from duplex.adapters.speech import ReferenceAudio
from duplex.codecs.decoders import decode_audio
from duplex.codecs.decoding import DecodeLimits
from duplex.core.errors import DuplexError, ErrorCode

MAX_REFERENCE_BYTES: Final = 10 * 1024 * 1024
LIMITS: Final = DecodeLimits(
    max_seconds=60.0, max_decoded_bytes=32 << 20, max_input_bytes=MAX_REFERENCE_BYTES
)
"""What a reference may unpack to."""
FETCH_TIMEOUT_S: Final = 10.0
_PART_BYTES: Final = 64 * 1024


class ReferencePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a `ref_audio` may point to. Empty: data URLs only. Hosts are exact names, with the port if any."""

    hosts: frozenset[str] = frozenset()
    folder: Path | None = None


def load_reference(url: str, policy: ReferencePolicy) -> ReferenceAudio:
    """Decode what `url` names.

    Raises:
        DuplexError: `INVALID_VALUE` for what is no allowed URL, `INVALID_MEDIA`, `MEDIA_TOO_LARGE`,
            `UNSUPPORTED_FORMAT` for what it holds.
    """
    scheme = url[:16].partition(":")[0].lower()
    match scheme:
        case "data":
            data = _data_url(url)
        case "file":
            data = _file_url(url, policy.folder)
        case "http" | "https":
            data = _http_url(url, policy.hosts)
        case _:
            raise _refused("ref_audio must be a data:, file: or http(s): URL")
    return decode_reference(data, param="ref_audio")


def decode_reference(data: bytes, *, param: str) -> ReferenceAudio:
    """Mono samples of a recording in any known container, at its own rate, within `LIMITS`."""
    try:
        samples, rate = decode_audio(data, dtype="float32", limits=LIMITS)
    except DuplexError as error:
        error.param = error.param or param
        raise
    return ReferenceAudio(samples=samples, sample_rate=rate)


def _data_url(url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not comma:
        raise _refused("ref_audio is no data URL")
    if len(body) > MAX_REFERENCE_BYTES * 4 // 3 + 4:
        raise _too_large()
    if not head.lower().endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        return pybase64.b64decode(body, validate=True)
    except ValueError:
        raise DuplexError(
            ErrorCode.INVALID_BASE64, "ref_audio holds invalid base64", param="ref_audio"
        ) from None


def _file_url(url: str, folder: Path | None) -> bytes:
    parts = _split(url)
    if folder is None or parts.netloc not in ("", "localhost"):
        raise _refused("file URLs are not allowed here")
    # the same words for what is outside and what is missing: nothing of the disk is told
    refused = _refused("no such file in the allowed folder")
    try:
        path = Path(urllib.parse.unquote(parts.path)).resolve()
        if not path.is_relative_to(folder.resolve()) or not path.is_file():  # a pipe would never end
            raise refused
        with path.open("rb") as file:
            data = file.read(MAX_REFERENCE_BYTES + 1)
    except (OSError, ValueError, RuntimeError):  # missing, a null byte, a loop of links
        raise refused from None
    if len(data) > MAX_REFERENCE_BYTES:
        raise _too_large()
    return data


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead from an allowed host to one that is not."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def _http_url(url: str, hosts: frozenset[str]) -> bytes:
    if _split(url).netloc.lower() not in hosts:
        raise _refused("http URLs of this host are not allowed here")
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + FETCH_TIMEOUT_S
    data = bytearray()
    try:
        with opener.open(url, timeout=FETCH_TIMEOUT_S) as response:
            while part := response.read1(_PART_BYTES):
                data += part
                if len(data) > MAX_REFERENCE_BYTES:
                    raise _too_large()
                if time.monotonic() > deadline:  # a host that sends a byte now and then
                    raise TimeoutError("timed out")
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise _refused(f"ref_audio could not be fetched: {getattr(error, 'reason', error)}"[:200]) from None
    return bytes(data)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise _refused("ref_audio is no URL") from None


def _refused(words: str) -> DuplexError:
    return DuplexError(ErrorCode.INVALID_VALUE, words, param="ref_audio")


def _too_large() -> DuplexError:
    return DuplexError(
        ErrorCode.MEDIA_TOO_LARGE, f"ref_audio has over {MAX_REFERENCE_BYTES} bytes", param="ref_audio"
    )
