"""Handoff: another agent answers the user of a session until it hands the conversation back.

The user's session stays with the first agent, with all messages in its history and all deliveries to its handlers. Messages of
the user are forwarded to a child session of the other agent, which starts with the earlier conversation. The state of the
session has the name of the current agent. Forwarded messages keep the id of the user's message, so a turn that resumes after a
crash finds an existing answer.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import attrs
import trio

from actgent.agents.session import Session, context_of, services_of, session_of_context
from actgent.errors import (
    AnswerError,
    ConfigurationError,
    DuplicateMessage,
    NotRunning,
    SessionClosed,
    Stopped,
    ToolError,
)
from actgent.journal.record_types import AgentMessageRecord
from actgent.llm.model_interface import ModelResponse
from actgent.messages import NO_USAGE, ChatMessage, Delivery, Message, Reply, Role, Sender, Text, to_parts
from actgent.protocols.protocol_interface import Profile, SendReply, TurnView
from actgent.runtime.agent_directory import Directory
from actgent.runtime.resumption_during_startup import wait_started
from actgent.runtime.runtime import Startable
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.sessions.session_context import SessionContext, Turn, host_of
from actgent.sessions.session_handlers import HandlerKind
from actgent.state.handoff_state import given_back, handed, handoff_in
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.untrusted_text_delimiters import fence
from actgent.tools.tool_interface import Effect, Tool, ToolContext
from actgent.turns.message_and_answer_guards import Guards
from actgent.turns.outcome_dispatcher import Dispatcher, to_deliveries

from .agents_as_tools import Run, is_unchecked_here

_RELAYED: Sequence[HandlerKind] = ("event", "tool_result", "tool_progress", "routing", "token")
MAX_SEARCHED_MESSAGES = 100
"""Maximum number of messages that are searched for the earlier conversation or an existing reply."""


class Receiver(Startable, Protocol):
    """An agent that can take over sessions: any `Agent`."""

    profile: Profile

    @property
    def run(self) -> Run:
        """Method `Agent.run` of the agent that takes over."""
        ...


def handoff(
    to: Receiver, *, name: str | None = None, description: str | None = None, history: bool = True
) -> Tool:
    """Return a tool with which a model transfers its conversation to the agent `to`. Both agents start together.

    From then on, also for the rest of the turn, `to` answers the messages of users in a child session. The child session starts
    with the earlier messages of users and agents, unless `history` is False. The session stays the same for its user: its
    history has all answers, and its handlers receive answers, tokens and tool results. `Session.hand_back` or the tool
    `hand_back()` of `to` ends the handoff. With a journal, a handoff survives restarts.

    Messages that are not from users, e.g. outcomes of delegated tasks, are answered by the first agent.

    Raises:
        ConfigurationError: `to` is not an agent.
    """
    profile = getattr(to, "profile", None)
    if not isinstance(profile, Profile) or not callable(getattr(to, "run", None)):
        raise ConfigurationError(f"handoff(to=) must be an agent, e.g. handoff(to=billing), not {to!r:.200}")
    default = profile.goal or profile.capabilities or profile.role
    return HandoffTool(
        to,
        name or f"handoff_to_{re.sub(r'[^a-zA-Z0-9_-]+', '_', to.name)}"[:64],
        description
        or f"Hand the conversation over to {to.name}, who answers from now on: {default or to.name}",
        has_history=history,
    )


def hand_back(name: str = "hand_back", description: str | None = None) -> Tool:
    """Return a tool with which a model ends a handoff. The rest of the model's answer is still delivered."""
    return HandBackTool(
        name, description or "Give the conversation back to the agent that handed it over to you."
    )


class HandoffTool(Tool):
    """Tool that hands the calling session over to another agent."""

    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "note": {"type": "string", "description": "What the other one has to know, if anything."}
        },
        "additionalProperties": False,
    }
    effect: Effect = "idempotent"
    sinks = ()  # the messages to the other agent carry the labels
    delegates = True
    keeps_references = True

    def __init__(self, agent: Receiver, name: str, description: str, *, has_history: bool) -> None:
        self.agent = agent
        self.name = name
        self.description = description
        self.has_history = has_history

    def reaches_unchecked_agent(self, arguments: Mapping[str, Any], session: Any) -> bool:
        """Return True if the receiving agent lacks a policy for untrusted text that its tools need."""
        return is_unchecked_here(session, self.agent.name)

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        session = _session_of(context)
        action = partial(handed, agent=self.agent.name, note=arguments.get("note", ""))
        session.state.dispatch(action, once=f"handoff/{context.idempotency_key}")
        await trio.lowlevel.checkpoint()
        return f"{self.agent.name} answers from now on."


class HandBackTool(Tool):
    """Tool that ends the handoff of the calling session's parent."""

    parameters: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    effect: Effect = "idempotent"
    sinks = ()

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        self.description = description

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        child = context_of(_session_of(context))
        parent = child.parent
        current = None if parent is None else handoff_in(parent.seen_state)
        if parent is None or current is None or not child.id.endswith(f"/{current.child}"):
            raise ToolError(
                "this conversation was not handed over to you: call this tool only after another agent has handed its conversation over"
            )
        if current.agent:
            parent.state.dispatch(given_back)
            if parent.log is not None:
                await parent.log.flush()
        await trio.lowlevel.checkpoint()
        return f"{parent.agent} answers the next message; say your last words."


def receivers_among(tools: Iterable[Tool], dispatcher: Dispatcher, guards: Guards) -> "AgentReceivers | None":
    """Return the object that lets the targets of the handoff tools in `tools` answer; None without handoff tools.

    `dispatcher` and `guards` are those of the agent that hands sessions over.
    """
    handoffs = {tool.agent.name: tool for tool in tools if isinstance(tool, HandoffTool)}
    return AgentReceivers(handoffs, dispatcher, guards) if handoffs else None


@attrs.frozen(eq=False, repr=False)
class AgentReceivers(FieldRepr):
    """Handoff targets of one agent, which answer the messages of its handed-off sessions."""

    tools: Mapping[str, HandoffTool]
    """Handoff tools by the name of the agent that they hand over to."""
    dispatcher: Dispatcher
    """Dispatcher of the agent that hands sessions over. It calls the handlers of these sessions."""
    guards: Guards
    """Guards of the agent that hands sessions over."""

    def must_answer(self, turn: Turn) -> bool:
        """Return True if the agent of the handoff must answer this turn: the message is from a user, and the session is handed off."""
        context = turn.session
        return turn.message.sender.kind == "user" and handoff_in(context.seen_state).agent in self.tools

    async def answer(self, turn: Turn) -> Reply | None:
        """Let the handoff target answer the message of a turn, and record its reply.

        Return None if the session is no longer handed off. If the target stops during the turn, and sessions are in a journal,
        wait until the target is started again.
        """
        context = turn.session
        handed_off = handoff_in(context.seen_state)
        if (tool := self.tools.get(handed_off.agent)) is None:
            return None
        opener = await _opener_of(context, handed_off.agent)
        former = await _former_messages(turn) if tool.has_history else ()
        reply = None
        while reply is None:
            try:
                child = await opener.ensure_child(context, handed_off.child, history=former)
            except SessionClosed:
                context.state.dispatch(given_back)
                return None
            try:
                reply = await self._ask(tool, child, turn, note=handed_off.note)
            except (Stopped, NotRunning):  # `NotRunning` if the call joined a turn that waits for an approval
                if not host_of(child).is_durable:
                    raise
                opener = await _directory_of(context).wait_restarted(opener)
        self._write(turn, reply, tool.agent.name)
        if not handoff_in(context.seen_state).agent:
            await host_of(child).close(child)
        return reply

    async def _ask(self, tool: HandoffTool, child: SessionContext, turn: Turn, *, note: str) -> Reply:
        """Let the agent of the handoff tool answer the user's message in the child session, and return its reply.

        The message has the same id in the child session, so a repetition after a crash returns the earlier reply. `note` is a text of
        the first agent for the other one; untrusted text in it is put between delimiters. Events and tokens of the child session
        are relayed to the session of the turn.
        """
        context = turn.session
        parts = [part for each in (*turn.joined, turn.message) for part in each.parts]
        prompt, origin = None, context.conversation.origin
        if note and origin:  # the note may repeat untrusted text, so it is fenced
            prompt = f"You took this conversation over from {context.agent}."
            parts = [Text(f"Note of agent {context.agent}:\n{fence(note, origin)}"), *parts]
        elif note:
            prompt = f"You took this conversation over from {context.agent}. {note}"
        child.conversation.add_origin(origin)
        with self._relay_deliveries(child, turn):
            try:
                return await tool.agent.run(
                    parts,
                    session=session_of_context(child),
                    sender=turn.message.sender,
                    priority=turn.message.priority,
                    message_id=turn.message.id,
                    prompt=prompt,
                )
            except DuplicateMessage:
                if (earlier := await _earlier_reply(child, turn.message.id)) is None:
                    raise
                return earlier

    def _relay_deliveries(self, child: SessionContext, turn: Turn) -> AbstractContextManager[object]:
        """Return a block in which the deliveries of the child session, except replies and failures, are relayed to the turn's session."""
        context = turn.session
        is_read = bool(turn.listeners) and turn.has_stream_listener()
        if not (is_read or context.handlers.any_of(*_RELAYED)):
            return nullcontext()

        async def relay(delivery: Delivery) -> None:
            await self.dispatcher.dispatch(context, delivery)

        is_streamed = (is_read or context.handlers.any_of("token")) and not self.guards.answers
        return session_of_context(child).listening(
            on_event=relay,
            on_tool_result=relay,
            on_tool_progress=relay,
            on_routing=relay,
            on_token=relay if is_streamed else None,
        )

    def _write(self, turn: Turn, reply: Reply, agent: str) -> None:
        """Add the reply of the other agent to the session's history and journal, unless it was added before a restart."""
        context = turn.session
        last = context.conversation.last_message
        if last is not None and last.id == reply.id:
            return
        answer_message = Message(
            id=reply.id,
            session_id=context.id,
            sender=Sender(agent, "agent"),
            parts=to_parts(reply.text),
            correlation_id=turn.message.id,
            causation_id=turn.message.id,
            origin=reply.origin,
            via=reply.via,
        )
        turn.answer_id = answer_message.id
        context.conversation.append(answer_message)
        if context.log is not None:
            context.log.add(AgentMessageRecord(message=answer_message, stop="end", calls=turn.progress.calls))


async def _opener_of(context: SessionContext, agent: str) -> SessionOpener:
    """Return the session opener of another agent in the runtime of a session. Wait if the agent is about to start.

    Raises:
        NotRunning: No agent with this name is running in the runtime.
    """
    agents = _directory_of(context)
    if agent not in agents:
        await wait_started(agent)
    return agents.opener(agent)


def _directory_of(context: SessionContext) -> Directory:
    """Return the running agents of the runtime of a session."""
    return services_of(session_of_context(context)).delegation.agents


async def _former_messages(turn: Turn) -> Sequence[ChatMessage]:
    """Return the earlier messages of users and agents, without tool calls, results and notices, for the other agent.

    The result contains the pictures and files of users, but only the text of answers.
    """
    context = turn.session
    page = await context.conversation.read(limit=MAX_SEARCHED_MESSAGES)
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


async def _earlier_reply(child: SessionContext, message_id: str) -> Reply | None:
    """Return the reply that the child session gave to a message before a restart; None if the message was not answered."""
    page = await child.conversation.read(limit=MAX_SEARCHED_MESSAGES)
    asked = next((each for each in page.messages if each.id == message_id), None)
    answers = [
        each
        for each in page.messages
        if each.correlation_id == message_id and each.sender.kind == "assistant" and not each.tool_calls
    ]
    if asked is None or not answers:
        return None
    running = services_of(session_of_context(child)).running
    view = TurnView(message=asked, record=page.messages, state=child.seen_state, profile=running.core.profile)
    protocol = running.runner.turn_lifecycle.options.protocol
    try:
        outcomes = [
            each
            for each in protocol.read(ModelResponse(parts=answers[-1].parts), view)
            if isinstance(each, SendReply)
        ]
    except AnswerError:
        outcomes = []
    last = answers[-1]
    replies = to_deliveries(outcomes or [SendReply(text=last.text)], last.id, NO_USAGE, last.origin, last.via)
    return next(each for each in replies if isinstance(each, Reply))


def _session_of(context: ToolContext) -> Session:
    if not isinstance(context.session, Session):
        raise ToolError("this tool works only in a session of an agent: call it in a turn of the agent")
    return context.session
