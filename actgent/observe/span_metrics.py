"""OpenTelemetry metrics, recorded when a span ends. Labels are agents, models, tools and kinds; never sessions or owners."""

from collections.abc import Mapping

from opentelemetry.metrics import Histogram, Meter

from actgent.support import span_names as names
from actgent.support.tracing_interface import Attribute

MAX_SERIES = 1000
"""Maximum number of label combinations per operation; further ones are recorded with the label value `other`."""
_CALL = (names.OPERATION, names.PROVIDER, names.REQUEST_MODEL, names.RESPONSE_MODEL, names.AGENT)
_TURN = (names.AGENT,)
_TOOL = (names.AGENT, names.TOOL_NAME)
_TAKEOVER = (names.REASON,)
_REQUEST = (names.HTTP_METHOD, names.HTTP_ROUTE, names.HTTP_STATUS, names.URL_SCHEME)


class Instruments:
    """Histograms of one OpenTelemetry meter."""

    def __init__(self, meter: Meter) -> None:
        def histogram(
            name: str, text: str, *, bounds: tuple[float, ...] = names.SECOND_BOUNDS, unit: str = "s"
        ) -> Histogram:
            return meter.create_histogram(
                name, unit=unit, description=text, explicit_bucket_boundaries_advisory=bounds
            )

        self._call = histogram(names.CALL_DURATION, "Duration of a model call attempt.")
        self._first_chunk = histogram(names.CALL_FIRST_CHUNK, "Time until the first token of an answer.")
        self._tokens = histogram(
            names.TOKEN_USAGE,
            "Tokens of a model call attempt.",
            bounds=names.TOKEN_BOUNDS,
            unit="{token}",
        )
        self._turn = histogram(
            names.AGENT_DURATION,
            "Duration of a turn, without its suspension.",
            bounds=names.TURN_SECOND_BOUNDS,
        )
        self._turn_calls = histogram(
            names.AGENT_CALLS, "Model calls of a turn.", bounds=names.CALL_BOUNDS, unit="{inference_call}"
        )
        self._turn_tools = histogram(
            names.AGENT_TOOL_CALLS, "Tool calls of a turn.", bounds=names.CALL_BOUNDS, unit="{tool_call}"
        )
        self._tool = histogram(names.TOOL_DURATION, "Duration of a tool call.")
        self._takeover = histogram(
            names.TAKEOVER_DURATION, "Time until a partition of another node is served after a takeover."
        )
        self._request = histogram(
            names.HTTP_DURATION, "Duration of an HTTP request.", bounds=names.HTTP_SECOND_BOUNDS
        )
        self._series: dict[str, set[tuple[tuple[str, Attribute], ...]]] = {}

    def record(self, facts: Mapping[str, Attribute], seconds: float, error: str) -> None:
        """Record the metrics of an ended span.

        Args:
            facts: Attributes of the span.
            seconds: Duration of the span in seconds.
            error: Error class; empty on success.
        """
        match facts.get(names.OPERATION):
            case names.CHAT | names.EMBEDDINGS as operation:
                self._record_call(operation, facts, seconds, error)
            case names.INVOKE_AGENT | names.INVOKE_WORKFLOW:
                labels = self._labels(names.INVOKE_AGENT, facts, _TURN, error)
                self._turn.record(seconds, labels)
                if isinstance(calls := facts.get(names.TURN_CALLS), int):
                    self._turn_calls.record(calls, labels)
                if isinstance(calls := facts.get(names.TURN_TOOL_CALLS), int):
                    self._turn_tools.record(calls, labels)
            case names.EXECUTE_TOOL if facts.get(names.TOOL_STATUS) != names.REFUSED:
                self._tool.record(seconds, self._labels(names.EXECUTE_TOOL, facts, _TOOL, error))
            case names.TAKE_OVER:
                self._takeover.record(seconds, self._labels(names.TAKE_OVER, facts, _TAKEOVER, error))
            case None if names.HTTP_METHOD in facts:
                self._request.record(seconds, self._labels(names.HTTP_METHOD, facts, _REQUEST, error))

    def _record_call(
        self, operation: str, facts: Mapping[str, Attribute], seconds: float, error: str
    ) -> None:
        labels = self._labels(operation, facts, _CALL, error)
        self._call.record(seconds, labels)
        if isinstance(first := facts.get(names.FIRST_CHUNK), float):
            self._first_chunk.record(first, labels)
        for kind, name in (("input", names.INPUT_TOKENS), ("output", names.OUTPUT_TOKENS)):
            if isinstance(count := facts.get(name), int):
                self._tokens.record(count, {**labels, names.TOKEN_TYPE: kind})

    def _labels(
        self, operation: str, facts: Mapping[str, Attribute], kept: tuple[str, ...], error: str
    ) -> dict[str, Attribute]:
        labels = {name: facts[name] for name in kept if name in facts}
        if error:
            labels[names.ERROR] = error
        known = self._series.setdefault(operation, set())
        if (series := tuple(labels.items())) in known:
            return labels
        if len(known) >= MAX_SERIES:
            return dict.fromkeys(labels, "other")
        known.add(series)
        return labels
