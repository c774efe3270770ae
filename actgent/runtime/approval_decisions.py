"""Decisions on approvals: validation, journal record, and resuming the turn."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import attrs
import trio

from actgent.approvals import (
    BY_PEOPLE,
    Approval,
    Approve,
    Decision,
    Edit,
    Expire,
    Reject,
    Respond,
    approval_id_of,
    session_of,
)
from actgent.errors import (
    ApprovalAlreadyDecided,
    ConfigurationError,
    InvalidArguments,
    NotSerializable,
    NotSuspended,
    ToolError,
    UsageError,
)
from actgent.forms import INPUT, form_misfit
from actgent.journal.record_types import (
    ApprovalDecisionRecord,
    ResumptionRecord,
    SessionCreatedRecord,
    StateChangeRecord,
    SuspensionRecord,
)
from actgent.limits_and_schedules.durable_timer import TIMER_TOLERANCE_SECONDS
from actgent.limits_and_schedules.id_and_number_validation import at_least_one
from actgent.messages import Message, Sender
from actgent.sessions.pending.approval_ledger import GUARDED, restore_ledger
from actgent.sessions.pending.turn_future import TurnFuture
from actgent.sessions.session_context import SessionContext
from actgent.sessions.session_record_writer import unless_written
from actgent.support.untrusted_text_delimiters import join_origins
from actgent.tools import schemas
from actgent.tools.outputs.result_text import to_text

from .agent_actor import AgentActor
from .waits_between_sessions import running_session, sources_of_caller


async def decide(
    running: AgentActor,
    context: SessionContext,
    asked: Approval | str,
    decision: Decision,
    *,
    by: Sender | str | None = None,
) -> None:
    """Decide an approval and record the decision durably. Resume the turn after its last open approval is decided.

    Args:
        running: Agent of the session.
        context: Session that has the approval, or one of its parent sessions.
        asked: The approval to decide, or its id.
        decision: `Approve`, `Reject`, `Edit` or `Respond`.
        by: Name of the user who decides; None if it is unknown.
    """
    running.lifecycle.check_open(context)
    running.lifecycle.eviction.check_decided_here(context)
    if not isinstance(decision, BY_PEOPLE):
        meant = f"{decision.__name__}()" if isinstance(decision, type) else "Approve() or Reject(reason)"
        raise ConfigurationError(
            f"a decision must be Approve, Reject, Edit or Respond, not {decision!r:.200}: write {meant}"
        )
    ledger = context.ledger()
    await ledger.wait_written(approval_id_of(asked))
    running.lifecycle.check_open(context)
    approval = ledger.find(asked, context.id)
    decision = _validate_decision(running, approval, decision)
    _add_sources(context)
    with running.lifecycle.kept(context):
        await _write(running, context, approval, decision, by=_name_of(by))


def _add_sources(context: SessionContext) -> None:
    """Add the untrusted sources of the calling turn or request to the label of a session whose approval is decided.

    The arguments, content or reason of the decision may repeat text of these sources. If the calling turn is a turn of the
    session itself, nothing is added.
    """
    sources = "" if running_session() is context else sources_of_caller()
    if sources:
        context.conversation.add_via(sources)
        if context.log is not None:
            context.log.add(StateChangeRecord(changes={}, via=sources))


def find_session_of_approval(context: SessionContext, asked: Approval | str) -> SessionContext:
    """Return the session that requested an approval: `context` or one of its descendants in memory.

    If none of them has the approval, return the session that the approval id names, or `context` if that session is not in
    memory. A lookup of the approval there raises the error for the caller.
    """
    known = approval_id_of(asked)
    session_id = session_of(known)
    below = [context]
    for each in below:
        if each.id == session_id and each.approvals is not None and each.approvals.knows(known):
            return each
        below += (each.children or {}).values()
    return next((each for each in below if each.id == session_id), context)


async def expire(running: AgentActor, context: SessionContext) -> None:
    """Reject those undecided approvals of a session whose own deadline has passed."""
    running.lifecycle.check_open(context)
    with running.lifecycle.kept(context):
        for approval in context.ledger().expired(running.clock.steady() + TIMER_TOLERANCE_SECONDS):
            if approval in context.ledger().undecided:  # False if an approver answered in the meantime
                with suppress(ApprovalAlreadyDecided):  # the approval was withdrawn in the meantime
                    await _write(running, context, approval, Expire(), by="")


async def _write(
    running: AgentActor, context: SessionContext, approval: Approval, decision: Decision, *, by: str
) -> None:
    """Record a decision durably in the journal. Resume the turn after its last open approval is decided.

    `by` is the name of the user who decided; empty if it is unknown, or if the approval expired.
    """
    ledger = context.ledger()
    await trio.lowlevel.checkpoint_if_cancelled()
    ledger.begin(approval)
    context.update_approval_timer()
    decided = ApprovalDecisionRecord(
        approval_id=approval.id, decision=decision, by=by, at=running.clock.now()
    )
    try:
        await _commit(context, decided)
    except (
        trio.Cancelled
    ):  # the decision may be stored, so it is applied, and recorded again with the next step
        context.record_approval(decided)
        _finish(running, context, approval, decision)
        raise
    except BaseException:
        ledger.undo(approval)
        context.update_approval_timer()
        _note_suspended(context)
        context.wake_idle_waiters()
        running.runner.withdraw_during_suspension(
            context
        )  # callers that joined since: the turn waits for an approver again
        raise
    ledger.check_not_withdrawn(approval)
    ledger.apply(decided)
    _finish(running, context, approval, decision)
    await trio.lowlevel.cancel_shielded_checkpoint()


async def _commit(context: SessionContext, decided: ApprovalDecisionRecord) -> None:
    if context.log is None:
        return
    resumed = () if context.ledger().undecided else (ResumptionRecord(ids=(decided.approval_id,)),)
    with unless_written():
        await context.log.write(decided, *resumed)
    for record in resumed:
        context.ledger().apply(record)


def _finish(running: AgentActor, context: SessionContext, approval: Approval, decision: Decision) -> None:
    """Publish the event of a recorded decision. Resume the turn after its last open approval is decided."""
    running.core.observer.decide(context, approval, decision)
    if not context.ledger().has_open:
        running.runner.resume(context)  # also records that no approval is pending, if needed
        if context.log is not None:
            context.log.flush_soon()
    else:
        _note_suspended(context)


def _note_suspended(context: SessionContext) -> None:
    """Record that the turn of a session is still suspended, if the last record in the journal says that the turn has resumed.

    The journal says this if several approvals are decided at the same time and only some of the decisions were written.
    """
    ledger, ids = context.ledger(), tuple(each.id for each in context.ledger().undecided)
    if ids and context.suspension is not None and not ledger.is_suspended:
        context.record_approval(SuspensionRecord(message_id=context.suspension.message.id, ids=ids))
        if context.log is not None:
            context.log.flush_soon()


def _validate_decision(running: AgentActor, approval: Approval, decision: Decision) -> Decision:
    """Validate the arguments or content of a decision, and return the decision with the converted values.

    Raises:
        UsageError: The kind of decision does not suit the approval, or the tool no longer exists.
    """
    if approval.for_caller and not isinstance(decision, Respond | Reject):
        raise UsageError(f"the caller runs the tool {approval.tool_name!r}: decide with Respond or Reject")
    if isinstance(decision, Edit) and approval.call_id.startswith(GUARDED):
        raise UsageError(
            f"the guard {approval.tool_name!r} asks about a message and not about a tool call, so Edit is not possible: use "
            "Approve, Reject or Respond"
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
    """Return the content of a decision as text, after checking it against the form of the approval.

    `of` is the name of the decision class for error texts.
    """
    try:
        text = to_text(content)
        if approval.form is not None:
            _check_form(approval, content)
    except (ToolError, RecursionError) as error:
        if isinstance(error, InvalidArguments):
            raise
        raise NotSerializable(f"the content of the decision {of}(...)", str(error)) from error
    return text


def _has_fields(approval: Approval) -> bool:
    """Return True if the approval has a form with fields. `Approve` must then contain the values of the fields."""
    members = (approval.form or {}).get("properties", {})
    return approval.again and any(
        isinstance(member, Mapping) and INPUT in member for member in members.values()
    )


def _check_form(approval: Approval, content: object) -> None:
    checked = schemas.compile_schema(
        approval.form or {}, owner=f"the question of tool {approval.tool_name!r}"
    )
    if reason := checked.reason(content) or form_misfit(approval.form, content):
        raise InvalidArguments(
            f"the answer does not match the form of the tool {approval.tool_name!r}: {reason}"
        )


def _name_of(by: Sender | str | None) -> str:
    return by.name if isinstance(by, Sender) else by or ""


# --- reading along -----------------------------------------------------------------------


@contextmanager
def follow(context: SessionContext, future: TurnFuture) -> Iterator[Message]:
    """Let `future` receive the outcome of a session's suspended turn during the block. Yield the turn's message.

    Raises:
        NotSuspended: No turn of the session is suspended.
    """
    suspension = context.suspension
    if suspension is None:
        raise NotSuspended(context.id)
    suspension.add_joined_future(future)
    try:
        yield suspension.message
    finally:
        suspension.remove_joined_future(future)


# --- pending approvals -----------------------------------------------------------------------


def open_approvals(context: SessionContext) -> tuple[Approval, ...]:
    """Return the open approvals of a session and of its descendants in memory, except tool calls that the caller executes."""
    ledgers = (each.approvals for each in sessions_with_approvals(context) if each.approvals is not None)
    return tuple(each for ledger in ledgers for each in ledger.open.values() if not each.for_caller)


def sessions_with_approvals(context: SessionContext) -> Sequence[SessionContext]:
    """Return a session and those of its descendants in memory that may have open approvals.

    A descendant that turns out to have no open approval is skipped by later calls until it requests an approval.
    """
    seen, rest = [], [context]
    while rest:
        each = rest.pop()
        seen.append(each)
        rest += reversed(each.children.asking.values() if each.children else ())
    for each in reversed(seen):
        if each.parent is not None and each.parent.children is not None and not each.may_have_approvals:
            each.parent.children.asking.pop(each.key, None)
    return seen


def sources_of_approvals(context: SessionContext) -> str:
    """Return the untrusted sources that a session's open approvals add to those of its conversation.

    These are the sources of tool results that were withheld from the model, and of child sessions with open approvals.
    """
    sources = context.withheld_sources
    for each in sessions_with_approvals(context)[1:]:
        sources = join_origins(sources, join_origins(each.conversation.sources, each.withheld_sources))
    return sources


def caller_calls(context: SessionContext) -> tuple[Approval, ...]:
    """Return the open calls of tools that the sender of the message must run itself; see `Session.caller_calls`."""
    return tuple(each for each in context.ledger().open.values() if each.for_caller)


async def list_approvals(
    running: AgentActor, *, after: str, limit: int, owner: Sender | str | None = None
) -> tuple[Approval, ...]:
    """Return a page of an agent's open approvals, from sessions in memory and in the journal.

    Args:
        running: Agent whose approvals are listed.
        after: Session id of the last approval on the previous page; empty starts at the first page.
        limit: Maximum number of sessions on the page.
        owner: Return only approvals of this owner's sessions; None returns those of all owners.
    """
    at_least_one("limit", limit)
    name = owner.name if isinstance(owner, Sender) else owner
    while session_ids := await _list_suspended_sessions(running, after, limit):
        found = [each for session_id in session_ids for each in await approvals_of(running, session_id)]
        if found := [each for each in found if name is None or each.owner == name]:
            return tuple(found)
        after = session_ids[-1]  # the page has only approvals of other owners, or decided ones
    return ()


async def _list_suspended_sessions(running: AgentActor, after: str, limit: int) -> list[str]:
    if running.journal is not None:
        return await running.journal.suspended(running.name, after=after, limit=limit)
    await trio.lowlevel.checkpoint()
    found = (key for key, each in running.sessions.items() if each.suspension is not None and key > after)
    return heapq.nsmallest(limit, found)


async def approvals_of(running: AgentActor, session_id: str) -> Sequence[Approval]:
    """Return a session's open approvals from memory or from the journal, without calls that the caller executes itself."""
    context = running.sessions.get(session_id)
    if (context is not None and not context.has_moved) or running.journal is None:
        ledger = context.approvals if context is not None else None
        owner = "" if context is None else context.quota_owner
    else:
        records = await running.journal.load(session_id, agent=running.name)
        ledger = restore_ledger(records)
        owner = next((each.owner.name for each in records if isinstance(each, SessionCreatedRecord)), "")
    found = () if ledger is None else [each for each in ledger.open.values() if not each.for_caller]
    # A journal from before this field has no owner in its approvals.
    return tuple(each if each.owner else attrs.evolve(each, owner=owner) for each in found)
