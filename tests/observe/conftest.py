"""Fixtures that collect spans and metrics in memory."""

import collections

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from actgent.observe import Telemetry


class Recorder(SpanProcessor):
    """Collects the spans and metrics of a program, and checks rules that hold for all spans."""

    def __init__(self) -> None:
        self.started: collections.Counter[int] = collections.Counter()
        self.spans: list[ReadableSpan] = []
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(self)
        self._metrics = InMemoryMetricReader()
        self.meters = MeterProvider(metric_readers=[self._metrics])

    def on_start(self, span, parent_context=None):
        self.started[span.get_span_context().span_id] += 1

    def on_end(self, span):
        self.spans.append(span)

    def telemetry(self, **options) -> Telemetry:
        return Telemetry(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def tree(self) -> list[str]:
        """Return the names of all spans by start time, each indented by two spaces more than its parent."""
        self.check()
        known = {span.context.span_id for span in self.spans}
        lines: list[str] = []

        def add(parent: int | None, depth: int) -> None:
            below = [
                span
                for span in self.spans
                if (span.parent.span_id if span.parent and span.parent.span_id in known else None) == parent
            ]
            for span in sorted(below, key=lambda span: span.start_time):
                error = span.attributes.get("error.type")
                lines.append("  " * depth + span.name + (f" !{error}" if error else ""))
                add(span.context.span_id, depth + 1)

        add(None, 0)
        return lines

    def check(self) -> None:
        """Assert that each span has ended once, in the trace of its parent, and began after its parent."""
        ended = collections.Counter(span.context.span_id for span in self.spans)
        assert ended == self.started
        assert set(ended.values()) <= {1}
        by_id = {span.context.span_id: span for span in self.spans}
        for span in self.spans:
            if span.parent is not None and span.parent.span_id in by_id:
                parent = by_id[span.parent.span_id]
                assert parent.context.trace_id == span.context.trace_id
                assert parent.start_time <= span.start_time

    def of(self, name: str) -> list[ReadableSpan]:
        """Return the spans whose names begin with `name`, by start time."""
        return sorted(
            (span for span in self.spans if span.name.startswith(name)), key=lambda span: span.start_time
        )

    def traces(self) -> set[int]:
        return {span.context.trace_id for span in self.spans}

    def metrics(self) -> dict[str, list]:
        """Return the data points of each metric."""
        data = self._metrics.get_metrics_data()
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def recorder():
    """Return a recorder for the telemetry of the test."""
    return Recorder()
