"""Messages of the OpenAI Realtime dialect that are ours, for those who asked for their extension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from duplex.core.events import (
    DrainNotice,
    Event,
    GateDecided,
    InputLagged,
    PlaybackDucked,
    PlaybackUnducked,
    SessionResumed,
    UserOverheard,
)
from duplex.dialects.native_events import Extension


def private_messages(event: Event, extensions: frozenset[Extension]) -> Iterator[dict[str, Any]]:
    """Without their `event_id`."""
    match event:
        case GateDecided() if Extension.SIGNALS in extensions:
            yield {
                "type": "gate.score",
                "score": event.score,
                "speak": event.speak,
                "pts_ms": event.pts_ms,
                "segment_id": event.segment_id,
            }
        case InputLagged() if Extension.SIGNALS in extensions:
            yield {"type": "input.lag", "lag_ms": event.lag_ms, "coalesced": event.coalesced}
        case UserOverheard() if Extension.SIGNALS in extensions:
            yield {"type": "input.overheard", "at_ms": event.at_ms, "text": event.text}
        case PlaybackDucked() if Extension.PLAYBACK in extensions:
            yield {"type": "playback.duck", "response_id": event.response_id}
        case PlaybackUnducked() if Extension.PLAYBACK in extensions:
            yield {"type": "playback.unduck", "response_id": event.response_id}
        case DrainNotice() if Extension.LIFECYCLE in extensions:
            yield {"type": "drain.notice", "grace_ms": event.grace_ms}
        case SessionResumed():  # there is one only for a client that counts messages
            yield {"type": "session.resumed", **msgspec.structs.asdict(event)}
