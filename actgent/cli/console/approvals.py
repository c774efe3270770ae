"""Asking the person at the terminal about tool calls. What is shown of them is data: one line, no control characters."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from actgent.agents.session import Session
from actgent.approvals import Approval, Approve, Decision, Edit, Reject, Respond
from actgent.cli.terminal import Terminal, one_line
from actgent.errors import AlreadyDecided, InvalidArguments, NotSerializable, NotSuspended
from actgent.forms import Asked, fields_of

from .filling import fill_form

Receive = Callable[[], Awaitable[str | None]]
"""The next line that the person types; None when there is no more."""
Revise = Callable[[str], Awaitable[str | None]]
"""The same text, as the person has changed it; None where they let it be."""

NOBODY = Reject("nobody is there to ask")
CHOICES = "yes, no, edit or answer? "
FORM_CHOICES = "fill in, yes, no, edit or answer? "
HELP = """\
  yes            run it as it stands
  no REASON      do not run it; the model reads the reason, which may be left out
  edit JSON      run it with these arguments instead; without JSON, change the ones above
  answer TEXT    do not run it; the model reads this text as the tool's result
  fill           answer what it asks for, one after the other, where it asks for something
The first letter will do."""


def to_decision(line: str) -> Decision | None:
    """Read a person's line as a decision; None if it is unclear, which is never a yes."""
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


async def ask(
    session: Session,
    approval: Approval,
    terminal: Terminal,
    receive: Receive | None,
    *,
    revise: Revise | None = None,
) -> bool:
    """Have a person decide over a call; False where nobody does, which rejects it."""
    if receive is None:
        terminal.notice(
            f"the call of {one_line(approval.tool_name)} needs a person's approval, and nobody is there to ask: it does "
            "not run; talk at a terminal to decide"
        )
        return await _answer(session, approval, NOBODY, terminal)
    arguments = json.dumps(approval.arguments, ensure_ascii=False, default=repr)
    terminal.line("The agent asks for your approval:", style="bold")
    terminal.line(
        f"{one_line(approval.question)} {one_line(approval.tool_name)}({one_line(arguments, 2000)})"
    )
    if approval.risk:
        terminal.line(f"Risk: {one_line(approval.risk)}", style="bold")
    asked = fields_of(approval.form)
    while True:
        terminal.write(FORM_CHOICES if asked else CHOICES, style="bold")
        line = await receive()
        if line is None:
            return await _answer(session, approval, NOBODY, terminal)
        decision = to_decision(line)
        if asked and line.strip().lower() in ("f", "fill", "fill in"):
            decision = await _filled(approval, asked, terminal, receive)
        if decision is None and revise is not None and line.strip().lower() in ("e", "edit"):
            decision = _edit(await revise(arguments) or "")
        if decision is None:
            terminal.line(HELP, style="dim")
        elif await _answer(session, approval, decision, terminal):
            return True


async def _filled(
    approval: Approval, asked: Sequence[Asked], terminal: Terminal, receive: Receive
) -> Decision | None:
    """What a person fills in: what the tool runs with, or its result; None where they leave off."""
    values = await fill_form(asked, terminal, receive)
    if values is None:
        return None
    return Approve(content=values) if approval.again else Respond(values)


async def _answer(session: Session, approval: Approval, decision: Decision, terminal: Terminal) -> bool:
    """Return True once it is decided; a decision that does not fit is shown, and can be made again."""
    try:
        await session.answer(approval, decision, by=session.owner)
    except (AlreadyDecided, NotSuspended) as error:  # it has expired meanwhile
        terminal.notice(str(error))
    except (InvalidArguments, NotSerializable) as error:
        terminal.complain(error)
        return False
    return decision is not NOBODY
