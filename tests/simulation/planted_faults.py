"""Faults of order, crash and cancellation that were mended, planted again by hand in today's code.

Each fault replaces texts that occur once in their modules. A fault whose mend added two guards removes both. `hunt_faults.py` looks for the seeds that find them.
"""

from pathlib import Path

import attrs


@attrs.frozen
class Edit:
    """A replacement in the source of a module."""

    path: str
    """Path of the module below `actgent/`."""
    old: str
    """Text that occurs once in the module."""
    new: str
    """Text that replaces it."""


@attrs.frozen
class Fault:
    """A fault of one function, as it was before it was mended."""

    edits: tuple[Edit, ...]
    kind: str
    """Area of the fault, for the summary."""


def changed_sources(fault: Fault, package: Path) -> dict[Path, str]:
    """Return the sources of the modules that a fault changes, with its texts, by path. `package` is the folder of the package.

    Raises:
        ValueError: A module does not contain a text exactly once.
    """
    sources = dict[Path, str]()
    for edit in fault.edits:
        path = package / edit.path
        source = sources[path] if path in sources else path.read_text(encoding="utf-8")
        if source.count(edit.old) != 1:
            raise ValueError(f"{edit.path} contains {source.count(edit.old)} times: {edit.old}")
        sources[path] = source.replace(edit.old, edit.new)
    return sources


def _fault(kind: str, path: str, old: str, new: str, *others: Edit) -> Fault:
    return Fault((Edit(path, old, new), *others), kind)


_CLOSE, _LIFE = "runtime/sessions/session_tree_close.py", "runtime/sessions/session_lifecycle.py"
_LEDGER, _DECIDE = "sessions/pending/approval_ledger.py", "runtime/approval_decisions.py"
_ADMIT, _RUN, _TURN = "runtime/message_admission.py", "runtime/turn_runner.py", "turns/turn_lifecycle.py"
_TASK, _FIRE, _SCHED = (
    "runtime/delegation/task_delegation.py",
    "runtime/timer_handlers.py",
    "sessions/pending/schedules.py",
)
_LOG, _QUEUE, _GROUP = (
    "sessions/session_record_writer.py",
    "journal/group_commit/pending_write_queue.py",
    "journal/group_commit/base_journal_with_group_commit.py",
)
_CALLS, _OPEN, _SNAP = (
    "turns/calls/tool_calls.py",
    "runtime/sessions/session_opener.py",
    "sessions/restore/snapshotter.py",
)

PLANTED_FAULTS: dict[str, Fault] = {
    # --- closing and erasing ---
    "a closed parent is recorded before its children": _fault(
        "close", _CLOSE, "        keeping.enter_context(host_of(context).kept(context))\n", "        pass\n"
    ),
    "a close whose caller is cancelled is dropped": _fault(
        "close",
        _CLOSE,
        "except BaseException:\n            closing.continue_in_background(keeping.pop_all())\n            raise\n    await _write_end",
        "except BaseException:\n            raise\n    await _write_end",
    ),
    "a close in the background is dropped as the agent stops": _fault(
        "close", _CLOSE, "await self._close_before_stop(otherwise)", "pass"
    ),
    "a close in the background ends with an error of the journal": _fault(
        "close",
        _CLOSE,
        "            with suppress(JournalFull, JournalFailed):\n                return await self.close_below()",
        "            return await self.close_below()",
    ),
    "children in the journal only are not closed": _fault(
        "close", _CLOSE, "        if self._stored is not None:\n", "        if False:\n"
    ),
    "a close returns before the session's work has ended": _fault(
        "close", _LIFE, "        await context.wait_idle()  # another task", "        pass  # another task"
    ),
    "a close while the agent stops returns without its record": _fault(
        "close",
        _LIFE,
        "    elif host_of(context).is_durable and host_of(context).is_stopping:\n",
        "    elif False:\n",
    ),
    "a close that outlives its agent is recorded": _fault(
        "close", _LIFE, "if context.is_forwarded or self.has_stopped:\n", "if context.is_forwarded:\n"
    ),
    "a child of an agent that has ended is closed in memory": _fault(
        "close",
        _LIFE,
        " if each.host is context.host or not host_of(each).has_ended]",
        "]",
        Edit(
            _CLOSE, "return below.host is not self._context.host and host_of(below).has_ended", "return False"
        ),
    ),
    "a child is created below a closed parent": _fault(
        "close", _LIFE, "if parent is not None and parent.closed:\n", "if False:\n"
    ),
    "a session that was opened during its erasure is erased open": _fault(
        "erase",
        "runtime/runtime.py",
        "                if not is_gone:\n                    continue\n",
        "                pass\n",
    ),
    "children that are created during an erasure stay": _fault(
        "erase",
        "runtime/runtime.py",
        "        left = [key]\n        while left:\n            if below := await self._erase(journal, left[-1]):\n",
        "        left, seen = [key], set()\n        while left:\n"
        "            if below := await self._erase(journal, left[-1], seen):\n",
        Edit(
            "runtime/runtime.py",
            "async def _erase(self, journal: Journal, key: SessionKey)",
            "async def _erase(self, journal: Journal, key: SessionKey, seen)",
        ),
        Edit(
            "runtime/runtime.py",
            "                if not below:\n",
            "                below = [] if key in seen else below\n                seen.add(key)\n                if not below:\n",
        ),
    ),
    "an erasure records the close of its session first": _fault(
        "erase", _CLOSE, "            keeping.enter_context(host_of(each).kept(each))\n", "            pass\n"
    ),
    "an erasure begins with the root": _fault(
        "erase", "runtime/runtime.py", "                if not below:\n", "                if True:\n"
    ),
    "an erasure does not keep other callers from opening": _fault(
        "erase", "runtime/agent_directory.py", "with openings.block(key.session_id, erases=True):", "if True:"
    ),
    "failed records of an erased session are written": _fault(
        "erase", _GROUP, "        self._queue.drop_failed(gone)\n", "        pass\n"
    ),
    "records of an erased session begin it again": _fault(
        "erase",
        _QUEUE,
        "        gone = [key for key, batches in by_session.items()",
        "        gone = [key for key, batches in ()",
    ),
    "failed records after an erasure in doubt begin a session": _fault(
        "erase",
        _GROUP,
        "        self._queue.note_possibly_erased()\n",
        "        pass\n",
        Edit(
            _QUEUE,
            "        gone = [key for key, batches in by_session.items()",
            "        gone = [key for key, batches in ()",
        ),
    ),
    # --- interrupting ---
    "two callers stop one queued message": _fault(
        "stop",
        _LIFE,
        "        elif acceptance is not None and acceptance.ending is not None:  # another",
        "        elif False:  # another",
    ),
    "a stop before the arrival is not recorded": _fault(
        "stop", _LIFE, "context.log.add(CancellationRecord(message_id=message_id, reason=reason))", "pass"
    ),
    "a stop is forgotten before the end is recorded": _fault(
        "stop", _LIFE, "    if context.log is None:  # every end is final\n", "    if True:\n"
    ),
    "a stop hides the journal's error": _fault(
        "stop", _LIFE, "            lost = _journal_error([ending.error])\n", "            lost = None\n"
    ),
    "an interrupt of a message that a stop has dequeued fails": _fault(
        "stop",
        _LIFE,
        "        elif self.has_ended:  # `end_remaining`",
        "        elif False:  # `end_remaining`",
    ),
    "a queued message is reported as failed before the record": _fault(
        "stop",
        _LIFE,
        "error = ending.error = await self._turn_lifecycle.record_unstarted(context, messages, error)",
        "ending.error = error",
    ),
    "a turn is reported as failed before the record": _fault(
        "stop",
        _RUN,
        "error = await self.turn_lifecycle.record_failure(turn, error)",
        "turn.cover(); turn.error = error; self.turn_lifecycle.close_calls(turn)",
    ),
    "a stopped turn delivers results that are not recorded": _fault(
        "stop", _TURN, "        is_final = context.log is None\n", "        is_final = True\n"
    ),
    "a failed message is answered after a restart": _fault(
        "stop",
        _LIFE,
        "    if acceptance is None or acceptance.failed is None or acceptance.inbox_entry is None:\n",
        "    if True:\n",
        Edit(_TURN, "if context.closed or acceptance.failed is not None:", "if context.closed:"),
    ),
    "a stopping agent starts another turn": _fault(
        "stop", _RUN, "        self.stop_starting()  # the journal", "        pass  # the journal"
    ),
    "a suspended turn that is about to resume is not ended by a stop": _fault(
        "stop",
        _RUN,
        "        for turn in self._held_up:\n            await run_with",
        "        for turn in ():\n            await run_with",
    ),
    # --- approvals ---
    "two decisions at once": _fault(
        "approval",
        _DECIDE,
        "    await ledger.wait_written(approval_id_of(asked))\n",
        "    await trio.lowlevel.checkpoint()\n",
    ),
    "a session is idle while a decision is written": _fault(
        "approval", _LEDGER, "return bool(self._writing) and not self.undecided", "return False"
    ),
    "a cancelled decision is open again": _fault(
        "approval", _DECIDE, "        trio.Cancelled\n    ):", "        ZeroDivisionError\n    ):"
    ),
    "a decision whose write failed stays taken": _fault(
        "approval", _DECIDE, "        ledger.undo(approval)\n", ""
    ),
    "a decision and its resumption are two records": _fault(
        "approval",
        _DECIDE,
        "resumed = () if context.ledger().undecided else (ResumptionRecord(ids=(decided.approval_id,)),)",
        "resumed = ()",
    ),
    "a turn that waits again is recorded as resumed": _fault(
        "approval",
        _DECIDE,
        "    if ids and context.suspension is not None and not ledger.is_suspended:\n",
        "    if False:\n",
    ),
    "an approval expires while its decision is written": _fault(
        "approval", _DECIDE, "if approval in context.ledger().undecided:", "if True:"
    ),
    "a refused message ends a suspended turn in the journal": _fault(
        "approval", _ADMIT, "        if goes_first and context.log is log:\n", "        if False:\n"
    ),
    "a newer message does not end a suspended turn": _fault(
        "approval",
        _ADMIT,
        "            self._runner.resume_if_superseded(context)\n        self._runner.pump()",
        "            pass\n        self._runner.pump()",
    ),
    # --- admission ---
    "a refused message is not recorded as refused": _fault(
        "admission",
        _ADMIT,
        "            self._record_rejection(context, acceptance, log)\n            acceptance.log = None\n",
        "            acceptance.log = None\n",
    ),
    "a cancelled message is not recorded as refused": _fault(
        "admission",
        _ADMIT,
        "        if (log := acceptance.log) is not None:\n",
        "        if (log := None) is not None:\n",
    ),
    "a repeated message is accepted again": _fault(
        "admission", _ADMIT, "            if context.has_accepted(message.id):\n", "            if False:\n"
    ),
    "two calls of one message are accepted": _fault(
        "admission", _ADMIT, "            message = await self._wait_for_first(context, message)\n", ""
    ),
    "a message that waited for room is accepted by a closed session": _fault(
        "admission",
        _ADMIT,
        "        if context.closed:\n            raise context.refusal\n        if self._runner.is_stopping",
        "        if self._runner.is_stopping",
    ),
    "a message is accepted by a session that closed during its write": _fault(
        "admission",
        _ADMIT,
        "        try:\n            self._check_reachable(context)\n        except",
        "        try:\n            pass\n        except",
    ),
    "an answered message is known only until a restart": _fault(
        "admission",
        "sessions/restore/record_replayer.py",
        "        self._context.add_accepted_id(message.id)\n",
        "",
    ),
    "new messages overtake those from before a restart": _fault(
        "admission", _OPEN, "            running.inbox.claim(session_id)  # new", "            pass  # new"
    ),
    "two callers open one session": _fault(
        "admission",
        _OPEN,
        "        if (known := self._find_known(session_id)) is not None:  # another task has opened the session\n            return known\n",
        "",
    ),
    "a session is opened by two callers without a block": _fault(
        "admission",
        "runtime/sessions/session_loading.py",
        "            await opening.done.wait()\n\n    async def wait_loaded",
        "            return await trio.lowlevel.checkpoint()\n\n    async def wait_loaded",
    ),
    # --- tasks ---
    "a report is dropped if the journal fails": _fault(
        "task",
        _TASK,
        "            except (JournalFull, JournalFailed) as error:",
        "            except ZeroDivisionError as error:",
    ),
    "a report is sent twice": _fault(
        "task",
        _TASK,
        "accept(parent, message, once=True, is_granted=True",
        "accept(parent, message, once=False, is_granted=True",
    ),
    "a report to a stopped agent is dropped": _fault(
        "task",
        _TASK,
        "                if self.journal is None:\n                    raise\n                accepted = ",
        "                raise\n                accepted = ",
    ),
    "a report to a stopped agent is written twice": _fault(
        "task",
        _TASK,
        "            if not is_accepted(records, accepted.message.id):\n                entry",
        "            if True:\n                entry",
    ),
    "a report to a starting agent is not in memory": _fault(
        "task",
        _TASK,
        "            if self.agents.accepts_messages_to(parent):\n",
        "            if False:\n",
        Edit(_TASK, "        with pending.block(parent.session_id, erases=True):", "        if True:"),
        Edit(
            _TASK,
            "                    await self.agents.opener(task.parent_agent).find(task.parent_id)\n",
            "                    await trio.lowlevel.checkpoint()\n",
        ),
    ),
    "a stopped agent ends the children of its turns": _fault(
        "task", _RUN, "if context.tree is not None and not self.is_stopping:", "if context.tree is not None:"
    ),
    "a child is created below a session of a stopped agent": _fault(
        "task", _LIFE, "if parent is not None and host_of(parent).has_stopped:", "if False:"
    ),
    "a task of a restarted agent is not cancelled": _fault(
        "task",
        _TASK,
        "    if journal is not None and caller.log is not None:\n",
        "    if journal is not None and caller.log is not None and caller.log.creation is None:\n",
    ),
    "a stopped task is recorded for the next start": _fault(
        "task",
        _TASK,
        "            if not task.reports:\n                return False\n",
        "",
        Edit(_TASK, "        while task.reports:\n", "        while True:\n"),
        Edit(_TASK, "    if stopped and host_of(caller).has_stopped:\n", "    if False:\n"),
    ),
    "a cancelled task reports after its cancellation": _fault(
        "task", _TASK, "caller.children.stop_report(child)", "pass"
    ),
    "a task of the journal is not cancelled": _fault(
        "task",
        _TASK,
        "        for head in await journal.children(*caller.key):\n",
        "        for head in ():\n",
    ),
    "a task that is stopped with its agent ends": _fault(
        "task", _LIFE, "last_error = Stopped(self.name) if reports else error", "last_error = error"
    ),
    "a task past its deadline leaves its children open": _fault(
        "task", _FIRE, "        await close_tree(context, running.journal, opener_of)\n", ""
    ),
    "a child is taken for one without a caller while the caller is loaded": _fault(
        "task",
        "runtime/sessions/session_loading.py",
        "return not (parent.pending or parent.acceptances)",
        "return not parent.pending",
    ),
    # --- schedules ---
    "a schedule fires before it is written": _fault(
        "schedule", _FIRE, "    if not await is_set(context, timer):\n        return\n", ""
    ),
    "a schedule is lost if its message is refused": _fault(
        "schedule", _FIRE, "        _set_again(context, timer)\n        raise", "        raise"
    ),
    "a message of a schedule and its firing are two records": _fault(
        "schedule", _FIRE, "context, message, fired, variables=", "context, message, variables="
    ),
    "a cancelled schedule stays in the journal": _fault(
        "schedule",
        _SCHED,
        "            context.log.add(ScheduleRemovedRecord(schedule_id=timer.schedule.id, withdrawn=True))\n",
        "",
    ),
    "a removal that failed is durable": _fault(
        "schedule", _SCHED, "            context.log.add(_record(found))\n", ""
    ),
    "a removed schedule is forgotten as its session leaves memory": _fault(
        "schedule",
        "runtime/sessions/session_table.py",
        "            context.log.flush_soon()  # pending",
        "            pass  # pending",
    ),
    "schedules in the journal are not watched": _fault(
        "schedule",
        "runtime/sessions/session_recovery.py",
        "    running.timer_service.load(await running.journal.due(running.name))\n",
        "",
    ),
    "a snapshot forgets the ids of schedules": _fault(
        "schedule",
        _SCHED,
        "        context.schedules.scheduled[record.schedule_id] = _schedule(record)\n",
        "        pass\n",
    ),
    # --- the journal ---
    "records without a waiting caller are lost if a write fails": _fault(
        "journal",
        _QUEUE,
        "            is_lost = (queued.is_retried or queued.task is None) and queued.batch.count\n",
        "            is_lost = False\n",
    ),
    "records that failed are written after later ones": _fault(
        "journal",
        _QUEUE,
        "batches = by_session[batch.key] = [*kept[batch.key]] if batch.key in kept else []",
        "batches = by_session[batch.key] = []",
    ),
    "a write whose confirmation was lost is written again": _fault(
        "journal", _GROUP, "return await self._read_heads(sorted(heads)) == heads", "return False"
    ),
    "a write in doubt is not rolled back": _fault(
        "journal", _GROUP, "            await self._roll_back(key, uncertain[key], self._epoch)\n", ""
    ),
    "collected records are dropped if their write fails": _fault(
        "journal",
        _LOG,
        "            self._pending = late + self._pending  # an older",
        "            pass  # an older",
    ),
    "collected records fail with a message": _fault(
        "journal", _LOG, "        self._flush_before()\n        noted", "        noted"
    ),
    "records overtake the first record of their session": _fault(
        "journal",
        _LOG,
        "        self._is_paused, self._opened = True, trio.Event()\n",
        "        self._opened = trio.Event()\n",
    ),
    "a cancelled caller leaves its write to nobody": _fault(
        "journal",
        _GROUP,
        "            if self._started is started and not self._finish_if_written(started):\n                self._call()",
        "            if sys.exc_info()[1] is None and self._started is started and not self._finish_if_written(started):\n                self._call()",
    ),
    # --- turns and tools ---
    "a tool begins before its start is recorded": _fault(
        "turn", _CALLS, "        turn.cover()\n        await log.flush()\n        turn.expose()\n", ""
    ),
    "an idempotent call that may have run is treated as new": _fault(
        "turn", _CALLS, "                batch.maybe_started |= {index}", "                pass"
    ),
    "results are delivered before they are recorded": _fault(
        "turn",
        _CALLS,
        "        if context.log is not None:\n            await context.log.flush()\n        turn.check()  # stop",
        "        turn.check()  # stop",
    ),
    "a reply is delivered before it is recorded": _fault(
        "turn",
        "turns/agent_core.py",
        "            await _write_answer(turn, context.log, deliveries, is_watched=is_watched)\n",
        "            pass\n",
    ),
    "a result that is recorded runs again": _fault(
        "turn",
        _CALLS,
        "                batch.set_result(index, resume.finished[call.id])",
        "                pass",
    ),
    "model calls are counted from zero after a restart": _fault(
        "turn",
        "sessions/budget_accounts.py",
        "restored.opened.limits, spent=restored.spent)",
        "restored.opened.limits)",
    ),
    "a model call that dies is not counted": _fault(
        "turn",
        "turns/calls/budgeted_model_calls.py",
        "        turn.cover()\n        await budget.own.log.flush()\n        turn.expose()\n",
        "        await trio.lowlevel.checkpoint()\n",
    ),
    "a turn continues at a place of another message": _fault(
        "turn",
        _TURN,
        "if unwritten_turn.message_id == turn.message.id and not turn.joined",
        "if not turn.joined",
    ),
    "a turn whose outcome is not written begins again": _fault(
        "turn",
        _TURN,
        "            if turn.error is not None and kind_of(turn.error) == NOT_KEPT:\n",
        "            if False:\n",
    ),
    # --- snapshots, copies and memory ---
    "a snapshot of an erased session is kept for its successor": _fault(
        "memory",
        _SNAP,
        "        if now is None or now.created_at != head.created_at:  # the",
        "        if False:  # the",
    ),
    "a snapshot is taken in a suspended turn": _fault(
        "memory",
        "sessions/restore/record_replayer.py",
        "        return not (goes_on or self._is_closed)\n",
        "        is_suspended = self._context.approvals is not None and self._context.approvals.is_suspended\n"
        "        return is_suspended or not (goes_on or self._is_closed)\n",
    ),
    "a session with a child leaves memory": _fault(
        "memory",
        "runtime/sessions/session_table.py",
        "is_needed = context.parent is not None or context.children",
        "is_needed = False",
    ),
    "two copies get one id": _fault(
        "memory",
        "runtime/introspection.py",
        "        async with agents.creating_session(begun.agent, begun.session_id):\n",
        "        if True:\n",
    ),
}

FOUND: dict[str, int] = {
    "a closed parent is recorded before its children": 496,
    "children in the journal only are not closed": 496,
    "a close returns before the session's work has ended": 1,
    "a child is created below a closed parent": 92,
    "an erasure begins with the root": 14,
    "an erasure does not keep other callers from opening": 69,
    "failed records of an erased session are written": 232,
    "failed records after an erasure in doubt begin a session": 161,
    "two callers stop one queued message": 204,
    "a stop before the arrival is not recorded": 4,
    "a queued message is reported as failed before the record": 4,
    "a turn is reported as failed before the record": 0,
    "a stopped turn delivers results that are not recorded": 10,
    "a failed message is answered after a restart": 53,
    "two decisions at once": 1,
    "a session is idle while a decision is written": 53,
    "a decision and its resumption are two records": 0,
    "a newer message does not end a suspended turn": 404,
    "a refused message is not recorded as refused": 1,
    "a cancelled message is not recorded as refused": 4,
    "a repeated message is accepted again": 0,
    "two calls of one message are accepted": 0,
    "an answered message is known only until a restart": 1,
    "new messages overtake those from before a restart": 0,
    "a report is sent twice": 65,
    "a report to a stopped agent is dropped": 30,
    "a message of a schedule and its firing are two records": 4,
    "a cancelled schedule stays in the journal": 150,
    "a snapshot forgets the ids of schedules": 10,
    "records without a waiting caller are lost if a write fails": 16,
    "records that failed are written after later ones": 16,
    "a write whose confirmation was lost is written again": 16,
    "a write in doubt is not rolled back": 17,
    "a tool begins before its start is recorded": 1,
    "results are delivered before they are recorded": 8,
    "a reply is delivered before it is recorded": 2,
    "a result that is recorded runs again": 4,
    "model calls are counted from zero after a restart": 20,
    "a model call that dies is not counted": 15,
    "a turn continues at a place of another message": 16,
}
"""Seeds that find a fault, of the program `WORKSHOP` with a journal in memory. They change with the simulation."""
FOUND_IN_SQLITE: dict[str, int] = {"a cancelled caller leaves its write to nobody": 2}
"""The same with a SQLite journal."""
FOUND_WITH_OPTIONS: dict[str, tuple[str, int]] = {
    "a close in the background is dropped as the agent stops": (
        "--program PLAIN --always close,cancel,stop,handler --only",
        33,
    ),
    "a close in the background ends with an error of the journal": (
        "--always close,journal,task --only",
        102,
    ),
    "a close whose caller is cancelled is dropped": ("--program TEAM --always close,cancel", 311),
    "a close while the agent stops returns without its record": ("--program PLAIN --always close,stop", 47),
    "a child of an agent that has ended is closed in memory": ("--always close,restart,task --only", 240),
    "a session is opened by two callers without a block": ("--always handler,repeat,cancel --only", 94),
    "an interrupt of a message that a stop has dequeued fails": (
        "--always task,interrupt,restart,concurrency --only",
        216,
    ),
    "a close that outlives its agent is recorded": ("--always close,restart,task --only", 8),
    "children that are created during an erasure stay": ("--always erase,task,slow --only", 30),
    "a session that was opened during its erasure is erased open": ("--always erase,kill --only", 254),
    "an erasure records the close of its session first": ("--always erase,task,cancel,kill --only", 23),
    "a stop is forgotten before the end is recorded": (
        "--program PLAIN --always interrupt,journal,repeat",
        78,
    ),
    "a stop hides the journal's error": (
        "--program PLAIN --always interrupt,journal,concurrency --only",
        705,
    ),
    "a cancelled decision is open again": ("--program COUNTER --always approver,cancel --only", 4),
    "a decision whose write failed stays taken": ("--program COUNTER --always journal", 14),
    "a turn that waits again is recorded as resumed": (
        "--program COUNTER --always approver,journal,slow --only",
        5,
    ),
    "an approval expires while its decision is written": (
        "--program COUNTER --always approver,slow --only",
        126,
    ),
    "a refused message ends a suspended turn in the journal": (
        "--program COUNTER --always cancel,priority",
        35,
    ),
    "two callers open one session": ("--always handler,memory,cancel", 2),
    "a report is dropped if the journal fails": ("--always task,journal", 4),
    "a stopped agent ends the children of its turns": ("--always kill,restart,slow --only", 204),
    "a child is created below a session of a stopped agent": ("--always restart,task,slow --only", 14),
    "a task of a restarted agent is not cancelled": ("--always restart,task,slow --only", 161),
    "a stopped task is recorded for the next start": ("--always restart,task,slow --only", 155),
    "a report to a starting agent is not in memory": ("--always task,restart,journal,slow --only", 171),
    "a report to a stopped agent is written twice": ("--always restart,task,journal --only", 108),
    "a task of the journal is not cancelled": ("--always restart,task,slow --only", 4),
    "a cancelled task reports after its cancellation": ("--always task", 6),
    "a schedule fires before it is written": ("--program COUNTER --always schedule,slow,journal", 24),
    "a schedule is lost if its message is refused": ("--always schedule,full", 40),
    "schedules in the journal are not watched": ("--program COUNTER --always schedule", 51),
    "collected records fail with a message": ("--program COUNTER --always journal,cancel", 52),
    "a turn whose outcome is not written begins again": ("--program COUNTER --always journal,model", 2),
    "a task past its deadline leaves its children open": (
        "--program TEAM --always task,kill,downtime,restart",
        67,
    ),
    "a session with a child leaves memory": ("--program TEAM --always memory,task,close", 593),
    "an idempotent call that may have run is treated as new": (
        "--program COUNTER --always approver,kill",
        239,
    ),
    "a snapshot is taken in a suspended turn": ("--program COUNTER --always approver,memory,kill --only", 53),
}
"""The same with a journal in memory and other options of `hunt_faults.py`: the options, and the seed."""
EQUIVALENT: dict[str, str] = {
    "a message is accepted by a session that closed during its write": "a turn of a closed session ends as it begins, the close waits for the message, and the next start of a stopped agent answers the message; to 999 with `--program PLAIN --always close,slow,repeat --only`",
    "a stopping agent starts another turn": "`AgentActor.live` also stops the start of turns, and `_stop_turn` writes a record before the next turn could start",
    "a message that waited for room is accepted by a closed session": "a turn of a closed session ends as it begins, and the close waits for the message",
    "a removal that failed is durable": "the journal rolls back a failed write before the next write of the session",
    "a removed schedule is forgotten as its session leaves memory": "each removal is written before the session may leave memory",
    "collected records are dropped if their write fails": "only the time of a removed timer waits for a batch that may fail, and an outdated time is harmless",
    "records overtake the first record of their session": "the queue of the journal keeps the order of the batches, and drops the batches of a session whose creation failed",
    "two copies get one id": "the journal rejects the second creation of an id, so the second copy fails in any case",
}
"""Faults that no run can show, because other code has the same effect today: the reason. No table counts them as found."""
MISSED: dict[str, str] = {
    "a suspended turn that is about to resume is not ended by a stop": "to 1212 with `--program COUNTER --always approver,stop,slow --only`: no difference was observed",
    "records of an erased session begin it again": "to 568 with `--always annotate,erase --only`: the log of an erased session also rejects its records",
    "a task that is stopped with its agent ends": "to 215 with `--always task,interrupt,restart,concurrency --only`: a caller must interrupt a queued task as its agent stops",
    "a child is taken for one without a caller while the caller is loaded": "to 692 with `--always order,handler,kill --only`: no difference was observed",
    "a snapshot of an erased session is kept for its successor": "to 640 with `--always memory,erase --only`: no difference was observed",
}
"""Faults that were not found: the seeds that were run, and the reason if it is known."""
