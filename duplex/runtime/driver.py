"""Driving the session core from several places: one guard and one order for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol

from duplex.core.effects import Effect
from duplex.core.session import Session
from duplex.core.types import Delivery

P = ParamSpec("P")


class Driver(Protocol):
    """What the parts of a session's runner need of it."""

    @property
    def session(self) -> Session:
        """The core; to be asked freely, but to be driven by `step` alone."""
        ...

    def now(self) -> float:
        """Seconds, as the core is told them."""
        ...

    def deliver(self, epoch: int, delta: Delivery) -> None:
        """`step` of `Session.deliver`, the way of every frame."""
        ...

    def step(self, step: Callable[P, list[Effect]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a method of the core and carry out its effects, behind those that are being carried out."""
        ...
