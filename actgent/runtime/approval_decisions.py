"""Decisions of people about calls that wait: checked, written, and then the turn resumes."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import attrs
import trio

from actgent.approvals import BY_PEOPLE, Approval, Approve, Decision, Edit, Expire, Respond, session_of
from actgent.control.arguments import at_least_one
from actgent.control.durable_timer import TIMER_TOLERANCE_SECONDS
from actgent.errors import (
    AlreadyDecided,
    ConfigurationError,
    InvalidArguments,
    NotSerializable,
    NotSuspended,
    ToolError,
    UsageError,
)
from actgent.forms import INPUT, form_misfit
from actgent.journal.records import Decided, Opened, Resumed, SuspendedRecord
from actgent.messages import Message, Sender
from actgent.sessions.context import SessionContext
from actgent.sessions.session_log import unless_written
from actgent.sessions.waiting.approval_ledger import GUARDED, restore_ledger
from actgent.sessions.waiting.turn_future import TurnFuture
from actgent.tools.outputs.results import to_text
from actgent.tools.schemas import compile_schema

from .actor import AgentActor


async def decide(
    running: AgentActor,
    context: SessionContext,
    asked: Approval | str,
    decision: Decision,
    *,
    by: Sender | str | None = None,
) -> None:
    """Decide an approval; see `Session.answer`."""
    running.lifecycle.check_open(context)
    running.lifecycle.leaving.check_decided_here(context)
    if not isinstance(decision, BY_PEOPLE):
        meant = f"{decision.__name__}()" if isinstance(decision, type) else "Approve() or Reject(reason)"
        raise ConfigurationError(
            f"a decision is Approve, Reject, Edit or Respond, not {decision!r:.200}: write {meant}"
        )
    ledger = context.ledger()
    await ledger.wait_written(asked if isinstance(asked, str) else asked.id)
    running.lifecycle.check_open(context)
    approval = ledger.find(asked, context.id)
    decision = _checked(running, approval, decision)
    with running.lifecycle.kept(context):
        await _write(running, context, approval, decision, by=_name_of(by))


def session_holding(context: SessionContext, asked: Approval | str) -> SessionContext:
    """Return the session that holds an approval: this one, or an open one below it."""
    known = asked if isinstance(asked, str) else asked.id
    session_id = session_of(known)
    below = [context]
    for each in below:
        if each.id == session_id and each.approvals is not None and each.approvals.knows(known):
            return each
        below += (each.children or {}).values()
    return next((each for each in below if each.id == session_id), context)


async def expire(running: AgentActor, context: SessionContext) -> None:
    """Reject what nobody decided in time."""
    running.lifecycle.check_open(context)
    with running.lifecycle.kept(context):
        for approval in context.ledger().expired(running.clock.steady() + TIMER_TOLERANCE_SECONDS):
            if approval in context.ledger().undecided:  # or somebody was just in time
                with suppress(AlreadyDecided):  # withdrawn meanwhile
                    await _write(running, context, approval, Expire(), by="")


async def _write(
    running: AgentActor, context: SessionContext, approval: Approval, decision: Decision, *, by: str
) -> None:
    """Make a decision durable, and resume the turn if nothing else of it waits."""
    ledger = context.ledger()
    await trio.lowlevel.checkpoint_if_cancelled()
    ledger.begin(approval)
    context.watch_deadline()
    decided = Decided(approval_id=approval.id, decision=decision, by=by, at=running.clock.now())
    try:
        await _commit(context, decided)
    except trio.Cancelled:  # it may be written: so it counts, and is written once more
        context.record_approval(decided)
        _finish(running, context, approval, decision)
        raise
    except BaseException:
        ledger.undo(approval)
        context.watch_deadline()
        _note_suspended(context)
        context.mail.tell_idle()
        running.runner.send_away(context)  # who came since: it waits for a person again
        raise
    ledger.check_made(approval)
    ledger.apply(decided)
    _finish(running, context, approval, decision)
    await trio.lowlevel.cancel_shielded_checkpoint()


async def _commit(context: SessionContext, decided: Decided) -> None:
    if context.log is None:
        return
    resumed = () if context.ledger().undecided else (Resumed(ids=(decided.approval_id,)),)
    with unless_written():
        await context.log.write(decided, *resumed)
    for record in resumed:
        context.ledger().apply(record)


def _finish(running: AgentActor, context: SessionContext, approval: Approval, decision: Decision) -> None:
    """Tell observers of a decision, and resume the turn if nothing else of it waits."""
    running.core.observer.decide(context, approval, decision)
    if not context.ledger().has_open:
        running.runner.resume(context)  # which also writes that nobody is waited for, if needed
        if context.log is not None:
            context.log.flush_soon()
    else:
        _note_suspended(context)


def _note_suspended(context: SessionContext) -> None:
    """Write that a turn waits on, if a decision was written as the last one and another decision failed meanwhile."""
    ledger, ids = context.ledger(), tuple(each.id for each in context.ledger().undecided)
    if ids and context.suspension is not None and not ledger.is_suspended:
        context.record_approval(SuspendedRecord(message_id=context.suspension.message.id, ids=ids))
        if context.log is not None:
            context.log.flush_soon()


def _checked(running: AgentActor, approval: Approval, decision: Decision) -> Decision:
    """Return the decision as it is written: its arguments checked, its content as text."""
    if isinstance(decision, Edit) and approval.call_id.startswith(GUARDED):
        raise UsageError(
            f"the guard {approval.tool_name!r} asks about no call: take Approve, Reject or Respond"
        )
    if isinstance(decision, Edit):
        tool = running.core.calling.registry.get(approval.tool_name)
        if tool is None:
            raise UsageError(f"the agent has no tool {approval.tool_name!r} any more: reject the call")
        return attrs.evolve(decision, arguments=tool.argument_validator.validate(decision.arguments))
    if isinstance(decision, Approve) and (decision.content is not None or _has_fields(approval)):
        _content(approval, decision.content or {}, "Approve")
    if isinstance(decision, Respond):
        return Respond(_content(approval, decision.content, "Respond"))
    return decision


def _content(approval: Approval, content: object, of: str) -> str:
    try:
        text = to_text(content)
        if approval.form is not None:
            _check_form(approval, content)
    except (ToolError, RecursionError) as error:
        if isinstance(error, InvalidArguments):
            raise
        raise NotSerializable(f"the content of {of}", str(error)) from error
    return text


def _has_fields(approval: Approval) -> bool:
    """Return True if a call runs with what its form asks for, field by field: a yes alone is not enough then."""
    members = (approval.form or {}).get("properties", {})
    return approval.again and any(
        isinstance(member, Mapping) and INPUT in member for member in members.values()
    )


def _check_form(approval: Approval, content: object) -> None:
    checked = compile_schema(approval.form or {}, owner=f"the question of tool {approval.tool_name!r}")
    if reason := checked.reason(content) or form_misfit(approval.form, content):
        raise InvalidArguments(f"the answer does not fit what {approval.tool_name!r} asked for: {reason}")


def _name_of(by: Sender | str | None) -> str:
    return by.name if isinstance(by, Sender) else by or ""


# --- reading along -----------------------------------------------------------------------


@contextmanager
def follow(context: SessionContext, future: TurnFuture) -> Iterator[Message]:
    """Let a future hear what comes of a suspended turn for the block, beside others that wait or follow; gives its message.

    Raises:
        NotSuspended: no turn waits.
    """
    suspension = context.suspension
    if suspension is None:
        raise NotSuspended(context.id)
    suspension.add_guest(future)
    try:
        yield suspension.message
    finally:
        suspension.remove_guest(future)


# --- what waits --------------------------------------------------------------------------


def open_approvals(context: SessionContext) -> tuple[Approval, ...]:
    """Return the open approvals of a session and of the sessions below it.

    Sessions that have none any longer are skipped the next time, so frequent calls cost little.
    """
    seen, rest = [], [context]
    while rest:
        each = rest.pop()
        seen.append(each)
        rest += reversed(each.children.asking.values() if each.children else ())
    for each in reversed(seen):
        if each.parent is not None and each.parent.children is not None and not each.may_ask:
            each.parent.children.asking.pop(each.key, None)
    ledgers = (each.approvals for each in seen if each.approvals is not None)
    return tuple(approval for ledger in ledgers for approval in ledger.open.values())


async def list_approvals(
    running: AgentActor, *, after: str, limit: int, owner: Sender | str | None = None
) -> tuple[Approval, ...]:
    """Return a page of an agent's open approvals; see `Agent.approvals`."""
    at_least_one("limit", limit)
    name = owner.name if isinstance(owner, Sender) else owner
    while session_ids := await _suspended(running, after, limit):
        found = [each for session_id in session_ids for each in await approvals_of(running, session_id)]
        if found := [each for each in found if name is None or each.owner == name]:
            return tuple(found)
        after = session_ids[-1]  # those of this page are another owner's, or were decided since
    return ()


async def _suspended(running: AgentActor, after: str, limit: int) -> list[str]:
    if running.journal is not None:
        return await running.journal.suspended(running.name, after=after, limit=limit)
    await trio.lowlevel.checkpoint()
    found = (key for key, each in running.sessions.items() if each.suspension is not None and key > after)
    return heapq.nsmallest(limit, found)


async def approvals_of(running: AgentActor, session_id: str) -> Sequence[Approval]:
    """Return the approvals that wait in one session, without opening it, wherever it lives."""
    context = running.sessions.get(session_id)
    if (context is not None and not context.has_moved) or running.journal is None:
        ledger = context.approvals if context is not None else None
        owner = "" if context is None else context.works_for
    else:
        records = await running.journal.load(session_id, agent=running.name)
        ledger = restore_ledger(records)
        owner = next((each.owner.name for each in records if isinstance(each, Opened)), "")
    found = () if ledger is None else ledger.open.values()
    # A journal from before this field has no owner in its approvals.
    return tuple(each if each.owner else attrs.evolve(each, owner=owner) for each in found)
