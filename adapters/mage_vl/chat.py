"""Prompts for a server that sees: OpenAI's chat messages, frames as JPEG."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

from duplex.adapters.engine.language import ChatPrompt
from duplex.adapters.mage_vl.ports import Draft, Picture
from duplex.core.types import HistoryItem

CHARACTERS_PER_TOKEN: Final = 2.0
"""What text is counted as, for the context: few texts have more tokens. Only the server can count."""
_MESSAGE_TOKENS: Final = 8


class ServerWriter:
    """A `Writer`. `image_tokens`: what an image counts, None: one token for each 32 × 32 pixels of it."""

    def __init__(self, image_tokens: int | None = None) -> None:
        self._image_tokens = image_tokens

    def draft(
        self,
        pictures: Sequence[Picture],
        question: str,
        *,
        instructions: str = "",
        said: Sequence[HistoryItem] = (),
    ) -> Draft:
        """A prompt, and about how many tokens it has."""
        messages: list[dict[str, Any]] = []
        if instructions:
            messages.append({"role": "system", "content": instructions})
        messages += [{"role": item.role, "content": item.text} for item in said if item.text]
        parts: list[dict[str, Any]] = []
        for picture in pictures:
            url = "data:image/jpeg;base64," + base64.b64encode(picture.data).decode()
            if picture.time_s is not None:
                parts.append({"type": "text", "text": f"<{picture.time_s:.1f} seconds>"})
            parts.append({"type": "image_url", "image_url": {"url": url}})
        parts.append({"type": "text", "text": question})
        messages.append({"role": "user", "content": parts if pictures else question})
        texts = [instructions, question, *(item.text for item in said)]
        tokens = sum(_tokens(text) for text in texts) + _MESSAGE_TOKENS * (len(messages) + len(pictures))
        tokens += sum(self._image_tokens or picture.tokens for picture in pictures)
        return Draft(prompt=ChatPrompt(messages=tuple(messages)), tokens=tokens)


def _tokens(text: str) -> int:
    wide = sum(ord(character) > 0x2E7F for character in text)
    return round(wide + (len(text) - wide) / CHARACTERS_PER_TOKEN)
