"""`GET /metrics`: metrics in the text format of Prometheus, named by OpenTelemetry's GenAI conventions.

Counters and histograms start when the gateway opens; gauges are read at each request. Turns, tool calls and costs from before
come from the journal. Events are buffered and counted in batches of `BATCH_SIZE`, because a turn emits several.
Labels are agents, models, tools, routes and kinds, never sessions, owners or messages. A metric has at most `MAX_SERIES`
series. Source: Prometheus, exposition formats, text format 0.0.4.
"""

import bisect
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import attrs
import trio

from actgent.events import (
    ActorRestarted,
    ApprovalAsked,
    ApprovalDecided,
    DeadLettered,
    MessageRefused,
    ModelAnswered,
    ModelFailed,
    Observation,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from actgent.journal.cluster_interface import ClusterStatistics
from actgent.journal.journal_interface import Journal
from actgent.journal.session_list_queries import State
from actgent.runtime.runtime import Runtime
from actgent.support import span_names as names

from .metric_totals_from_journal import JournalTotals

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_SERIES = 1000
"""Maximum number of series of one metric; further label values are counted as `other`."""
BATCH_SIZE = 500
"""Number of events that are buffered before they are counted."""
MAX_OPEN = 10_000
"""Maximum number of running tool calls and open approvals whose start time is kept."""
Labels = tuple[tuple[str, str], ...]


def _flat(name: str) -> str:
    """Convert a metric name of OpenTelemetry to the syntax of Prometheus, with underscores for dots."""
    return name.replace(".", "_")


AGENT, MODEL, TOOL = _flat(names.AGENT), _flat(names.RESPONSE_MODEL), _flat(names.TOOL_NAME)
TYPE, ERROR, OPERATION = _flat(names.TOKEN_TYPE), _flat(names.ERROR), _flat(names.OPERATION)
CALL, TOKENS = f"{_flat(names.CALL_DURATION)}_seconds", _flat(names.TOKEN_USAGE)
TURN, TURN_CALLS = f"{_flat(names.AGENT_DURATION)}_seconds", _flat(names.AGENT_CALLS)
FIRST_CHUNK, TURN_TOOLS = f"{_flat(names.CALL_FIRST_CHUNK)}_seconds", _flat(names.AGENT_TOOL_CALLS)
TOOL_RUN = f"{_flat(names.TOOL_DURATION)}_seconds"
COMMIT = "actgent_journal_commit_seconds"
WAIT = "actgent_inbox_wait_seconds"
HELP: Mapping[str, tuple[str, str]] = {
    CALL: ("histogram", "Seconds of a successful model call, with all attempts."),
    FIRST_CHUNK: ("histogram", "Seconds until the first chunk of a streamed answer."),
    TOKENS: ("histogram", "Tokens of a model call."),
    TURN: ("histogram", "Seconds of a turn."),
    TURN_CALLS: ("histogram", "Model calls of a turn."),
    TURN_TOOLS: ("histogram", "Tool calls of a turn."),
    TOOL_RUN: ("histogram", "Seconds of a tool call."),
    WAIT: ("histogram", "Seconds from the acceptance of a message to the start of its turn."),
    "actgent_approval_wait_seconds": (
        "histogram",
        "Seconds from the request of an approval to its decision.",
    ),
    "actgent_turns_total": ("counter", "Turns that ended, by outcome."),
    "actgent_tool_calls_total": ("counter", "Tool calls that ended, by status."),
    "actgent_model_failures_total": ("counter", "Failed attempts at model calls, by error class."),
    "actgent_spent_usd_total": (
        "counter",
        "Cost of model calls in US dollars; models without a known price count as 0.",
    ),
    "actgent_messages_refused_total": ("counter", "Messages that were rejected, by error class."),
    "actgent_dead_letters_total": ("counter", "Dead-lettered messages."),
    "actgent_actor_restarts_total": ("counter", "Restarts of agents and actors after a failure."),
    "actgent_journal_counted": (
        "gauge",
        "1 if the counters include the journal records from before the gateway opened.",
    ),
    "actgent_inbox_messages": ("gauge", "Queued messages."),
    "actgent_inbox_senders": ("gauge", "Senders that wait for room in the inbox."),
    "actgent_turns_running": ("gauge", "Sessions with a running turn."),
    "actgent_sessions": ("gauge", "Sessions in the journal, by state."),
    "actgent_sessions_in_memory": ("gauge", "Sessions in memory."),
    "actgent_approvals_open": ("gauge", "Sessions in memory that wait for an approval."),
    "actgent_rate_limiter_window": ("gauge", "Maximum number of concurrent model calls."),
    "actgent_rate_limiter_running": ("gauge", "Running model calls."),
    "actgent_rate_limiter_waiting": ("gauge", "Model calls that wait for the rate limiter."),
    "actgent_rate_limiter_refused_total": (
        "counter",
        "Attempts that the provider rejected because of a rate limit.",
    ),
    "actgent_http_requests_total": ("counter", "Requests to the gateway, by route and status."),
    "actgent_http_streams": ("gauge", "Open event streams."),
    "actgent_http_readers_cut_total": (
        "counter",
        "Event streams that were closed because the client read too slowly.",
    ),
    COMMIT: ("histogram", "Seconds of a journal transaction, including the disk sync."),
    "actgent_journal_bytes": ("counter", "Bytes of records written since the journal was opened."),
    "actgent_cluster_partitions": ("gauge", "Partitions that this node owns."),
    "actgent_cluster_relayed_total": ("counter", "Requests that other nodes relayed to this node."),
    "actgent_cluster_takeovers_total": ("counter", "Partitions that this node acquired, by reason."),
    "actgent_cluster_takeover_seconds": (
        "histogram",
        "Seconds from the decision to acquire a partition until its requests are served.",
    ),
    "actgent_cluster_fenced_writes_total": (
        "counter",
        "Writes that were rejected because another node had acquired the partition.",
    ),
    "actgent_cluster_partitions_lost_total": (
        "counter",
        "Partitions that another node acquired while this node owned them.",
    ),
    "actgent_cluster_turns_evicted_total": (
        "counter",
        "Turns that were stopped because their session moved to another node.",
    ),
    "actgent_cluster_sessions_resumed_total": ("counter", "Unfinished sessions that this node resumed."),
    "actgent_cluster_connections_total": ("counter", "Database connections of the cluster membership."),
    "actgent_webhooks_sent_total": ("counter", "Webhook notifications that receivers accepted."),
    "actgent_webhooks_waiting": ("gauge", "Sessions with undelivered webhook notifications."),
}


@attrs.define
class Histogram:
    """Prometheus histogram of one metric and label set: number of values per bucket, and sum of the values."""

    bounds: tuple[float, ...]
    counts: list[int] = attrs.field(init=False)
    total: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value in its bucket, and add the value to the sum."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """Counters and histograms of one gateway."""

    def __init__(self, runtime: Runtime, journal: Journal) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        """Number of HTTP requests, by route and status."""
        self.journal_totals = JournalTotals(journal, runtime.clock.now())
        self._runtime = runtime
        self._nursery: trio.Nursery | None = None
        self._counters: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}
        self._series: dict[tuple[str, ...], tuple[Histogram, ...]] = {}
        """Histograms of frequent events by metric, agent and model. They are cached to avoid the lookup by labels."""
        self._open: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Start times of running tool calls and open approvals as Unix times in seconds, by agent and id."""
        self._events: list[Observation] = []
        """Buffered events that are not counted yet."""
        self._is_past_counted = False

    @contextmanager
    def counting(self, nursery: trio.Nursery, *, is_scraped: bool = True) -> Iterator[None]:
        """Open a `with` block in which the events of the runtime are counted.

        `nursery` runs the task that reads earlier totals from the journal, after they are first requested. `is_scraped=False`
        skips the durations of journal transactions and cluster takeovers.
        """
        self._nursery = nursery
        with ExitStack() as stack:
            stack.enter_context(self._runtime.stream.counting(self._note))
            if is_scraped:
                stack.enter_context(self._observing_commits())
                stack.enter_context(self._observing_takeovers())
            yield

    def _note(self, event: Observation) -> None:
        self._events.append(event)
        if len(self._events) >= BATCH_SIZE:
            self._count_events()

    def _count_events(self) -> None:
        events, self._events = self._events, []
        for event in events:
            if (count := _COUNT_EVENT.get(type(event))) is not None:
                count(self, event)

    async def wait_past(self) -> None:
        """Wait a few seconds for the totals of turns before the start, which the journal has, and add them to the counters.

        If the totals are not complete by then, a later call adds them.
        """
        if (
            self._nursery is None
            or self._is_past_counted
            or not await self.journal_totals.wait(self._nursery)
        ):
            return
        if not self._is_past_counted:  # another request may have counted during the wait
            self._is_past_counted = True
            names_of = {"agent": AGENT, "model": MODEL, "tool": TOOL}
            for name, labels, value in self.journal_totals.counters():
                self.count(name, {names_of.get(each, each): words for each, words in labels.items()}, value)

    @contextmanager
    def _observing_commits(self) -> Iterator[None]:
        """Open a `with` block in which the durations of journal transactions are counted, if the journal has statistics."""
        journal = self._runtime.journal
        known = None if journal is None else journal.statistics
        if known is None:
            yield
            return
        known.on_commit = self._histogram(COMMIT, {}).add
        try:
            yield
        finally:
            known.on_commit = None

    @contextmanager
    def _observing_takeovers(self) -> Iterator[None]:
        """Open a `with` block in which the durations of partition takeovers are counted, if the process is a cluster node."""
        membership = self._runtime.membership
        if membership is None:
            yield
            return
        membership.observe_takeovers(self._observe_takeover)
        try:
            yield
        finally:
            membership.observe_takeovers(None)

    def _observe_takeover(self, reason: str, seconds: float) -> None:
        self.observe("actgent_cluster_takeover_seconds", {"reason": reason}, seconds)

    # --- counting ------------------------------------------------------------------------

    def count(self, name: str, labels: Mapping[str, str], value: float = 1) -> None:
        """Add a value to the counter with this name and these labels. A new counter starts at 0."""
        series = self._counters.setdefault(name, {})
        key = _series_key(series, labels)
        series[key] = series.get(key, 0) + value

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Add a value to the histogram with this name and these labels."""
        self._histogram(name, labels).add(value)

    def _histogram(self, name: str, labels: Mapping[str, str]) -> Histogram:
        series = self._histograms.setdefault(name, {})
        key = _series_key(series, labels)
        if (histogram := series.get(key)) is None:
            histogram = series[key] = Histogram(_BOUNDS.get(name, names.SECOND_BOUNDS))
        return histogram

    def series(
        self, key: tuple[str, ...], *names_and_labels: tuple[str, Mapping[str, str]]
    ) -> tuple[Histogram, ...]:
        """Return the histograms with these names and labels, and cache them under `key` for `cached_series`."""
        found = tuple(self._histogram(name, labels) for name, labels in names_and_labels)
        if len(self._series) < MAX_SERIES:
            self._series[key] = found
        return found

    def cached_series(self, key: tuple[str, ...]) -> tuple[Histogram, ...] | None:
        """Return the histograms that `series` has cached under a key; None if the key is not in the cache."""
        return self._series.get(key)

    def totals(self, agent: str) -> dict[str, float]:
        """Return the number of ended turns and the cost in US dollars of an agent, as `turns` and `spent_usd`.

        Turns before the start of the server count after `wait_past` has added them.
        """
        self._count_events()
        names_of = {"turns": "actgent_turns_total", "spent_usd": "actgent_spent_usd_total"}
        return {
            total: sum(n for labels, n in self._counters.get(name, {}).items() if (AGENT, agent) in labels)
            for total, name in names_of.items()
        }

    def start(self, agent: str, key: str, at: float) -> None:
        """Store the start time of a tool call or approval under its key; `at` is a Unix time in seconds."""
        self._open[agent, key] = at
        while len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)

    def stop(self, agent: str, key: str, at: float) -> float | None:
        """Return the seconds from `start` to `at` for a tool call or approval, and remove the stored start time.

        None if its start time is unknown.
        """
        begun = self._open.pop((agent, key), None)
        return None if begun is None else max(0.0, at - begun)

    # --- output --------------------------------------------------------------------------

    def text(self, gauges: Iterable[tuple[str, float, Mapping[str, str]]]) -> str:
        """Return all metrics in the text format of Prometheus. `gauges` are the current values from `gauges_of`."""
        self._count_events()
        rows: dict[str, list[str]] = {}
        for name, value, labels in (*gauges, *self._past_count_metrics()):
            rows.setdefault(name, []).append(to_row(name, labels.items(), value))
        for name, found in self._histograms.items():
            rows[name] = [
                line for labels, each in found.items() for line in _histogram_rows(name, labels, each)
            ]
        lines = []
        for name, (kind, words) in HELP.items():
            if name not in rows:
                continue
            lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}", *rows[name]]
        return "\n".join(lines) + "\n"

    def _past_count_metrics(self) -> Iterator[tuple[str, float, Mapping[str, str]]]:
        for name, series in self._counters.items():
            for labels, value in series.items():
                yield name, value, dict(labels)
        for (route, status), number in self.requests.items():
            yield "actgent_http_requests_total", number, {"route": route, "status": str(status)}
        yield "actgent_journal_counted", self._is_past_counted, {}


def _series_key(series: Mapping[Labels, Any], labels: Mapping[str, str]) -> Labels:
    """Return the key under which `series` stores the time series with these labels.

    If the metric has `MAX_SERIES` series, new label values become `other`, to bound memory.
    """
    key = tuple(labels.items())
    if key in series or len(series) < MAX_SERIES:
        return key
    return tuple((name, "other") for name, _ in key)


def to_row(name: str, labels: Iterable[tuple[str, str]], value: float) -> str:
    """Return one sample in the text format of Prometheus: metric name, labels and value."""
    text = ",".join(f'{label}="{_escape(words)}"' for label, words in labels)
    return f"{name}{{{text}}} {value:.10g}" if text else f"{name} {value:.10g}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _histogram_rows(name: str, labels: Labels, histogram: Histogram) -> Iterator[str]:
    number = 0
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        number += count
        yield to_row(f"{name}_bucket", (*labels, ("le", str(bound))), number)
    yield to_row(f"{name}_sum", labels, histogram.total)
    yield to_row(f"{name}_count", labels, number)


# --- events -----------------------------------------------------------------------------


def _count_model_answer(metrics: Metrics, event: ModelAnswered) -> None:
    usage, key = event.usage, (CALL, event.agent, event.model)
    if (known := metrics.cached_series(key)) is None:
        labels = {OPERATION: names.CHAT, MODEL: event.model, AGENT: event.agent}
        tokens = [(TOKENS, {**labels, TYPE: each}) for each in ("input", "output")]
        known = metrics.series(key, (CALL, labels), *tokens)
    known[0].add(event.seconds)
    known[1].add(usage.input_tokens)
    known[2].add(usage.output_tokens)
    if event.first_chunk is not None:
        labels = {OPERATION: names.CHAT, MODEL: event.model, AGENT: event.agent}
        metrics.observe(FIRST_CHUNK, labels, event.first_chunk)
    if usage.cost:
        metrics.count("actgent_spent_usd_total", {AGENT: event.agent, MODEL: event.model}, usage.cost)


def _tool_ended(metrics: Metrics, event: ToolFinished) -> None:
    seconds = metrics.stop(event.agent, event.call_id, event.at)
    # A call without a start may have a tool name that the model invented.
    labels = {AGENT: event.agent, TOOL: "unknown" if seconds is None else event.tool_name}
    if seconds is not None:
        metrics.observe(TOOL_RUN, labels, seconds)
    metrics.count("actgent_tool_calls_total", {**labels, "status": event.status})


def _observe_queue_time(metrics: Metrics, event: TurnStarted) -> None:
    key = (WAIT, event.agent)
    known = metrics.cached_series(key) or metrics.series(key, (WAIT, {AGENT: event.agent}))
    known[0].add(event.queue_seconds)


def _observe_turn(metrics: Metrics, event: TurnEnded) -> None:
    labels, key = {AGENT: event.agent}, (TURN, event.agent)
    if (known := metrics.cached_series(key)) is None:
        known = metrics.series(key, (TURN, labels), (TURN_CALLS, labels), (TURN_TOOLS, labels))
    known[0].add(event.seconds)
    known[1].add(event.calls)
    known[2].add(event.tool_calls)
    metrics.count("actgent_turns_total", {**labels, "outcome": event.failed or "answered"})


def _observe_approval_wait(metrics: Metrics, event: ApprovalDecided) -> None:
    seconds = metrics.stop(event.agent, event.approval_id, event.at)
    if seconds is not None:
        labels = {AGENT: event.agent, "decision": event.decision}
        metrics.observe("actgent_approval_wait_seconds", labels, seconds)


def _count_model_failure(metrics: Metrics, event: ModelFailed) -> None:
    labels = {AGENT: event.agent, MODEL: event.model, ERROR: event.error}
    metrics.count("actgent_model_failures_total", labels)


def _count_refused_message(metrics: Metrics, event: MessageRefused) -> None:
    metrics.count("actgent_messages_refused_total", {AGENT: event.agent, ERROR: event.error})


_COUNT_EVENT: Mapping[type[Observation], Callable[[Metrics, Any], None]] = {
    ModelAnswered: _count_model_answer,
    ModelFailed: _count_model_failure,
    ToolStarted: lambda metrics, event: metrics.start(event.agent, event.call_id, event.at),
    ToolFinished: _tool_ended,
    TurnStarted: _observe_queue_time,
    TurnEnded: _observe_turn,
    ApprovalAsked: lambda metrics, event: metrics.start(event.agent, event.approval_id, event.at),
    ApprovalDecided: _observe_approval_wait,
    MessageRefused: _count_refused_message,
    DeadLettered: lambda metrics, _: metrics.count("actgent_dead_letters_total", {}),
    ActorRestarted: lambda metrics, _: metrics.count("actgent_actor_restarts_total", {}),
}
_BOUNDS: Mapping[str, tuple[float, ...]] = {
    TOKENS: names.TOKEN_BOUNDS,
    TURN_CALLS: (1, 2, 4, 8, 16, 32, 64, 128, 256),
    TURN_TOOLS: (0, 1, 2, 4, 8, 16, 32, 64, 128, 256),
    COMMIT: (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
}


# --- gauges ------------------------------------------------------------------------------


def gauges_of(
    runtime: Runtime, counts: Mapping[State, int]
) -> Iterator[tuple[str, float, Mapping[str, str]]]:
    """Yield metric name, current value and labels of each gauge. `counts` are the numbers of journal sessions by state."""
    for state, number in counts.items():
        yield "actgent_sessions", number, {"state": state}
    if runtime.journal is not None and (known := runtime.journal.statistics) is not None:
        yield "actgent_journal_bytes", known.bytes, {}
    for each in runtime.statistics():
        labels = {AGENT: each.agent}
        yield "actgent_inbox_messages", each.inbox.waiting, {**labels, "priority": "ordinary"}
        yield "actgent_inbox_messages", each.inbox.urgent, {**labels, "priority": "urgent"}
        yield "actgent_inbox_senders", each.inbox.senders, labels
        yield "actgent_turns_running", each.inbox.claimed, labels
        yield "actgent_sessions_in_memory", each.sessions, labels
        yield "actgent_approvals_open", each.suspended, labels
    for limiter in runtime.rate_limiters():
        labels = {"rate_limiter": limiter.name}
        yield "actgent_rate_limiter_refused_total", limiter.total.refused, labels
        for lane in limiter.models[:MAX_SERIES]:
            of_model = {**labels, MODEL: lane.model}
            yield "actgent_rate_limiter_window", lane.window, of_model
            yield "actgent_rate_limiter_running", lane.running, of_model
            yield "actgent_rate_limiter_waiting", sum(lane.waiting.values()), of_model
    if (node := runtime.cluster()) is not None:
        yield from _gauges_of_node(node)


def _gauges_of_node(node: ClusterStatistics) -> Iterator[tuple[str, float, Mapping[str, str]]]:
    yield "actgent_cluster_partitions", node.partitions, {}
    yield "actgent_cluster_relayed_total", node.relayed, {}
    for reason, number in node.takeovers.items():
        yield "actgent_cluster_takeovers_total", number, {"reason": reason}
    yield "actgent_cluster_fenced_writes_total", node.fenced, {}
    yield "actgent_cluster_partitions_lost_total", node.lost, {}
    yield "actgent_cluster_turns_evicted_total", node.evicted, {}
    yield "actgent_cluster_sessions_resumed_total", node.resumed, {}
    yield "actgent_cluster_connections_total", node.connections, {}
