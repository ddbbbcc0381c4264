"""GET /metrics: what the server has done, in the text format of Prometheus.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clearhead.config.serving import ServerConfig
from clearhead.server.loaded_runs import LoadedRuns

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
MAX_LABEL = 200  # characters
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Histogram:
    """How often a time was below each bound."""

    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(BOUNDS) + 1), 0.0

    def observe(self, seconds: float) -> None:
        """Add a time."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def lines(self, name: str) -> Iterator[str]:
        """As Prometheus reads it: each bucket holds those below, too."""
        total = 0
        for bound, count in zip((*BOUNDS, float("inf")), self.counts, strict=True):
            total += count
            yield sample(f"{name}_bucket", {"le": "+Inf" if bound == float("inf") else f"{bound:g}"}, total)
        yield sample(f"{name}_sum", {}, self.sum)
        yield sample(f"{name}_count", {}, total)


class Metrics:
    """Counts of requests, and times of what is streamed. Used on the event loop's thread."""

    def __init__(self) -> None:
        self.requests = Counter[tuple[str, int]]()  # by route and status
        self.running = 0
        self.first_event, self.between_events = Histogram(), Histogram()

    def text(self, runs: LoadedRuns, slots: int) -> str:
        """Everything, with what the runs in memory count themselves."""
        lines = [*_about("clearhead_requests_total", "counter", "answers by route and status")]
        for (route, status), count in sorted(self.requests.items()):
            lines.append(sample("clearhead_requests_total", {"route": route, "status": str(status)}, count))
        lines += _about("clearhead_requests_running", "gauge", "requests that are being answered")
        lines.append(sample("clearhead_requests_running", {}, self.running))
        tokens = runs.tokens()
        queues = {run.name: run.texts for run in runs.loaded if run.texts is not None}
        numbers = {name: queue.n_texts for name, queue in queues.items()}
        for name, kind, about, values in (
            ("texts_running", "gauge", "texts in a slot", {n: min(c, slots) for n, c in numbers.items()}),
            (
                "texts_waiting",
                "gauge",
                "texts that wait for a slot",
                {n: max(0, c - slots) for n, c in numbers.items()},
            ),
            ("prompt_tokens_total", "counter", "tokens of prompts", {n: read for n, (read, _) in tokens.items()}),
            ("generated_tokens_total", "counter", "tokens written", {n: new for n, (_, new) in tokens.items()}),
        ):
            lines += _about(f"clearhead_{name}", kind, about)
            lines += [sample(f"clearhead_{name}", {"model": model}, value) for model, value in sorted(values.items())]
        for name, about, histogram in (
            ("first_event_seconds", "from a request to the first event of its stream", self.first_event),
            ("between_events_seconds", "between the events of a stream", self.between_events),
        ):
            lines += _about(f"clearhead_{name}", "histogram", about)
            lines += histogram.lines(f"clearhead_{name}")
        return "\n".join(lines) + "\n"


class Metering:
    """ASGI middleware that counts what is answered. A path that no route has is counted as `other`."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Sequence[BaseRoute]) -> None:
        self.app, self.metrics = app, metrics
        self.paths: dict[object, str] = {route.endpoint: route.path for route in routes if isinstance(route, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, is_stream, last = 499, False, time.perf_counter()  # 499: the client went before there was an answer
        histogram = self.metrics.first_event

        async def counting(message: Message) -> None:
            nonlocal status, is_stream, last, histogram
            if message["type"] == "http.response.start":
                status = message["status"]
                is_stream = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
            elif is_stream and message.get("more_body"):
                now = time.perf_counter()
                histogram.observe(now - last)
                last, histogram = now, self.metrics.between_events
            await send(message)

        self.metrics.running += 1
        try:
            await self.app(scope, receive, counting)
        finally:
            self.metrics.running -= 1
            self.metrics.requests[self.paths.get(scope.get("endpoint"), "other"), status] += 1


async def show_metrics(request: Request) -> Response:
    """All metrics."""
    config: ServerConfig = request.app.state.config
    metrics: Metrics = request.app.state.metrics
    return Response(metrics.text(request.app.state.runs, config.slots), media_type=CONTENT_TYPE)


ROUTES = [Route("/metrics", show_metrics, methods=["GET"])]


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    """One line; a label's value is escaped, and cut where it is long."""
    pairs = ",".join(f'{label}="{text[:MAX_LABEL].translate(ESCAPES)}"' for label, text in labels.items())
    return f"{name}{{{pairs}}} {value}" if labels else f"{name} {value}"


def _about(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"
