"""Bearer tokens: one for the gateway, in the Authorization header or as `?token=`."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from duplex.core.errors import DuplexError, ErrorCode


def check_token(expected: str | None, headers: Mapping[str, str], query: Mapping[str, str]) -> None:
    """Let pass, or raise `DuplexError(UNAUTHORIZED)`. Compared in constant time.

    `headers` are by lower-case name. A header that is there counts, whatever the query says.
    """
    if expected is None:
        return
    header = headers.get("authorization")
    if header is not None:
        scheme, _, given = header.partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
    else:
        given = query.get("token", "")
    if not hmac.compare_digest(given.encode(errors="replace"), expected.encode()):
        raise DuplexError(ErrorCode.UNAUTHORIZED, "a valid bearer token is needed")
