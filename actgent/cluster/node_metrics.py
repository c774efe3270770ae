"""Metrics of a node: acquired partitions, evicted turns, lost partitions, and relayed requests."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

import attrs
import trio

from actgent.errors.text_escaping import counted
from actgent.events import EventStream, PartitionsTaken
from actgent.journal.postgres.session_partitioning import AcquiredPartition
from actgent.support import span_names as names
from actgent.support.safe_logging import LogVariable, logger_of
from actgent.support.tracing_interface import Attribute, OpenSpan

OnSeconds = Callable[[str, float], object]
"""Callback for the duration of a takeover. Arguments: its reason, and the duration in seconds."""
_HOW = {"on_seconds", "_under_way"}
_log = logger_of(__name__)


@attrs.define
class _Takeover:
    """A partition that this node is acquiring, and does not serve yet."""

    since: float
    span: OpenSpan | None
    taken: AcquiredPartition | None = None


@attrs.define(eq=False)
class NodeMetrics:
    """Counters of a node since it started."""

    takeovers: Counter[str] = attrs.field(factory=Counter)
    """Number of acquired partitions by reason: never owned (`new`), released by the owner (`given_back`), or owner `died`."""
    takeover_seconds: float = 0.0
    """Total duration of all takeovers in seconds."""
    evicted: int = 0
    """Number of sessions with a turn that were evicted because their partition was lost."""
    lost: int = 0
    """Number of partitions that other nodes acquired from this one."""
    relayed: int = 0
    """Number of requests that other nodes relayed to this one."""
    on_seconds: OnSeconds | None = None
    """Function that is called with the duration of each takeover in seconds; None for no call."""
    _under_way: dict[int, _Takeover] = attrs.field(factory=dict)

    def as_counters(self) -> dict[str, Any]:
        """Return all counters by name, for `ClusterStatistics`."""
        fields = attrs.fields(type(self))
        counted = {each.name: getattr(self, each.name) for each in fields if each.name not in _HOW}
        return counted | {"takeovers": dict(self.takeovers)}

    # --- takeovers -----------------------------------------------------------------------

    def begin_takeover(self, partition: int, stream: EventStream) -> None:
        """Record that the node starts to acquire a partition, and start the tracing span of the takeover."""
        if partition in self._under_way:
            return
        facts: dict[str, Attribute] = {names.OPERATION: names.TAKE_OVER, names.PARTITION: partition}
        span = None if stream.tracing is None else stream.tracing.begin(names.TAKE_OVER, facts)
        self._under_way[partition] = _Takeover(trio.current_time(), span)

    def note_taken(self, taken: AcquiredPartition) -> None:
        """Record that this node has acquired a partition.

        The takeover ends when the partition is served.
        """
        if (known := self._under_way.get(taken.partition)) is not None:
            known.taken = taken

    def discard_takeovers(self, partitions: Iterable[int]) -> None:
        """Discard takeovers that did not happen, because another node was first or the database did not answer."""
        for partition in partitions:
            known = self._under_way.pop(partition, None)
            if known is not None and known.span is not None:
                known.span.end({names.REASON: "none"})

    def end_takeovers(self, partitions: Collection[int], node: str, stream: EventStream) -> None:
        """Record that this node now serves partitions that it has acquired.

        Log one line and publish one event for each previous owner and reason.
        """
        groups: dict[tuple[str, str], list[float]] = {}
        for partition in partitions:
            known = self._under_way.pop(partition, None)
            if known is not None and known.taken is not None:
                reason = reason_of(known.taken)
                groups.setdefault((known.taken.before, reason), []).append(self._end_takeover(known, reason))
        for (before, reason), times in groups.items():
            _log_takeover(len(times), before, reason, max(times))
            seconds, count = max(times), len(times)
            stream.publish(
                PartitionsTaken(node=node, before=before, partitions=count, reason=reason, seconds=seconds)
            )

    def _end_takeover(self, known: _Takeover, reason: str) -> float:
        """Count the takeover of a partition from another node, and add its duration to the metrics and its span.

        Return the duration in seconds.

        Args:
            known: The takeover, which ends now.
            reason: Reason as `reason_of` returns it, such as `died`.
        """
        seconds = trio.current_time() - known.since
        self.takeovers[reason] += 1
        self.takeover_seconds += seconds
        if self.on_seconds is not None:
            self.on_seconds(reason, seconds)
        if known.span is not None:
            known.span.end({names.REASON: reason})
        return seconds


def reason_of(taken: AcquiredPartition) -> str:
    """Return a word for the reason why this node has acquired the partition, such as `died`.

    `new`: no node ever owned the partition. `given_back`: its owner gave it back. `died`: its owner died or
    lost the database.
    """
    if not taken.before:
        return "new"
    return "given_back" if taken.was_clean else "died"


def _log_takeover(count: int, before: str, reason: str, seconds: float) -> None:
    """Log one line for `count` acquired partitions of the previous owner `before`. If the owner died, log a warning.

    `before` is empty without a previous owner. `seconds` is the duration of the longest takeover.
    """
    partitions = counted(count, "partition")
    if reason == "died":
        _log.warning(
            "took over %s of %s, which has died or was cut off: served after %.3f s",
            partitions,
            LogVariable(before),
            seconds,
        )
    elif reason == "given_back":
        _log.info("took over %s that %s gave back, in %.3f s", partitions, LogVariable(before), seconds)
    else:
        _log.info("acquired %s without a previous owner in %.3f s", partitions, seconds)
