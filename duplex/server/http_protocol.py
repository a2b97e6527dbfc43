"""The HTTP protocol of the server: uvicorn's, and a way to drop a connection whose peer does not read."""

from __future__ import annotations

from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ABORT: Final = "duplex.abort"
"""Key in the ASGI scope's extensions of a function that drops the connection at once. A transport that is only
closed waits for its peer to read what is left, for as long as the peer likes."""


class GatewayHttp(HttpToolsProtocol):
    """One connection."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, Any], self.scope)["extensions"] = {ABORT: self.transport.abort}
