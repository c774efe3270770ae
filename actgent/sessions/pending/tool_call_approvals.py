"""Approvals of tool calls: created from the question of a tool, and converted to permissions when decided."""

from collections.abc import Iterable, Mapping

import attrs

from actgent.approvals import Approval, Edit, Grant, approval_id
from actgent.errors import ApprovalRequired
from actgent.forms import to_form
from actgent.messages import ToolCall
from actgent.tools.tools_run_by_caller import AskCaller

from .approval_ledger import ApprovalLedger


def approval_for(
    call: ToolCall,
    question: ApprovalRequired,
    *,
    session_id: str,
    agent: str,
    owner: str,
    now: float,
    timeout: float,
    is_former: bool = False,
) -> Approval:
    """Create the approval request of a tool call from the question for the approver.

    Args:
        call: Tool call that waits for the approval.
        question: Question of the tool or of the approval rule.
        session_id: Id of the session of the call.
        agent: Name of the session's agent.
        owner: Name of the owner who is responsible for the session.
        now: Current Unix time in seconds.
        timeout: Default seconds until the approval expires.
        is_former: True for sessions of the old journal format, whose approval ids have another form.
    """
    arguments = call.arguments if not isinstance(call.arguments, str) else {}
    words = question.question or f"May the tool {call.name!r} run?"
    return Approval(
        id=approval_id(session_id, call.id, call.name, arguments, words, agent="" if is_former else agent),
        session_id=session_id,
        agent=agent,
        owner=owner,
        call_id=call.id,
        tool_name=call.name,
        arguments=arguments,
        question=words,
        form=to_form(question.form),  # type: ignore[arg-type] # validated when the tool raised it
        risk=question.risk,
        state=question.state,
        again=question.again,
        created_at=now,
        deadline=now + (timeout if question.timeout is None else question.timeout),
        for_caller=isinstance(question, AskCaller),
        sources=question.sources,
    )


def grants_of(ledger: ApprovalLedger, calls: Iterable[ToolCall]) -> Mapping[str, Grant]:
    """Return, by call id, the decisions of approvers that allow tool calls to run. Calls without such a decision are omitted."""
    verdicts = [(call.id, ledger.verdict(call.id)) for call in calls]
    return {
        call_id: verdict.grant
        for call_id, verdict in verdicts
        if verdict is not None and verdict.grant is not None
    }


def edited(call: ToolCall, grants: Mapping[str, Grant]) -> ToolCall:
    """Return a tool call with the arguments of the `Edit` decision in `grants`.

    Without such a decision, return the call unchanged.
    """
    grant = grants.get(call.id)
    return attrs.evolve(call, arguments=grant.arguments) if isinstance(grant, Edit) else call
