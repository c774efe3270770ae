"""Calls that need a person: what is asked of them, and with which grant they run."""

from collections.abc import Iterable, Mapping

import attrs

from actgent.approvals import Approval, Edit, Grant, approval_id
from actgent.errors import AskPerson
from actgent.forms import to_form
from actgent.messages import ToolCall

from .approval_ledger import ApprovalLedger


def approval_for(
    call: ToolCall,
    question: AskPerson,
    *,
    session_id: str,
    agent: str,
    owner: str,
    now: float,
    timeout: float,
    is_former: bool = False,
) -> Approval:
    """Make the approval that a person is asked for."""
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
        form=to_form(question.form),  # type: ignore[arg-type] # it is checked where the tool asks
        risk=question.risk,
        again=question.again,
        created_at=now,
        deadline=now + (timeout if question.timeout is None else question.timeout),
    )


def question_of(approval: Approval) -> AskPerson:
    """Return the question that an approval was made from."""
    return AskPerson(approval.question, form=approval.form, again=approval.again, risk=approval.risk)


def grants_of(ledger: ApprovalLedger, calls: Iterable[ToolCall]) -> Mapping[str, Grant]:
    """Return the decisions that let calls run, by the ids of the calls."""
    verdicts = [(call.id, ledger.verdict(call.id)) for call in calls]
    return {
        call_id: verdict.grant
        for call_id, verdict in verdicts
        if verdict is not None and verdict.grant is not None
    }


def edited(call: ToolCall, grants: Mapping[str, Grant]) -> ToolCall:
    """Return the call with the arguments that a person gave it."""
    grant = grants.get(call.id)
    return attrs.evolve(call, arguments=grant.arguments) if isinstance(grant, Edit) else call
