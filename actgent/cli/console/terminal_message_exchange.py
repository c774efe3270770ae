"""One exchange of a terminal conversation: send a message, show the deliveries, ask for decisions on tool calls."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.approvals import Approval, Approve, Decision, Edit, Reject, Respond
from actgent.cli.terminal_io import Terminal, one_line
from actgent.errors import ApprovalAlreadyDecided, InvalidArguments, NotSerializable, NotSuspended
from actgent.forms import Asked, fields_of
from actgent.messages import Content, Delivery, Failure

from .conversation_output import DeliveryView, TextView
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
    """Parse a line of user input as a decision on a tool call. Return None if the line is unclear."""
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
    """Ask the user to approve several tool calls together. Return True if all are approved, else False.

    The user is not asked if there is only one call, or if a call asks for form values or has a high risk.
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
    """Ask the user to decide on a tool call, until a decision is accepted.

    Return False if the call was rejected because no user can decide.

    Args:
        session: Session that waits for the decision.
        approval: Open approval of the tool call.
        terminal: Output of the command.
        receive: Reads one line of user input; None rejects the call.
        revise: Opens the call's arguments in the line editor; None disables editing.
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
    """Ask the user for the values of the form that an approval requests.

    Return the decision with the values; None if the user cancels the form.
    """
    values = await fill_form(fields, terminal, receive)
    if values is None:
        return None
    return Approve(content=values) if approval.again else Respond(values)


async def _record_decision(
    session: Session, approval: Approval, decision: Decision, terminal: Terminal
) -> bool:
    """Record the decision in the session. Return False if the session rejects the form values; the user can then try again."""
    try:
        await session.answer(approval, decision, by=session.owner)
    except (ApprovalAlreadyDecided, NotSuspended) as error:  # the approval expired while the user was typing
        terminal.notice(str(error))
    except (InvalidArguments, NotSerializable) as error:
        terminal.report_error(error)
        return False
    return decision is not NO_APPROVER


OWNER = "user"
"""Owner name of sessions that are created in a terminal."""


async def answer(
    agent: Agent,
    session: Session,
    content: Content,
    terminal: Terminal,
    *,
    receive: Receive | None = None,
    revise: Revise | None = None,
    view: DeliveryView | None = None,
) -> bool:
    """Send a message and show its deliveries. Return False if the message failed.

    Args:
        agent: Agent of the session.
        session: Session that receives the message.
        content: Content of the message to send.
        terminal: Output of the command.
        receive: Reads the user's decision on a tool call; None rejects calls that need approval.
        revise: Opens the arguments of a call in the line editor; None disables editing.
        view: Shows the deliveries; None prints text.
    """
    answering = MessageExchange(agent, session, terminal, receive, revise, view or TextView(terminal))
    with session.listening(on_exception=_ignore, on_approval=_ignore):
        async with agent.stream(content, session=session) as deliveries:
            ok = await answering.show_deliveries(deliveries)
        return await answering.decide_all() and ok


def _ignore(_: Failure | Approval) -> None:
    """Ignore a delivery, because the view shows it.

    As a registered handler, this only prevents the log line for unhandled deliveries.
    """


@attrs.frozen
class MessageExchange:
    """A sent message and its deliveries, until the turn ends."""

    agent: Agent
    session: Session
    terminal: Terminal
    receive: Receive | None
    """Reads one line of user input; None if no user is present to approve calls."""
    revise: Revise | None
    """Opens the arguments of a tool call in the line editor; None if editing is not possible."""
    view: DeliveryView
    """View that prints the deliveries."""

    async def show_deliveries(self, deliveries: trio.abc.ReceiveChannel[Delivery]) -> bool:
        """Show deliveries until the channel ends.

        Return False if one of them is a failure, or if no user could decide on an approval of a child agent.
        """
        ok = True
        async for delivery in deliveries:
            self.view.show(delivery, self.session)
            if isinstance(delivery, Failure):
                ok = False
            elif isinstance(delivery, Approval) and delivery.session_id != self.session.id:
                ok = await self._decide(delivery) and ok
        return ok

    async def decide_all(self) -> bool:
        """Ask for decisions on the open approvals of the session, and show the resumed turn, until no approval is open.

        Return False if the message failed or no user could decide.
        """
        ok = True
        while self.session.status == "suspended" and self.session.approvals:
            async with self.agent.follow(self.session) as deliveries:
                approvals = self.session.approvals
                if not await ask_for_all(self.session, approvals, self.terminal, self.receive):
                    for approval in approvals:
                        ok = await self._decide(approval) and ok
                ok = await self.show_deliveries(deliveries) and ok
        return ok

    async def _decide(self, approval: Approval) -> bool:
        """Ask the user to decide on one approval. Return False if it was rejected because no user can decide."""
        return await ask_for_decision(self.session, approval, self.terminal, self.receive, revise=self.revise)
