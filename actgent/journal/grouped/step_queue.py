"""The steps of a journal that are not in its storage: on their way, being written, and those it could not take."""

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
from actgent.journal.base import Creation
from actgent.journal.listing import SessionKey
from actgent.support.logs import Each, logger_of
from actgent.support.quick_init import maker

from .steps import Head, JournalStep, find_parent

_log = logger_of(__name__)
GROUP_STEPS = 1000
GROUP_BYTES = 16_000_000
"""Bounds of one transaction; a single larger step is written all the same."""


Steps = dict[SessionKey, list[JournalStep]]
"""Of a group, by their sessions."""


@attrs.define(eq=False)
class QueuedStep:
    """A step, and whoever waits until it is in the storage."""

    step: JournalStep
    epoch: int
    is_kept: bool = False
    """True: it is kept where it cannot be written, whoever waits for it."""
    is_over: bool = False
    error: ActgentError | None = None
    task: trio.lowlevel.Task | None = None
    """Who waits; None where nobody does, or not any more."""
    patience: float = math.inf
    """Seconds after which that one gives up."""
    until: float = math.inf
    """When, by trio's clock."""

    async def wait(self) -> None:
        """Wait until it is over; raises its error. Cancelled, it is kept where it cannot be written, as nobody tries again."""
        if self.is_over:
            await trio.lowlevel.checkpoint()
        else:
            await self._wait_over()
        if self.error is not None:
            raise self.error

    @trio.lowlevel.enable_ki_protection  # or a task would be woken that does not wait
    async def _wait_over(self) -> None:

        def leave(_: object) -> trio.lowlevel.Abort:
            self.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        self.task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(leave)

    def wake(self) -> None:
        """Have the one who waits go on."""
        if self.task is not None:
            trio.lowlevel.reschedule(self.task)
            self.task = None


make_queued = maker(QueuedStep)


@attrs.define(eq=False)
class StepQueue:
    """Keeps the order of steps, and who waits for each; what a group of them is, and what came of it."""

    steps: deque[QueuedStep] = attrs.field(factory=deque)
    """In the order in which they came, without those that are being written."""
    writing: Sequence[QueuedStep] = ()
    """The group that the storage is at."""
    kept: dict[SessionKey, list[JournalStep]] = attrs.field(factory=dict)
    """Steps that could not be written and that nobody else has: each is tried again before the next of its session."""
    unsure: set[SessionKey] = attrs.field(factory=set)
    """Sessions among those that may have been erased since: what is kept of one that is gone would begin it without its first step."""
    _bytes: int = 0
    """Of `steps`."""
    _unwritten: dict[SessionKey, int] = attrs.field(factory=dict)
    """How many steps of each session are not over."""

    @trio.lowlevel.enable_ki_protection
    def put(self, queued: QueuedStep) -> None:
        """Let a step be written with the next group that has room."""
        step, unwritten = queued.step, self._unwritten
        self.steps.append(queued)
        self._bytes += len(step.body)
        unwritten[step.key] = unwritten.get(step.key, 0) + 1

    def is_behind(self, key: SessionKey) -> bool:
        """Return True if a step of this session has to wait, as the storage does not take what comes."""
        return key in self.kept or len(self.steps) >= GROUP_STEPS or self._bytes >= GROUP_BYTES

    def has_unwritten(self, key: SessionKey) -> bool:
        """Return True if a step of this session is not in the storage."""
        return key in self._unwritten or key in self.kept

    def count_unwritten(self) -> Counter[SessionKey]:
        """Count the steps with records that are not in the storage, by session."""
        left = Counter({key: len(steps) for key, steps in self.kept.items()})
        for queued in self.unsettled():
            if queued.step.count and not queued.is_over:
                left[queued.step.key] += 1
        return left

    def unsettled(self) -> Sequence[QueuedStep]:
        """Return what is being written, and what is behind it."""
        return [*self.writing, *self.steps]

    # --- a group --------------------------------------------------------------------------

    def sessions_beginning(self, known: Mapping[SessionKey, Head]) -> Sequence[SessionKey] | None:
        """Return the sessions that begin in the queue; None where heads have to be read before it can be written."""
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
        """Take the first steps as the group that is being written."""
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
        """Return the steps of a group, each session's behind those that could not be written before."""
        by_session: Steps = {}
        kept = self.kept
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

    def refuse_seconds(
        self, group: Iterable[QueuedStep], by_session: Steps, known: Container[SessionKey]
    ) -> Steps:
        """Refuse new sessions whose ids others have, with all steps of them; returns the steps that are to be written."""
        if all(step.creation is None for steps in by_session.values() for step in steps):
            return by_session
        admitted = {key: _admit(steps, is_there=key in known) for key, steps in by_session.items()}
        for queued in group:
            if queued.step.is_refused and not queued.is_over:
                self._answer(queued)
        return {key: steps for key, steps in admitted.items() if steps}

    def refuse_orphans(
        self, group: Iterable[QueuedStep], by_session: Steps, known: Container[SessionKey]
    ) -> Steps:
        """Refuse steps of sessions that are gone, which would begin a session without its first record.

        Returns the steps that are to be written: a session that begins with a later step is written from that on.
        """
        gone = [key for key, steps in by_session.items() if key not in known and steps[0].follows]
        if not gone:
            return by_session
        left = dict(by_session)
        refused: set[int] = set()
        for key in gone:
            rest = [*itertools.dropwhile(lambda step: not step.begins, left.pop(key))]
            refused.update(id(step) for step in by_session[key][: len(by_session[key]) - len(rest)])
            self.kept.pop(key, None)
            if rest:
                left[key] = rest
            _log.warning("agent %s: session %s is erased, so records of it are not written", *map(Each, key))
        for queued in group:
            if id(queued.step) in refused and not queued.is_over:
                queued.error = SessionNotFound(*queued.step.key)
                self._answer(queued)
        return left

    # --- what came of it ------------------------------------------------------------------

    def finish(self, group: list[QueuedStep]) -> None:
        """Let those go on who wait for steps that are written."""
        for queued in group:
            if self.kept:
                self.kept.pop(queued.step.key, None)
            if not queued.is_over:
                self._answer(queued)

    def fail(self, group: Iterable[QueuedStep], error: JournalError | Fenced) -> bool:
        """Raise an error where steps are waited for; returns True if some that nobody waits for are kept."""
        is_kept = False
        for queued in group:
            if queued.is_over:
                continue
            queued.error = _again(error)
            is_lost = (queued.is_kept or queued.task is None) and queued.step.count
            if is_lost and isinstance(error, JournalFull | JournalFailed):
                self.kept.setdefault(queued.step.key, []).append(queued.step)
                is_kept = True
            self._answer(queued)
        return is_kept

    def note_unsure(self) -> None:
        """Sessions may have been erased, and nobody knows which."""
        self.unsure = {key for key, steps in self.kept.items() if not steps[0].begins}

    def drop_gone(self, there: Container[SessionKey]) -> None:
        """Know which of these sessions are there, and forget what is kept of the others."""
        for key in self.unsure:
            if key not in there:
                self.kept.pop(key, None)
        self.unsure.clear()

    def drop(self, error: Fenced) -> None:
        """Fail all that waits with an error, and forget what is kept."""
        waiting = [*self.steps]
        self.steps.clear()
        self.kept.clear()
        self._bytes = 0
        self.fail(waiting, error)

    def give_up(self, now: float) -> None:
        """Let nobody wait for longer than they want; the storage goes on with their steps."""
        for queued in self.unsettled():
            if queued.until <= now and queued.task is not None:
                queued.error = JournalSlow(queued.patience)
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
            _tell(creation, queued)
        if queued.task is not None:
            queued.wake()


def _admit(steps: Iterable[JournalStep], *, is_there: bool) -> list[JournalStep]:
    """The steps of a session but those of others that were to be made under its id."""
    admitted = []
    for step in steps:
        if is_there and step.begins and step.creation is not None:
            step.creation.is_refused = True  # also where the one that is there is on its way, and may fail
        if not step.is_refused:
            admitted.append(step)
            is_there = True
    return admitted


def _tell(creation: Creation, queued: QueuedStep) -> None:
    """Tell who makes a session what came of it."""
    if creation.is_refused:
        queued.error = SessionExists(*queued.step.key)
    elif queued.error is None:
        creation.is_written = True


def _again(error: JournalError | Fenced) -> ActgentError:
    """The same error for one more task, so that they do not share a traceback."""
    fresh = error if isinstance(error, JournalDamaged) else type(error)(*error.args)
    fresh.__cause__ = error.__cause__
    return fresh
