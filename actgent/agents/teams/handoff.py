"""Handing a conversation over to another agent, which answers the user until it gives it back.

The user's session stays with the first agent: its record has all that is said, and its handlers hear it. What the user
says goes on to a child session of the other agent, which begins with what was said before. Who has the session stands
in its state, and what goes on bears the id of the user's message: a turn that a crash cut finds what was said already.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import attrs
import trio

from actgent.agents.session import Session, context_of, face_of, services_of
from actgent.errors import AlreadyAnswered, AnswerError, ConfigurationError, SessionClosed, ToolError
from actgent.journal.records import Said
from actgent.llm.base import Answer
from actgent.messages import NO_USAGE, ChatMessage, Delivery, Message, Reply, Role, Sender, Text, to_parts
from actgent.protocols.base import Profile, Say, View
from actgent.runtime.runtime import Startable
from actgent.runtime.sessions.opener import SessionOpener
from actgent.runtime.starting import wait_started
from actgent.sessions.context import SessionContext, host_of
from actgent.sessions.handlers import HandlerKind
from actgent.sessions.turn import Turn
from actgent.state.handover import given_back, handed, handover_in
from actgent.support.outside_text import fence
from actgent.tools.base import Effect, Tool, ToolContext
from actgent.turns.dispatcher import Dispatcher, to_deliveries
from actgent.turns.guards import Guards

from .agent_tools import Run

_RELAYED: Sequence[HandlerKind] = ("event", "tool_result", "tool_progress", "routing", "token")
HISTORY = 100
"""The newest messages of a session from which another agent reads what was said before."""


class Receiver(Startable, Protocol):
    """An agent that sessions are handed over to: any `Agent`."""

    profile: Profile

    @property
    def run(self) -> Run:
        """Say something to it."""
        ...


def handoff(
    to: Receiver, *, name: str | None = None, description: str | None = None, history: bool = True
) -> Tool:
    """A tool by which a model hands its conversation over to another agent, which is started with its own.

    From then on, the rest of the turn included, `to` answers what the user says: in a child session, which begins with
    what users and agents have said, unless `history` is False. The session stays as it is for its user: all answers
    stand in its record and reach its handlers, with tokens and tool results. `Session.hand_back` gives it back, and so
    does the model of `to` if that has the tool `hand_back()`. With a journal all of it survives the process.

    Messages that come from no user, e.g. results of delegated tasks, go to the first agent all the same.

    Raises:
        ConfigurationError: `to` is no agent.
    """
    profile = getattr(to, "profile", None)
    if not isinstance(profile, Profile) or not callable(getattr(to, "run", None)):
        raise ConfigurationError(f"handoff(to=) takes an agent, e.g. handoff(to=billing), not {to!r:.200}")
    default = profile.goal or profile.capabilities or profile.role
    return HandoffTool(
        to,
        name or f"handoff_to_{re.sub(r'[^a-zA-Z0-9_-]+', '_', to.name)}"[:64],
        description
        or f"Hand the conversation over to {to.name}, who answers from now on: {default or to.name}",
        has_history=history,
    )


def hand_back(name: str = "hand_back", description: str | None = None) -> Tool:
    """A tool by which a model gives a conversation back to the agent that handed it over; what it says then is still heard."""
    return HandBackTool(
        name, description or "Give the conversation back to the agent that handed it over to you."
    )


class HandoffTool(Tool):
    """Hands the session of a call over."""

    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "note": {"type": "string", "description": "What the other one has to know, if anything."}
        },
        "additionalProperties": False,
    }
    effect: Effect = "idempotent"

    def __init__(self, agent: Receiver, name: str, description: str, *, has_history: bool) -> None:
        self.agent = agent
        self.name = name
        self.description = description
        self.has_history = has_history

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        session = _session_of(context)
        action = partial(handed, agent=self.agent.name, note=arguments.get("note", ""))
        session.state.dispatch(action, once=f"handoff/{context.effect_key}")
        await trio.lowlevel.checkpoint()
        return f"{self.agent.name} answers from now on."


class HandBackTool(Tool):
    """Gives a session back to the agent that handed it over."""

    parameters: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    effect: Effect = "idempotent"

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        self.description = description

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        child = context_of(_session_of(context))
        parent = child.parent
        current = None if parent is None else handover_in(parent.seen_state)
        if parent is None or current is None or not child.id.endswith(f"/{current.child}"):
            raise ToolError("nobody handed this conversation over to you")
        if current.agent:
            parent.state.dispatch(given_back)
            if parent.log is not None:
                await parent.log.flush()
        await trio.lowlevel.checkpoint()
        return f"{parent.agent} answers the next message; say your last words."


def receivers_among(tools: Iterable[Tool], dispatcher: Dispatcher, guards: Guards) -> "AgentReceivers | None":
    """Return the agents that sessions may be handed over to by these tools; None if there are none."""
    handoffs = {tool.agent.name: tool for tool in tools if isinstance(tool, HandoffTool)}
    return AgentReceivers(handoffs, dispatcher, guards) if handoffs else None


@attrs.frozen(eq=False)
class AgentReceivers:
    """The agents that sessions of one agent may be handed over to; see `turns.handovers.Receivers`."""

    tools: Mapping[str, HandoffTool]
    """By the names of their agents."""
    dispatcher: Dispatcher
    guards: Guards

    def are_due(self, context: SessionContext, turn: Turn) -> bool:
        """See `Receivers`; what no user said is not theirs."""
        return turn.message.sender.kind == "user" and handover_in(context.seen_state).agent in self.tools

    async def answer(self, context: SessionContext, turn: Turn) -> Reply | None:
        """See `Receivers`."""
        handover = handover_in(context.seen_state)
        if (tool := self.tools.get(handover.agent)) is None:
            return None
        opener = await _opener_of(context, handover.agent)
        former = await _said_before(context, turn) if tool.has_history else ()
        try:
            child = await opener.ensure_child(context, handover.child, history=former)
        except SessionClosed:
            context.state.dispatch(given_back)
            return None
        reply = await self._ask(tool, child, context, turn, note=handover.note)
        self._write(context, turn, reply, tool.agent.name)
        if not handover_in(context.seen_state).agent:
            await host_of(child).close(child)
        return reply

    async def _ask(
        self, tool: HandoffTool, child: SessionContext, context: SessionContext, turn: Turn, *, note: str
    ) -> Reply:
        """Say to the other agent what the user said, once for each message; what comes of it is heard here, too."""
        said = [part for each in (*turn.joined, turn.message) for part in each.parts]
        prompt, origin = None, context.conversation.origin
        if note and origin:  # the note may repeat text from outside, so it stands between marks
            prompt = f"You took this conversation over from {context.agent}."
            said = [Text(f"Note of agent {context.agent}:\n{fence(note, origin)}"), *said]
        elif note:
            prompt = f"You took this conversation over from {context.agent}. {note}"
        child.conversation.add_origin(origin)
        with self._relayed(child, context, turn):
            try:
                return await tool.agent.run(
                    said,
                    session=face_of(child),
                    sender=turn.message.sender,
                    priority=turn.message.priority,
                    message_id=turn.message.id,
                    prompt=prompt,
                )
            except AlreadyAnswered:
                if (known := await _known_reply(child, turn.message.id)) is None:
                    raise
                return known

    def _relayed(
        self, child: SessionContext, context: SessionContext, turn: Turn
    ) -> AbstractContextManager[object]:
        """Have what the child session's handlers hear told to those of this one, but for its replies and failures."""
        is_read = bool(turn.listeners) and turn.is_heard()
        if not (is_read or context.handlers.any_of(*_RELAYED)):
            return nullcontext()

        async def relay(delivery: Delivery) -> None:
            await self.dispatcher.dispatch(context, delivery)

        is_streamed = (is_read or context.handlers.any_of("token")) and not self.guards.answers
        return face_of(child).listening(
            on_event=relay,
            on_tool_result=relay,
            on_tool_progress=relay,
            on_routing=relay,
            on_token=relay if is_streamed else None,
        )

    def _write(self, context: SessionContext, turn: Turn, reply: Reply, agent: str) -> None:
        """Write the answer into the record, unless it stands there since before a restart."""
        last = context.conversation.last_message
        if last is not None and last.id == reply.id:
            return
        said = Message(
            id=reply.id,
            session_id=context.id,
            sender=Sender(agent, "agent"),
            parts=to_parts(reply.text),
            correlation_id=turn.message.id,
            causation_id=turn.message.id,
            origin=reply.origin,
        )
        turn.answer.id = said.id
        context.conversation.append(said)
        if context.log is not None:
            context.log.add(Said(message=said, stop="end", calls=turn.progress.calls))


async def _opener_of(context: SessionContext, agent: str) -> SessionOpener:
    """Return what opens the sessions of another agent.

    Raises:
        NotRunning: no agent of this name runs in the runtime.
    """
    agents = services_of(face_of(context)).delegation.agents
    if agent not in agents:
        await wait_started(agent)
    return agents.opener(agent)


async def _said_before(context: SessionContext, turn: Turn) -> Sequence[ChatMessage]:
    """Return what users and agents said before the turn, in words and pictures; no calls and results."""
    page = await context.conversation.read(limit=HISTORY)
    now = {message.id for message in (*turn.joined, turn.message)}
    former = []
    for message in page.messages:
        if message.id in now:
            break
        role: Role = "user" if message.sender.kind == "user" else "assistant"
        parts = message.parts if role == "user" else tuple(p for p in message.parts if isinstance(p, Text))
        if message.sender.kind not in ("system", "tool") and parts and not message.is_note:
            former.append(ChatMessage(role, parts))
    return former


async def _known_reply(child: SessionContext, message_id: str) -> Reply | None:
    """Return what a message was answered with before a restart, read from the record; None where nothing was."""
    page = await child.conversation.read(limit=HISTORY)
    asked = next((each for each in page.messages if each.id == message_id), None)
    answers = [
        each
        for each in page.messages
        if each.correlation_id == message_id and each.sender.kind == "assistant" and not each.tool_calls
    ]
    if asked is None or not answers:
        return None
    running = services_of(face_of(child)).running
    view = View(message=asked, record=page.messages, state=child.seen_state, profile=running.core.profile)
    protocol = running.runner.turn_lifecycle.options.protocol
    try:
        outcomes = [
            each for each in protocol.read(Answer(parts=answers[-1].parts), view) if isinstance(each, Say)
        ]
    except AnswerError:
        outcomes = []
    replies = to_deliveries(outcomes, answers[-1].id, NO_USAGE)
    return next(
        (each for each in replies if isinstance(each, Reply)), Reply(id=answers[-1].id, text=answers[-1].text)
    )


def _session_of(context: ToolContext) -> Session:
    if not isinstance(context.session, Session):
        raise ToolError("this tool only works in a session of an agent")
    return context.session
