"""A message on its way to its answer: shown as it grows, with a person to decide what needs one."""

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.approvals import Approval
from actgent.cli.console.approvals import Receive, Revise, ask
from actgent.cli.terminal import Terminal
from actgent.messages import Delivery, Failure
from actgent.sessions.incoming import Content

from .views import DeliveryView, TextView

OWNER = "user"
"""Who talks at a terminal."""


async def answer(
    agent: Agent,
    session: Session,
    said: Content,
    terminal: Terminal,
    *,
    receive: Receive | None = None,
    revise: Revise | None = None,
    view: DeliveryView | None = None,
) -> bool:
    """Say something and show what comes of it; False if that was a failure.

    A person who can `receive` decides over the tool calls that need one; without, they are rejected.
    """
    answering = Answering(agent, session, terminal, receive, revise, view or TextView(terminal))
    with session.listening(on_exception=_heard, on_approval=_heard):
        async with agent.stream(said, session=session) as deliveries:
            ok = await answering.read(deliveries)
        return await answering.decide_all() and ok


def _heard(_: Failure | Approval) -> None:
    """Nothing more: the view shows it, so the log need not."""


@attrs.frozen
class Answering:
    """A message of one session on its way to its answer."""

    agent: Agent
    session: Session
    terminal: Terminal
    receive: Receive | None
    revise: Revise | None
    view: DeliveryView

    async def read(self, deliveries: trio.abc.ReceiveChannel[Delivery]) -> bool:
        """Show what comes; False if it is a failure, or nobody decided what the agent's own agents asked."""
        ok = True
        async for delivery in deliveries:
            self.view.show(delivery, self.session)
            if isinstance(delivery, Failure):
                ok = False
            elif isinstance(delivery, Approval) and delivery.session_id != self.session.id:
                ok = await self._ask(delivery) and ok
        return ok

    async def decide_all(self) -> bool:
        """Have a person decide whatever the session waits for, and show what comes of it."""
        ok = True
        while self.session.status == "suspended" and self.session.approvals:
            async with self.agent.follow(self.session) as deliveries:
                for approval in self.session.approvals:
                    ok = await self._ask(approval) and ok
                ok = await self.read(deliveries) and ok
        return ok

    async def _ask(self, approval: Approval) -> bool:
        return await ask(self.session, approval, self.terminal, self.receive, revise=self.revise)
