"""What a node counts of itself: partitions that it took over, turns that moved, and how soon it answers."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

import attrs
import trio

from actgent.errors.printable import counted
from actgent.events import EventStream, PartitionsTaken
from actgent.journal.postgres import Taken
from actgent.support import span_names as names
from actgent.support.logs import Each, logger_of
from actgent.support.tracing import Attribute, OpenSpan

BUSY = 429
"""The status of a request that is refused because too much waits."""
OnSeconds = Callable[[str, str, float], object]
"""Gets what took so long (`takeover`, `accept`, `told`), the reason of a takeover, and seconds."""
_HOW = {"on_seconds", "now", "_under_way"}
_log = logger_of(__name__)


@attrs.define
class _Takeover:
    """A partition that the broker has handed over, and that is not served yet."""

    since: float
    span: OpenSpan | None
    taken: Taken | None = None


@attrs.define(eq=False)
class NodeFigures:
    """What happened at a node since it began."""

    takeovers: Counter[str] = attrs.field(factory=Counter)
    """Partitions that were taken over, by reason."""
    takeover_seconds: float = 0.0
    evicted: int = 0
    lost: int = 0
    busy: int = 0
    accepted: int = 0
    accept_seconds: float = 0.0
    told: int = 0
    tell_seconds: float = 0.0
    on_seconds: OnSeconds | None = None
    """None: nobody wants to know."""
    now: Callable[[], float] = trio.current_time
    """The time by trio's clock, which a node does not look for each time."""
    _under_way: dict[int, _Takeover] = attrs.field(factory=dict)

    def counted(self) -> dict[str, Any]:
        """All that was counted, by name."""
        fields = attrs.fields(type(self))
        counted = {each.name: getattr(self, each.name) for each in fields if each.name not in _HOW}
        return counted | {"takeovers": dict(self.takeovers)}

    # --- takeovers -----------------------------------------------------------------------

    def begin_takeover(self, partition: int, stream: EventStream) -> None:
        """The broker has handed a partition over."""
        if partition in self._under_way:
            return
        facts: dict[str, Attribute] = {names.OPERATION: names.TAKE_OVER, names.PARTITION: partition}
        span = None if stream.tracing is None else stream.tracing.begin(names.TAKE_OVER, facts)
        self._under_way[partition] = _Takeover(trio.current_time(), span)

    def note_taken(self, taken: Taken) -> None:
        """The database has it as ours."""
        if (known := self._under_way.get(taken.partition)) is not None:
            known.taken = taken

    def forget_takeovers(self, partitions: Iterable[int]) -> None:
        """They are not taken over: they were ours all the time, or are not to be had."""
        for partition in partitions:
            known = self._under_way.pop(partition, None)
            if known is not None and known.span is not None:
                known.span.end({names.REASON: "none"})

    def end_takeovers(self, partitions: Collection[int], node: str, stream: EventStream) -> None:
        """Requests for partitions are answered from now on: a line of the log and an event for all that one node had."""
        groups: dict[tuple[str, str], list[float]] = {}
        for partition in partitions:
            known = self._under_way.pop(partition, None)
            if known is not None and known.taken is not None:
                reason = reason_of(known.taken)
                groups.setdefault((known.taken.before, reason), []).append(self._end_takeover(known, reason))
        for (before, reason), times in groups.items():
            _say(len(times), before, reason, max(times))
            seconds, count = max(times), len(times)
            stream.publish(
                PartitionsTaken(node=node, before=before, partitions=count, reason=reason, seconds=seconds)
            )

    def _end_takeover(self, known: _Takeover, reason: str) -> float:
        """Count a takeover; returns how long it took."""
        seconds = trio.current_time() - known.since
        self.takeovers[reason] += 1
        self.takeover_seconds += seconds
        self._tell("takeover", reason, seconds)
        if known.span is not None:
            known.span.end({names.REASON: reason})
        return seconds

    # --- requests ------------------------------------------------------------------------

    def note_answer(self, status: int, seconds: float) -> None:
        """A request with an effect was answered."""
        self.accepted += 1
        self.accept_seconds += seconds
        self.busy += status == BUSY
        self._tell("accept", "", seconds)

    def note_told(self, seconds: float) -> None:
        """The broker has a piece of an answer."""
        self.told += 1
        self.tell_seconds += seconds
        self._tell("told", "", seconds)

    def _tell(self, what: str, reason: str, seconds: float) -> None:
        if self.on_seconds is not None:
            self.on_seconds(what, reason, seconds)


def reason_of(taken: Taken) -> str:
    """Why a partition was taken: it is `new`, was `given_back`, or its owner has `died`, or was cut off."""
    if not taken.before:
        return "new"
    return "given_back" if taken.was_clean else "died"


def _say(count: int, before: str, reason: str, seconds: float) -> None:
    partitions = counted(count, "partition")
    if reason == "died":
        _log.warning(
            "took over %s of %s, which has died or was cut off: served after %.3f s",
            partitions,
            Each(before),
            seconds,
        )
    elif reason == "given_back":
        _log.info("took over %s that %s gave back, in %.3f s", partitions, Each(before), seconds)
    else:
        _log.info("took over %s of nobody, in %.3f s", partitions, seconds)
