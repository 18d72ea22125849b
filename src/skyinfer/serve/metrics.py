"""What GET /metrics shows, in a registry of the server's own (not prometheus_client's global one)."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

# upper bounds in seconds, from a small model's answers to a large one's
_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class Metrics:
    """Counters, histograms and gauges of one server."""

    content_type = CONTENT_TYPE_LATEST.encode()

    def __init__(self, queue_depth: Callable[[], float], connections: Callable[[], float]) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "skyinfer_requests", "Requests, by route and status.", ["route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "skyinfer_request_seconds",
            "From a request's head to its answer.",
            ["route"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._tokens = Counter("skyinfer_input_tokens", "Tokens that a model read.", ["model"], registry=registry)
        self._loads = Gauge(
            "skyinfer_model_load_seconds", "How long a model took to load.", ["model"], registry=registry
        )
        Gauge(
            "skyinfer_queue_depth", "Requests that wait for a model or are run there.", registry=registry
        ).set_function(queue_depth)
        Gauge("skyinfer_connections", "Open connections.", registry=registry).set_function(connections)
        # `labels` takes a lock and builds a tuple of strings each time, so its results are kept
        self._request_of: dict[tuple[str, int], Counter] = {}
        self._seconds_of: dict[str, Histogram] = {}
        self._tokens_of: dict[str, Counter] = {}

    def loaded(self, model: str, seconds: float) -> None:
        self._loads.labels(model).set(seconds)
        self._tokens_of[model] = self._tokens.labels(model)

    def request(self, route: str, status: int, seconds: float) -> None:
        counter = self._request_of.get((route, status))
        if counter is None:
            counter = self._request_of[route, status] = self._requests.labels(route, str(status))
            self._seconds_of.setdefault(route, self._seconds.labels(route))
        counter.inc()
        self._seconds_of[route].observe(seconds)

    def tokens(self, model: str, n: int) -> None:
        self._tokens_of[model].inc(n)

    def text(self) -> bytes:
        return generate_latest(self._registry)
