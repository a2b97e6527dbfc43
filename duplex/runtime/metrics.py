"""What operators see, in Prometheus's form.

Counters of the hot path are plain numbers that are read when somebody looks; histograms are for what happens
a few times a turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from duplex.adapters.health import Figure
from duplex.core.errors import ErrorCode

_MS = 1e-3


class Gauges(msgspec.Struct, kw_only=True):
    """What is true at this moment."""

    sessions: int = 0
    sessions_detached: int = 0
    queue_bytes: int = 0
    queue_audio_s: float = 0.0
    journal_bytes: int = 0
    encoder_depth: int = 0
    stray_tasks: int = 0
    dropped_deltas: int = 0
    """Of the sessions that are open; `Metrics.dropped_deltas` has those of the closed ones."""


class Metrics(Collector):
    """One gateway's figures, in a registry of their own; `figures`: those of its models, with their ids."""

    def __init__(
        self,
        gauges: Callable[[], Gauges],
        figures: Callable[[], Iterable[tuple[str, Figure]]] = tuple,
    ) -> None:
        self.sessions_opened = 0
        self.resumed = 0
        self.replayed = 0
        self.lost = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.audio_frames_out = 0
        self.underruns = 0
        self.dropped_deltas = 0
        self.errors: Counter[ErrorCode] = Counter()
        self._gauges = gauges
        self._figures = figures
        self.registry = CollectorRegistry()
        self.ttfa = Histogram(
            "duplex_ttfa_seconds",
            "From the start of a response to its first audio written.",
            buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2, 5),
            registry=self.registry,
        )
        self.cancel_latency = Histogram(
            "duplex_cancel_seconds",
            "From reading a cancel to writing the response's terminal event.",
            buckets=(0.1 * _MS, 0.2 * _MS, 0.5 * _MS, 1 * _MS, 2 * _MS, 5 * _MS, 10 * _MS, 50 * _MS, 0.5),
            registry=self.registry,
        )
        self.loop_lag = Histogram(
            "duplex_loop_lag_seconds",
            "How much later than asked the event loop ran a timer.",
            buckets=(0.5 * _MS, 1 * _MS, 2 * _MS, 5 * _MS, 10 * _MS, 20 * _MS, 50 * _MS, 0.1, 0.5, 1),
            registry=self.registry,
        )
        self.registry.register(self)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        now = self._gauges()
        for name, value, words in (
            ("sessions", now.sessions, "Sessions that hold a slot."),
            ("sessions_detached", now.sessions_detached, "Of them, those that wait for their client."),
            ("queue_bytes", now.queue_bytes, "Payload bytes in all outbound queues."),
            ("queue_audio_seconds", now.queue_audio_s, "Audio in all outbound queues."),
            ("journal_bytes", now.journal_bytes, "Sent messages that are kept for clients that come back."),
            ("encoder_jobs", now.encoder_depth, "Jobs that wait for an encoder thread or run on one."),
            ("stray_tasks", now.stray_tasks, "Tasks of adapters that did not stop when they were told to."),
        ):
            yield GaugeMetricFamily(f"duplex_{name}", words, value=value)
        for name, value, words in (
            ("sessions_opened", self.sessions_opened, "Sessions opened."),
            ("sessions_resumed", self.resumed, "Sessions taken up again on another socket."),
            ("replayed_messages", self.replayed, "Messages that were sent again to a client that came back."),
            ("lost_messages", self.lost, "Messages that a client missed and that were not kept any more."),
            ("received_bytes", self.bytes_in, "Message bytes read."),
            ("sent_bytes", self.bytes_out, "Message bytes written."),
            ("audio_frames", self.audio_frames_out, "Audio events written."),
            ("underruns", self.underruns, "Audio events written after the client had run dry."),
            (
                "dropped_deltas",
                self.dropped_deltas + now.dropped_deltas,
                "Deltas of responses that were over: what would have been stale.",
            ),
        ):
            yield CounterMetricFamily(f"duplex_{name}", words, value=value)
        errors = CounterMetricFamily("duplex_errors", "Errors told to clients.", labels=["code"])
        for code, count in self.errors.items():
            errors.add_metric([code.value], count)
        yield errors
        yield from _families(self._figures())


def _families(figures: Iterable[tuple[str, Figure]]) -> Iterable[Metric]:
    """Samples of one name, from whatever model, belong together in the exposition."""
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for model, figure in figures:
        family = families.get(figure.name)
        if family is None:
            kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
            family = kind(f"duplex_{figure.name}", figure.words, labels=["model", *figure.labels])
            families[figure.name] = family
        family.add_metric([model, *figure.labels.values()], figure.value)
    return families.values()
