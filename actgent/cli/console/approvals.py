"""Approval of tool calls in the terminal. Names and arguments of calls come from a model, so they are escaped to one line."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from actgent.agents.session import Session
from actgent.approvals import Approval, Approve, Decision, Edit, Reject, Respond
from actgent.cli.terminal_io import Terminal, one_line
from actgent.errors import ApprovalAlreadyDecided, InvalidArguments, NotSerializable, NotSuspended
from actgent.forms import Asked, fields_of

from .form_input import Receive, fill_form

Revise = Callable[[str], Awaitable[str | None]]
"""Function with which the user edits a text in the line editor; returns None if the user cancels."""

NO_APPROVER = Reject("no user is available to approve the call")
"""Decision on a call if no user can be asked."""
CHOICES = "yes, no, edit or answer? "
"""Prompt for a decision on a call."""
FORM_CHOICES = "fill in, yes, no, edit or answer? "
"""Prompt for a decision on a call that also asks for form values."""
CHOICES_FOR_ALL = "yes to all, or one by one? "
"""Prompt for one decision on all calls of an answer."""
_SERIOUS_RISKS = ("high", "critical")
"""Risks that need a decision for each call."""
HELP = """\
  yes            run the call as shown
  no REASON      do not run the call; the model receives the reason (optional)
  edit JSON      run the call with these arguments; without JSON, edit the arguments above
  answer TEXT    do not run the call; the model receives TEXT as the tool's result
  fill           fill in the requested values one by one, if the call requests any
The first letter is enough."""
"""Explanation of the choices, shown after an unclear line."""


def parse_decision(line: str) -> Decision | None:
    """Parse a line of user input as a decision. Return None if the line is unclear, so that only `yes` approves a call."""
    word, _, rest = line.strip().partition(" ")
    match word.lower():
        case "y" | "yes" if not rest.strip():
            return Approve()
        case "n" | "no":
            return Reject(rest.strip())
        case "a" | "answer" if rest.strip():
            return Respond(rest.strip())
        case "e" | "edit":
            return _edit(rest)
    return None


def _edit(text: str) -> Edit | None:
    try:
        arguments: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return Edit(arguments) if isinstance(arguments, dict) else None


async def ask_for_all(
    session: Session, approvals: Sequence[Approval], terminal: Terminal, receive: Receive | None
) -> bool:
    """Ask the user for one decision on several tool calls. Return False if each call needs its own decision.

    Each call needs its own decision if one of them asks for form values or has a high risk, if there is one call only, or
    if the user does not approve all.
    """
    if receive is None or len(approvals) == 1 or not all(map(_is_plain, approvals)):
        return False
    terminal.line(f"The agent asks for your approval of {len(approvals)} calls:", style="bold")
    for approval in approvals:
        _show_call(approval, terminal)
    terminal.write(CHOICES_FOR_ALL, style="bold")
    line = await receive()
    if line is None or line.strip().lower() not in ("y", "yes", "yes to all"):
        return False
    for approval in approvals:
        await _record_decision(session, approval, Approve(), terminal)
    return True


def _is_plain(approval: Approval) -> bool:
    return not fields_of(approval.form) and approval.again and approval.risk not in _SERIOUS_RISKS


def _show_call(approval: Approval, terminal: Terminal) -> None:
    arguments = one_line(_arguments_text(approval), 2000)
    terminal.line(f"{one_line(approval.question)} {one_line(approval.tool_name)}({arguments})")


def _arguments_text(approval: Approval) -> str:
    return json.dumps(approval.arguments, ensure_ascii=False, default=repr)


async def ask_for_decision(
    session: Session,
    approval: Approval,
    terminal: Terminal,
    receive: Receive | None,
    *,
    revise: Revise | None = None,
) -> bool:
    """Ask the user to decide on a tool call, until a decision is accepted. Return False if the call is rejected without a user.

    Args:
        session: The suspended session.
        approval: The pending tool call.
        terminal: Output of the command.
        receive: Reads one line of input; None rejects the call.
        revise: Opens the arguments in the line editor; None disables editing.
    """
    if receive is None:
        terminal.notice(
            f"the call of {one_line(approval.tool_name)} needs approval and was rejected, because input is not a terminal: "
            "run the command in a terminal to decide"
        )
        return await _record_decision(session, approval, NO_APPROVER, terminal)
    arguments = _arguments_text(approval)
    terminal.line("The agent asks for your approval:", style="bold")
    _show_call(approval, terminal)
    if approval.risk:
        terminal.line(f"Risk: {one_line(approval.risk)}", style="bold")
    fields = fields_of(approval.form)
    while True:
        terminal.write(FORM_CHOICES if fields else CHOICES, style="bold")
        line = await receive()
        if line is None:
            return await _record_decision(session, approval, NO_APPROVER, terminal)
        decision = parse_decision(line)
        if fields and line.strip().lower() in ("f", "fill", "fill in"):
            decision = await _decide_by_form(approval, fields, terminal, receive)
        if decision is None and revise is not None and line.strip().lower() in ("e", "edit"):
            decision = _edit(await revise(arguments) or "")
        if decision is None:
            terminal.line(HELP, style="dim")
        elif await _record_decision(session, approval, decision, terminal):
            return True


async def _decide_by_form(
    approval: Approval, fields: Sequence[Asked], terminal: Terminal, receive: Receive
) -> Decision | None:
    """Ask for the values of a form that decides a tool call.

    Return the decision, or None if the user cancels the form.
    """
    values = await fill_form(fields, terminal, receive)
    if values is None:
        return None
    return Approve(content=values) if approval.again else Respond(values)


async def _record_decision(
    session: Session, approval: Approval, decision: Decision, terminal: Terminal
) -> bool:
    """Record the decision in the session. Return False if the session rejects its values, so that the user can try again."""
    try:
        await session.answer(approval, decision, by=session.owner)
    except (ApprovalAlreadyDecided, NotSuspended) as error:  # the approval expired while the user was typing
        terminal.notice(str(error))
    except (InvalidArguments, NotSerializable) as error:
        terminal.complain(error)
        return False
    return decision is not NO_APPROVER
