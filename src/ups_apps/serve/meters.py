"""Counts what a service does, and writes it as Prometheus reads it."""

from __future__ import annotations

import threading
from collections import Counter

ENDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # seconds
HELP = {
    "ups_requests_total": ("counter", "Requests, by path and by the status of the answer"),
    "ups_frames_total": ("counter", "Frames that were predicted"),
    "ups_batches_total": ("counter", "Batches that were computed"),
    "ups_batched_requests_total": ("counter", "Requests that were computed in them"),
    "ups_waiting": ("gauge", "Requests that wait or are computed"),
    "ups_streams": ("gauge", "Streams that are open"),
    "ups_request_seconds": ("histogram", "Seconds from a request to its answer"),
}


class Meters:
    """Numbers by name and labels; any thread may add to them."""

    def __init__(self) -> None:
        self.values: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, amount: float = 1, labels: str = "") -> None:
        """Add to a counter or a gauge."""
        with self._lock:
            self.values[name, labels] += amount  # type: ignore[assignment]

    def took(self, seconds: float) -> None:
        """Count a request that took so long."""
        for end in ENDS:
            self.add("ups_request_seconds_bucket", float(seconds <= end), f'{{le="{end:g}"}}')
        self.add("ups_request_seconds_bucket", 1, '{le="+Inf"}')
        self.add("ups_request_seconds_sum", seconds)
        self.add("ups_request_seconds_count", 1)

    def text(self) -> str:
        """All of them in Prometheus' text format."""
        with self._lock:
            values = dict(self.values)
        lines = []
        for name, (kind, words) in HELP.items():
            rows = [(key, value) for key, value in values.items() if key[0] == name or key[0].startswith(f"{name}_")]
            lines += [f"# HELP {name} {words}.", f"# TYPE {name} {kind}"]
            lines += [f"{key}{labels} {value:g}" for (key, labels), value in rows]
            if not rows and kind != "histogram":
                lines.append(f"{name} 0")
        return "\n".join(lines) + "\n"
