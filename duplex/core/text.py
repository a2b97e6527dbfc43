"""Text that may go to the wire: whole characters only.

Models and tokenizers hand out Python strings that hold halves of UTF-16 surrogate pairs; no encoder takes
them. A high half is kept back until the low half follows; a half without its other is U+FFFD.
"""

from __future__ import annotations


def well_formed(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD, one for each."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class WholeCharacters:
    """Joins characters that are split over the pieces of one text."""

    __slots__ = ("_high",)

    def __init__(self) -> None:
        self._high = ""

    def push(self, piece: str) -> str:
        """What of the text so far can be sent and was not yet; empty while a character is open."""
        if self._high:
            piece = self._high + piece
            self._high = ""
        if piece.isascii():
            return piece
        if "\ud800" <= piece[-1] <= "\udbff":
            self._high = piece[-1]
            piece = piece[:-1]
        return well_formed(piece)

    def end(self) -> str:
        """The text is over: U+FFFD for a character that stayed open, else nothing."""
        open_, self._high = self._high, ""
        return "\ufffd" if open_ else ""
