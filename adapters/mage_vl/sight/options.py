"""What sight can be told."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from duplex.adapters.engine.settings import WorkerSettings, WorkerSpec
from duplex.adapters.mage_vl.sight.arena import Layout

MODEL: Final = "duplex.adapters.mage_vl.sight.torch_model:load"


class SightOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the process that looks.

    `max_patches`: patches (16 × 16 pixels) of one batch, and of one window: the default is 32 frames of
    960 × 544; shared memory takes about 2 KB a patch and slot. `max_sessions`: windows in one batch.
    `factory` makes the model of `options`; `env` is added to the process's environment. `stats_s`: how often
    it says that it lives; `stuck_s`: a batch that takes longer means that the device hangs; seconds.
    """

    options: dict[str, Any] = {}
    max_patches: Annotated[int, msgspec.Meta(ge=4)] = 65_536
    max_sessions: Annotated[int, msgspec.Meta(ge=1)] = 32
    factory: str = MODEL
    env: dict[str, str] = {}
    stats_s: float = 1.0
    stuck_s: float = 60.0

    def spec(self, arena: int) -> WorkerSpec:
        """The worker, which inherits the arena's file as descriptor `arena`."""
        told = HostOptions(arena=arena, patches=self.max_patches, model=self.options)
        return WorkerSpec(
            factory=self.factory,
            options=msgspec.to_builtins(told),
            env=self.env,
            settings=WorkerSettings(stats_s=self.stats_s, stuck_s=self.stuck_s),
        )


class HostOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker is started with: the arena's descriptor, patches of a batch, the model's own options."""

    arena: int
    patches: int
    model: dict[str, Any]

    def layout(self, *, depth: int, token_bytes: int) -> Layout:
        """A slot for each batch that is worked on, and one whose tokens are being taken out."""
        return Layout(slots=depth + 1, patches=self.patches, token_bytes=token_bytes)
