"""One exchange of a terminal conversation: send a message, show the deliveries, ask for decisions on tool calls."""

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.approvals import Approval
from actgent.cli.terminal_io import Terminal
from actgent.messages import Content, Delivery, Failure

from .approvals import Revise, ask_for_all, ask_for_decision
from .conversation_output import DeliveryView, TextView
from .form_input import Receive

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
        agent: The agent of the session.
        session: The session that receives the message.
        content: The message.
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
    """A sent message and its deliveries, up to the end of the turn."""

    agent: Agent
    session: Session
    terminal: Terminal
    receive: Receive | None
    """Reads one line of user input; None if no approver is present."""
    revise: Revise | None
    """Opens the arguments of a tool call in the line editor; None if editing is not possible."""
    view: DeliveryView
    """Shows the deliveries."""

    async def show_deliveries(self, deliveries: trio.abc.ReceiveChannel[Delivery]) -> bool:
        """Show deliveries until the channel ends. Return False if one is a failure, or a child agent's approval got no decision."""
        ok = True
        async for delivery in deliveries:
            self.view.show(delivery, self.session)
            if isinstance(delivery, Failure):
                ok = False
            elif isinstance(delivery, Approval) and delivery.session_id != self.session.id:
                ok = await self._decide(delivery) and ok
        return ok

    async def decide_all(self) -> bool:
        """Ask for decisions on all pending approvals of the session, and show the resumed turn, until none is pending."""
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
        """Ask the user to decide on one approval.

        Return False if it was rejected because no user can decide.
        """
        return await ask_for_decision(self.session, approval, self.terminal, self.receive, revise=self.revise)
