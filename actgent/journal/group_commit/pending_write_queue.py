"""Queue of steps that are not stored yet: queued, being written, or failed and to be retried."""

import itertools
import math
from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence

import attrs
import trio

from actgent.errors import (
    ActgentError,
    Fenced,
    JournalDamaged,
    JournalError,
    JournalFailed,
    JournalFull,
    JournalSlow,
    SessionExists,
    SessionNotFound,
)
from actgent.journal.journal_interface import Creation
from actgent.journal.session_list_queries import SessionKey
from actgent.support.fast_attrs_constructors import fast_constructor
from actgent.support.safe_logging import LogVariable, logger_of

from .row_format import Head, JournalStep, find_parent

_log = logger_of(__name__)
GROUP_STEPS = 1000
"""Maximum number of steps in one transaction."""
GROUP_BYTES = 16_000_000
"""Maximum bytes of one transaction. A single larger step is written nevertheless."""


Steps = dict[SessionKey, list[JournalStep]]
"""Steps of one group by session, in the order in which they are written."""


@attrs.define(eq=False)
class QueuedStep:
    """A queued step, and the task that waits until it is stored."""

    step: JournalStep
    epoch: int
    is_retried: bool = False
    """True if the step is kept for a retry after a failed write, even though a task waits for it."""
    is_over: bool = False
    error: ActgentError | None = None
    task: trio.lowlevel.Task | None = None
    """Task that waits until the step is stored; None if no task waits."""
    timeout_seconds: float = math.inf
    """Maximum seconds that the waiting task waits."""
    until: float = math.inf
    """Deadline of the waiting task on trio's clock, in seconds."""

    async def wait(self) -> None:
        """Wait until the step is written, and raise its error.

        If the caller is cancelled during the wait, it cannot receive the error, so the queue retries the step if it fails.
        """
        if self.is_over:
            await trio.lowlevel.checkpoint()
        else:
            await self._wait_over()
        if self.error is not None:
            raise self.error

    @trio.lowlevel.enable_ki_protection  # Ctrl-C here would leave a task registered that no longer waits
    async def _wait_over(self) -> None:

        def leave(_: object) -> trio.lowlevel.Abort:
            self.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        self.task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(leave)

    def wake(self) -> None:
        """Wake the task that waits until this step is written; do nothing if no task waits."""
        if self.task is not None:
            trio.lowlevel.reschedule(self.task)
            self.task = None


make_queued = fast_constructor(QueuedStep)


@attrs.define(eq=False)
class StepQueue:
    """Ordered queue of steps with their waiting tasks. Forms groups and distributes their outcome."""

    steps: deque[QueuedStep] = attrs.field(factory=deque)
    """Steps in order of arrival that wait for a write, without the group that is being written."""
    writing: Sequence[QueuedStep] = ()
    """Queued steps of the group that is being written."""
    failed: dict[SessionKey, list[JournalStep]] = attrs.field(factory=dict)
    """Failed steps by session that no caller retries. They are written before the next step of their session."""
    possibly_erased: set[SessionKey] = attrs.field(factory=set)
    """Sessions in `failed` that may have been erased.
    Their steps must not be written unless the first step of the session is among them.
    """
    _bytes: int = 0
    """Total size of the queued `steps` in bytes."""
    _unwritten: dict[SessionKey, int] = attrs.field(factory=dict)
    """Number of steps that are not stored yet, by session."""

    @trio.lowlevel.enable_ki_protection
    def put(self, queued: QueuedStep) -> None:
        """Append a step to the queue. The next group that has room for the step writes it."""
        step, unwritten = queued.step, self._unwritten
        self.steps.append(queued)
        self._bytes += len(step.body)
        unwritten[step.key] = unwritten.get(step.key, 0) + 1

    def must_wait(self, key: SessionKey) -> bool:
        """Return True if a step of this session must wait: the session has failed steps, or the queue is full."""
        return key in self.failed or len(self.steps) >= GROUP_STEPS or self._bytes >= GROUP_BYTES

    @property
    def is_empty(self) -> bool:
        """True if no step is queued, being written or kept for a retry."""
        return not (self.steps or self.writing or self.failed)

    def has_unwritten(self, key: SessionKey) -> bool:
        """Return True if a step of this session is not stored."""
        return key in self._unwritten or key in self.failed

    def count_unwritten(self) -> Counter[SessionKey]:
        """Return the number of steps with records that are not stored, by session."""
        left = Counter({key: len(steps) for key, steps in self.failed.items()})
        for queued in self.unfinished():
            if queued.step.count and not queued.is_over:
                left[queued.step.key] += 1
        return left

    def unfinished(self) -> Sequence[QueuedStep]:
        """Return the steps that are being written, followed by the queued steps."""
        return [*self.writing, *self.steps]

    # --- a group --------------------------------------------------------------------------

    def sessions_beginning(self, known: Mapping[SessionKey, Head]) -> Sequence[SessionKey] | None:
        """Return the keys of the sessions that queued steps create. `known` has the cached session summaries.

        Return None if a queued step belongs to an existing session whose summary is not in `known`. That summary must be
        read from the storage before the queue can be written.
        """
        for queued in self.steps:
            step = queued.step
            if step.count and (step.creation is not None or step.key not in known):
                return self._find_beginning(known)
        return ()

    def _find_beginning(self, known: Mapping[SessionKey, Head]) -> Sequence[SessionKey] | None:
        new = dict[SessionKey, None]()
        for queued in itertools.islice(self.steps, GROUP_STEPS):
            step = queued.step
            if not step.count:
                continue
            is_there = step.key in known or step.key in new
            if step.is_refused or (is_there and step.begins):
                return None
            if is_there:
                continue
            above = find_parent(step)
            if not step.begins or (above is not None and above not in known and above not in new):
                return None
            new[step.key] = None
        return list(new)

    def take_group(self) -> list[QueuedStep]:
        """Remove the first steps from the queue and return them as the group that is being written."""
        if len(self.steps) <= GROUP_STEPS and self._bytes < GROUP_BYTES:
            group, self._bytes = [*self.steps], 0
            self.steps.clear()
        else:
            group = self._take_some()
        self.writing = group
        return group

    def _take_some(self) -> list[QueuedStep]:
        group: list[QueuedStep] = []
        size = 0
        while self.steps and len(group) < GROUP_STEPS and size < GROUP_BYTES:
            group.append(self.steps.popleft())
            size += len(group[-1].step.body)
        self._bytes -= size
        return group

    def by_session(self, group: list[QueuedStep]) -> Steps:
        """Group steps by session. In each session, the steps whose write failed earlier come first."""
        by_session: Steps = {}
        kept = self.failed
        for queued in group:
            step = queued.step
            steps = by_session.get(step.key)
            if steps is None:
                steps = by_session[step.key] = [*kept[step.key]] if step.key in kept else []
            if step.count:
                steps.append(step)
        if all(by_session.values()):
            return by_session
        return {key: steps for key, steps in by_session.items() if steps}

    def reject_duplicates(
        self, group: Iterable[QueuedStep], by_session: Steps, known: Container[SessionKey]
    ) -> Steps:
        """Reject new sessions whose id is taken, with all their steps. Return the steps to write."""
        if all(step.creation is None for steps in by_session.values() for step in steps):
            return by_session
        admitted = {key: _admit(steps, is_there=key in known) for key, steps in by_session.items()}
        for queued in group:
            if queued.step.is_refused and not queued.is_over:
                self._answer(queued)
        return {key: steps for key, steps in admitted.items() if steps}

    def reject_erased(
        self, group: Iterable[QueuedStep], by_session: Steps, known: Container[SessionKey]
    ) -> Steps:
        """Reject steps of erased sessions, because they would create a session without its first record. Return the steps to write.

        If a later step creates the session again, that step and the following ones are written.
        """
        gone = [key for key, steps in by_session.items() if key not in known and steps[0].follows]
        if not gone:
            return by_session
        left = dict(by_session)
        refused: set[int] = set()
        for key in gone:
            rest = [*itertools.dropwhile(lambda step: not step.begins, left.pop(key))]
            refused.update(id(step) for step in by_session[key][: len(by_session[key]) - len(rest)])
            self.failed.pop(key, None)
            if rest:
                left[key] = rest
            _log.warning(
                "agent %s: records of session %s were dropped because the session was erased",
                *map(LogVariable, key),
            )
        for queued in group:
            if id(queued.step) in refused and not queued.is_over:
                queued.error = SessionNotFound(*queued.step.key)
                self._answer(queued)
        return left

    # --- outcome --------------------------------------------------------------------------

    def finish(self, group: list[QueuedStep]) -> None:
        """Complete the steps of a written group, and wake the tasks that wait for these steps."""
        for queued in group:
            if self.failed:
                self.failed.pop(queued.step.key, None)
            if not queued.is_over:
                self._answer(queued)

    def fail(self, group: Iterable[QueuedStep], error: JournalError | Fenced) -> bool:
        """Fail all steps of a group with an error.

        Return True if steps without a waiting task were kept for a retry.
        """
        is_any_retained = False
        for queued in group:
            if queued.is_over:
                continue
            # One error for each waiting task, so that tasks do not share a traceback.
            fresh = error if isinstance(error, JournalDamaged) else type(error)(*error.args)
            fresh.__cause__ = error.__cause__
            queued.error = fresh
            is_lost = (queued.is_retried or queued.task is None) and queued.step.count
            if is_lost and isinstance(error, JournalFull | JournalFailed):
                self.failed.setdefault(queued.step.key, []).append(queued.step)
                is_any_retained = True
            self._answer(queued)
        return is_any_retained

    def drop_failed(self, erased: Iterable[SessionKey]) -> None:
        """Remove the failed steps of erased sessions from the queue, and the steps that create child sessions of erased sessions."""
        if not self.failed:
            return
        gone = set(erased)
        for key, steps in [*self.failed.items()]:
            if key in gone or (steps[0].begins and find_parent(steps[0]) in gone):
                del self.failed[key]
                gone.add(key)

    def note_possibly_erased(self) -> None:
        """Mark the sessions with failed steps as possibly erased."""
        self.possibly_erased = {key for key, steps in self.failed.items() if not steps[0].begins}

    def drop_erased(self, existing: Container[SessionKey]) -> None:
        """Remove the failed steps of the possibly erased sessions that are not in `existing`. Clear the mark of all."""
        for key in self.possibly_erased:
            if key not in existing:
                self.failed.pop(key, None)
        self.possibly_erased.clear()

    def fail_all(self, error: Fenced) -> None:
        """Fail all queued steps with `error`, and discard the failed steps that were kept for a retry."""
        waiting = [*self.steps]
        self.steps.clear()
        self.failed.clear()
        self._bytes = 0
        self.fail(waiting, error)

    def raise_timeouts(self, now: float) -> None:
        """Raise `JournalSlow` in tasks whose timeout has expired. Their steps are still written."""
        for queued in self.unfinished():
            if queued.until <= now and queued.task is not None:
                queued.error = JournalSlow(queued.timeout_seconds)
                queued.wake()

    def _answer(self, queued: QueuedStep) -> None:
        key, unwritten = queued.step.key, self._unwritten
        left = unwritten[key] - 1
        if left:
            unwritten[key] = left
        else:
            del unwritten[key]
        queued.is_over = True
        if (creation := queued.step.creation) is not None:
            _record_outcome(creation, queued)
        if queued.task is not None:
            queued.wake()


def _admit(steps: Iterable[JournalStep], *, is_there: bool) -> list[JournalStep]:
    """Return the steps of one session that may be written. `is_there` is True if the storage already has the session.

    If a step creates a session whose id is taken, mark this creation as rejected, and omit all of its steps.
    """
    admitted = []
    for step in steps:
        if is_there and step.begins and step.creation is not None:
            step.creation.is_refused = True  # even if the other session is still queued and may fail
        if not step.is_refused:
            admitted.append(step)
            is_there = True
    return admitted


def _record_outcome(creation: Creation, queued: QueuedStep) -> None:
    """After a step was written, mark the creation of its session as written.

    If the id belonged to another session, the step `queued` fails with `SessionExists`.
    """
    if creation.is_refused:
        queued.error = SessionExists(*queued.step.key)
    elif queued.error is None:
        creation.is_written = True
