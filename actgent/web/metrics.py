"""`GET /metrics`: figures in the text format of Prometheus, by the names of the GenAI conventions, without a library.

What happens is counted from the moment in which the gateway is opened; how things are is looked up at each request. Turns, tool
calls and spending from before come from the journal. Events are kept as they are and counted by `BATCH`: a turn takes 12 calls.
Labels are agents, models, tools, routes and kinds, never sessions, owners or messages, and a metric has at most
`MOST_SERIES` of them. Source: Prometheus, exposition formats, text format 0.0.4.
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
from actgent.journal.base import Journal
from actgent.journal.listing import State
from actgent.journal.membership import ClusterStatistics
from actgent.runtime.runtime import Runtime
from actgent.support import span_names as names

from .journal_totals import JournalTotals

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_SERIES = 1000
"""Series of one metric; further ones count as `other`."""
BATCH = 500
"""Events that wait to be counted together."""
MOST_OPEN = 10_000
"""Calls and approvals whose beginning is remembered."""
Labels = tuple[tuple[str, str], ...]


def _flat(name: str) -> str:
    """A name of the conventions as Prometheus takes it."""
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
    CALL: ("histogram", "Time of a model call that was answered, with all its attempts."),
    FIRST_CHUNK: ("histogram", "Time until the first piece of an answer, where somebody reads along."),
    TOKENS: ("histogram", "Tokens of a model call."),
    TURN: ("histogram", "Time of a turn."),
    TURN_CALLS: ("histogram", "Model calls of a turn."),
    TURN_TOOLS: ("histogram", "Tool calls of a turn."),
    TOOL_RUN: ("histogram", "Time of a run of a tool."),
    WAIT: ("histogram", "Time from a message to the beginning of its turn."),
    "actgent_approval_wait_seconds": ("histogram", "Time from a question to its decision."),
    "actgent_turns_total": ("counter", "Turns that ended, by what they ended with."),
    "actgent_tool_calls_total": ("counter", "Tool calls that ended, by their status."),
    "actgent_model_failures_total": (
        "counter",
        "Attempts at model calls that failed, by the class of the error.",
    ),
    "actgent_spent_usd_total": (
        "counter",
        "What model calls cost, in US dollars, as far as prices are known.",
    ),
    "actgent_messages_refused_total": ("counter", "Messages that did not get in, by the class of the error."),
    "actgent_dead_letters_total": ("counter", "Messages that were given up."),
    "actgent_actor_restarts_total": ("counter", "Lives of agents and actors that ended by a failure."),
    "actgent_journal_counted": (
        "gauge",
        "1 if the totals hold what the journal has from before the gateway was opened.",
    ),
    "actgent_inbox_messages": ("gauge", "Messages that wait."),
    "actgent_inbox_senders": ("gauge", "Tasks that wait for room in an inbox."),
    "actgent_turns_running": ("gauge", "Sessions with a turn under way."),
    "actgent_sessions": ("gauge", "Sessions in the journal, by their state."),
    "actgent_sessions_in_memory": ("gauge", "Sessions in memory."),
    "actgent_approvals_open": ("gauge", "Sessions in memory that wait for people."),
    "actgent_governor_window": ("gauge", "Model calls that may run at once."),
    "actgent_governor_running": ("gauge", "Model calls that are with the provider."),
    "actgent_governor_waiting": ("gauge", "Model calls that wait for the provider's limits."),
    "actgent_governor_refused_total": ("counter", "Attempts that the provider refused."),
    "actgent_http_requests_total": ("counter", "Requests to the gateway, by route and status."),
    "actgent_http_streams": ("gauge", "Streams of events that are open."),
    "actgent_http_readers_cut_total": ("counter", "Streams that ended because their client read too slowly."),
    COMMIT: ("histogram", "Time of a transaction of the journal, with its wait for the disk."),
    "actgent_journal_bytes": (
        "counter",
        "Bytes of records that the journal has written since it was opened.",
    ),
    "actgent_cluster_partitions": ("gauge", "Partitions of a cluster whose sessions live here."),
    "actgent_cluster_requests_waiting": ("gauge", "Requests from the broker that are not answered."),
    "actgent_cluster_takeovers_total": ("counter", "Partitions that were taken over, by the reason."),
    "actgent_cluster_takeover_seconds": (
        "histogram",
        "Time until a partition that was handed over is served.",
    ),
    "actgent_cluster_accept_seconds": ("histogram", "Time until a request with an effect is answered."),
    "actgent_cluster_told_seconds": ("histogram", "Time until the broker has a piece of an answer."),
    "actgent_cluster_fenced_writes_total": (
        "counter",
        "Writes that were refused, as another node had taken over.",
    ),
    "actgent_cluster_partitions_lost_total": (
        "counter",
        "Partitions that another node took while they were ours.",
    ),
    "actgent_cluster_turns_evicted_total": (
        "counter",
        "Turns that were stopped as their sessions had moved.",
    ),
    "actgent_cluster_sessions_resumed_total": (
        "counter",
        "Sessions that went on here in the middle of something.",
    ),
    "actgent_cluster_busy_total": ("counter", "Requests that were refused because too much waits."),
    "actgent_cluster_connections_total": ("counter", "Connections to the broker that were built."),
    "actgent_webhooks_sent_total": ("counter", "Webhooks that were taken."),
    "actgent_webhooks_waiting": ("gauge", "Sessions whose webhooks wait."),
}


@attrs.define
class Histogram:
    """Values of one series, counted by bounds."""

    bounds: tuple[float, ...]
    counts: list[int] = attrs.field(init=False)
    total: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """The figures of one gateway."""

    def __init__(self, runtime: Runtime, journal: Journal) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        """By route and status."""
        self.past = JournalTotals(journal, runtime.clock.now())
        self._runtime = runtime
        self._nursery: trio.Nursery | None = None
        self._counters: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}
        self._series: dict[tuple[str, ...], tuple[Histogram, ...]] = {}
        """Histograms of frequent events, by their kind, agent and model."""
        self._open: OrderedDict[tuple[str, str], float] = OrderedDict()
        """When calls and approvals began, by agent and id."""
        self._events: list[Observation] = []
        """Events that are not counted yet."""
        self._is_past_counted = False

    @contextmanager
    def counting(self, nursery: trio.Nursery, *, is_scraped: bool = True) -> Iterator[None]:
        """Count what happens, for the block; the journal is read in the nursery when totals are asked for.

        `is_scraped` is False where nobody asks for metrics: times of the journal and the cluster are not counted then.
        """
        self._nursery = nursery
        with ExitStack() as stack:
            stack.enter_context(self._runtime.stream.counting(self._note))
            if is_scraped:
                stack.enter_context(self._hearing_commits())
                stack.enter_context(self._hearing_cluster())
            yield

    def _note(self, event: Observation) -> None:
        self._events.append(event)
        if len(self._events) >= BATCH:
            self._count_events()

    def _count_events(self) -> None:
        events, self._events = self._events, []
        for event in events:
            if (take := _TAKES.get(type(event))) is not None:
                take(self, event)

    async def wait_past(self) -> None:
        """Add the totals of the journal once they are known; wait for that a few seconds at most."""
        if self._nursery is None or self._is_past_counted or not await self.past.wait(self._nursery):
            return
        if not self._is_past_counted:  # another request may have waited, too
            self._is_past_counted = True
            names_of = {"agent": AGENT, "model": MODEL, "tool": TOOL}
            for name, labels, value in self.past.counters():
                self.count(name, {names_of.get(each, each): words for each, words in labels.items()}, value)

    @contextmanager
    def _hearing_commits(self) -> Iterator[None]:
        """Have the journal tell how long its transactions take, for the block."""
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
    def _hearing_cluster(self) -> Iterator[None]:
        """Have the node tell how long takeovers and answers take, for the block."""
        membership = self._runtime.membership
        if membership is None:
            yield
            return
        membership.hear_seconds(self._observe_cluster)
        try:
            yield
        finally:
            membership.hear_seconds(None)

    def _observe_cluster(self, what: str, reason: str, seconds: float) -> None:
        self.observe(f"actgent_cluster_{what}_seconds", {"reason": reason} if reason else {}, seconds)

    # --- counting ------------------------------------------------------------------------

    def count(self, name: str, labels: Mapping[str, str], value: float = 1) -> None:
        """Add to a counter."""
        series = self._counters.setdefault(name, {})
        key = _bounded(series, labels)
        series[key] = series.get(key, 0) + value

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Count a value of a histogram."""
        self._histogram(name, labels).add(value)

    def _histogram(self, name: str, labels: Mapping[str, str]) -> Histogram:
        series = self._histograms.setdefault(name, {})
        key = _bounded(series, labels)
        if (histogram := series.get(key)) is None:
            histogram = series[key] = Histogram(_BOUNDS.get(name, names.SECOND_BOUNDS))
        return histogram

    def series(self, key: tuple[str, ...], *wanted: tuple[str, Mapping[str, str]]) -> tuple[Histogram, ...]:
        """The histograms of these names and labels, which are found by the key from then on."""
        found = tuple(self._histogram(name, labels) for name, labels in wanted)
        if len(self._series) < MOST_SERIES:
            self._series[key] = found
        return found

    def known_series(self, key: tuple[str, ...]) -> tuple[Histogram, ...] | None:
        """The histograms that were found by a key before."""
        return self._series.get(key)

    def totals(self, agent: str) -> dict[str, float]:
        """What an agent has done, as far as it is known: turns that ended, and US dollars."""
        self._count_events()
        names_of = {"turns": "actgent_turns_total", "spent_usd": "actgent_spent_usd_total"}
        return {
            total: sum(n for labels, n in self._counters.get(name, {}).items() if (AGENT, agent) in labels)
            for total, name in names_of.items()
        }

    def start(self, agent: str, key: str, at: float) -> None:
        """Remember when something began."""
        self._open[agent, key] = at
        while len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)

    def stop(self, agent: str, key: str, at: float) -> float | None:
        """The seconds since it began; None where nobody knows."""
        begun = self._open.pop((agent, key), None)
        return None if begun is None else max(0.0, at - begun)

    # --- telling -------------------------------------------------------------------------

    def text(self, gauges: Iterable[tuple[str, float, Mapping[str, str]]]) -> str:
        """All figures, with those of just now."""
        self._count_events()
        rows: dict[str, list[str]] = {}
        for name, value, labels in (*gauges, *self._counted()):
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

    def _counted(self) -> Iterator[tuple[str, float, Mapping[str, str]]]:
        for name, series in self._counters.items():
            for labels, value in series.items():
                yield name, value, dict(labels)
        for (route, status), number in self.requests.items():
            yield "actgent_http_requests_total", number, {"route": route, "status": str(status)}
        yield "actgent_journal_counted", self._is_past_counted, {}


def _bounded(series: Mapping[Labels, Any], labels: Mapping[str, str]) -> Labels:
    """The key of a series; `other` where there are too many."""
    key = tuple(labels.items())
    if key in series or len(series) < MOST_SERIES:
        return key
    return tuple((name, "other") for name, _ in key)


def to_row(name: str, labels: Iterable[tuple[str, str]], value: float) -> str:
    """One sample."""
    text = ",".join(f'{label}="{_escaped(words)}"' for label, words in labels)
    return f"{name}{{{text}}} {value:.10g}" if text else f"{name} {value:.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _histogram_rows(name: str, labels: Labels, histogram: Histogram) -> Iterator[str]:
    number = 0
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        number += count
        yield to_row(f"{name}_bucket", (*labels, ("le", str(bound))), number)
    yield to_row(f"{name}_sum", labels, histogram.total)
    yield to_row(f"{name}_count", labels, number)


# --- what happens ------------------------------------------------------------------------


def _answered(metrics: Metrics, event: ModelAnswered) -> None:
    usage, key = event.usage, (CALL, event.agent, event.model)
    if (known := metrics.known_series(key)) is None:
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
    # What never began may be a name that a model made up.
    labels = {AGENT: event.agent, TOOL: "unknown" if seconds is None else event.tool_name}
    if seconds is not None:
        metrics.observe(TOOL_RUN, labels, seconds)
    metrics.count("actgent_tool_calls_total", {**labels, "status": event.status})


def _turn_began(metrics: Metrics, event: TurnStarted) -> None:
    key = (WAIT, event.agent)
    known = metrics.known_series(key) or metrics.series(key, (WAIT, {AGENT: event.agent}))
    known[0].add(event.queued)


def _turn_ended(metrics: Metrics, event: TurnEnded) -> None:
    labels, key = {AGENT: event.agent}, (TURN, event.agent)
    if (known := metrics.known_series(key)) is None:
        known = metrics.series(key, (TURN, labels), (TURN_CALLS, labels), (TURN_TOOLS, labels))
    known[0].add(event.seconds)
    known[1].add(event.calls)
    known[2].add(event.tool_calls)
    metrics.count("actgent_turns_total", {**labels, "outcome": event.failed or "answered"})


def _decided(metrics: Metrics, event: ApprovalDecided) -> None:
    seconds = metrics.stop(event.agent, event.approval_id, event.at)
    if seconds is not None:
        labels = {AGENT: event.agent, "decision": event.decision}
        metrics.observe("actgent_approval_wait_seconds", labels, seconds)


def _failed(metrics: Metrics, event: ModelFailed) -> None:
    labels = {AGENT: event.agent, MODEL: event.model, ERROR: event.error}
    metrics.count("actgent_model_failures_total", labels)


def _refused(metrics: Metrics, event: MessageRefused) -> None:
    metrics.count("actgent_messages_refused_total", {AGENT: event.agent, ERROR: event.error})


_TAKES: Mapping[type[Observation], Callable[[Metrics, Any], None]] = {
    ModelAnswered: _answered,
    ModelFailed: _failed,
    ToolStarted: lambda metrics, event: metrics.start(event.agent, event.call_id, event.at),
    ToolFinished: _tool_ended,
    TurnStarted: _turn_began,
    TurnEnded: _turn_ended,
    ApprovalAsked: lambda metrics, event: metrics.start(event.agent, event.approval_id, event.at),
    ApprovalDecided: _decided,
    MessageRefused: _refused,
    DeadLettered: lambda metrics, _: metrics.count("actgent_dead_letters_total", {}),
    ActorRestarted: lambda metrics, _: metrics.count("actgent_actor_restarts_total", {}),
}
_BOUNDS: Mapping[str, tuple[float, ...]] = {
    TOKENS: names.TOKEN_BOUNDS,
    TURN_CALLS: (1, 2, 4, 8, 16, 32, 64, 128, 256),
    TURN_TOOLS: (0, 1, 2, 4, 8, 16, 32, 64, 128, 256),
    COMMIT: (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
}


# --- how things are ----------------------------------------------------------------------


def gauges_of(
    runtime: Runtime, counts: Mapping[State, int]
) -> Iterator[tuple[str, float, Mapping[str, str]]]:
    """The figures of just now; `counts` are the sessions of the journal by their state."""
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
    for door in runtime.governors():
        labels = {"door": door.door}
        yield "actgent_governor_refused_total", door.total.refused, labels
        for lane in door.models[:MOST_SERIES]:
            of_model = {**labels, MODEL: lane.model}
            yield "actgent_governor_window", lane.window, of_model
            yield "actgent_governor_running", lane.running, of_model
            yield "actgent_governor_waiting", sum(lane.waiting.values()), of_model
    if (node := runtime.cluster()) is not None:
        yield from _gauges_of_node(node)


def _gauges_of_node(node: ClusterStatistics) -> Iterator[tuple[str, float, Mapping[str, str]]]:
    yield "actgent_cluster_partitions", node.partitions, {}
    yield "actgent_cluster_requests_waiting", node.waiting, {}
    for reason, number in node.takeovers.items():
        yield "actgent_cluster_takeovers_total", number, {"reason": reason}
    yield "actgent_cluster_fenced_writes_total", node.fenced, {}
    yield "actgent_cluster_partitions_lost_total", node.lost, {}
    yield "actgent_cluster_turns_evicted_total", node.evicted, {}
    yield "actgent_cluster_sessions_resumed_total", node.resumed, {}
    yield "actgent_cluster_busy_total", node.busy, {}
    yield "actgent_cluster_connections_total", node.connections, {}
