"""Agents that other agents call: `AgentRef`, `AgentTool` and the delegation tools."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import trio

from actgent.actors.actor_ref import Address
from actgent.actors.dead_letters import DeadLetter
from actgent.agents.session import Session, context_of, services_of, session_of_context
from actgent.errors import ConfigurationError, NotRunning, ToolError
from actgent.journal.record_types import TaskOutcomeRecord
from actgent.limits_and_schedules.id_and_number_validation import at_least_one, check_seconds
from actgent.messages import Content, Message, Priority, Reply, Sender
from actgent.runtime.agent_directory import AgentCard
from actgent.runtime.runtime import Startable
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.sessions.pending.delegated_tasks import TASK_DEADLINE_SECONDS
from actgent.sessions.pending.task_reports import with_status_line
from actgent.sessions.session_context import SessionContext
from actgent.tools.callable_kinds import check_rule_function, rule_allows
from actgent.tools.outputs.result_text import to_result_text
from actgent.tools.pausable_time_limits import TimeLimit, time_limits
from actgent.tools.tool_interface import Effect, Tool, ToolContext
from actgent.turns.calls.untrusted_text_policy import has_sinks

Run = Callable[..., Awaitable[Reply]]
"""Type of the method `Agent.run`."""
MAX_FOUND = 50
"""Maximum number of agents in one result of the tool `find_agents`."""


class AgentRef(Address):
    """Address of an agent for messages without a session: each message gets a new session."""

    def __init__(
        self,
        name: str,
        *,
        run: Run,
        opener: Callable[[], Awaitable[SessionOpener]],
        dead_letter: Callable[[DeadLetter], object],
    ) -> None:
        self.name = name
        self._run = run
        self._opener = opener
        self._dead_letter = dead_letter

    async def ask(self, content: Any, *, deadline: float = 30) -> Reply:
        """Send a message and wait for the answer. Cancelling the call stops the turn.

        In a tool or handler, time in which the agent's turn waits for approvals does not count.

        Raises:
            DeadlineExceeded: The agent did not answer within `deadline` seconds.
            ActgentError: The error that ended the turn.
        """
        check_seconds("deadline", deadline)
        return await self._run(content, timeout=deadline)

    async def tell(self, content: Any, *, enqueue_timeout: float = 30) -> None:
        """Enqueue a message for the agent and return once its inbox has accepted it.

        Raises:
            InboxFull: The inbox stayed full for `enqueue_timeout` seconds.
            NotRunning: The agent is not running. If it was running before, the message is a dead letter of its runtime.
        """
        try:
            await self._post(content, enqueue_timeout=enqueue_timeout)
        except NotRunning:
            self._dead_letter(DeadLetter(self.name, content, "the agent is not running"))
            raise

    async def send_again(self, letter: DeadLetter) -> None:
        """Redeliver a dead letter. If the session of the letter has ended, create the session again."""
        message = letter.payload
        if not isinstance(message, Message):
            await self._post(message)
        elif letter.owner is None and not message.correlation_id:
            await self._post(message.parts)
        else:
            opener, session_id = await self._opener(), message.session_id
            context = await (
                opener.open(session_id) if letter.owner is None else opener.ensure(letter.owner, session_id)
            )
            await session_of_context(context).chat(
                message.parts, message.sender, priority=message.priority, message_id=message.id
            )

    async def _post(self, content: Content, *, enqueue_timeout: float = 30) -> None:
        opener = await self._opener()
        context = opener.new(Sender("user"), is_transient=True)
        async with opener.single_message_block(context):
            await session_of_context(context).chat(content, enqueue_timeout=enqueue_timeout)


class AgentTool(Tool):
    """Tool that sends a task to another agent and returns its answer."""

    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "task": {"type": "string", "description": "What to do, in words, with all that is needed for it."}
        },
        "required": ["task"],
        "additionalProperties": False,
    }

    effect: Effect = "idempotent"
    """`idempotent`: a call that is repeated after a crash finds the session of the first call."""
    sinks = ()  # the task carries the labels
    delegates = True
    parallel = True
    """True: agents that one answer calls work concurrently."""

    def __init__(
        self, name: str, description: str, *, run: Run, agent: Startable, opener: Callable[[], SessionOpener]
    ) -> None:
        self.name = name
        self.description = description
        self.agent = agent
        self._run = run
        self._opener = opener

    def reaches_unchecked_agent(self, arguments: Mapping[str, Any], session: Any) -> bool:
        """Return True if the called agent has tools that need a policy for untrusted text, but no policy.

        A policy of the calling agent then treats this tool as unsafe for untrusted text. The tools of an agent that is not
        running are unknown, so the result is True.
        """
        try:
            opener = self._opener()
        except NotRunning:
            return True
        return is_unchecked(opener)

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        if context.session is None:
            reply = await self._run(arguments["task"])
            shortfall = self._opener().running.runner.turn_lifecycle.options.protocol.shortfall(
                reply.message_type
            )
            value = reply.text if reply.data is None else reply.data
            context.origin = reply.origin
            return with_status_line(to_result_text(value), shortfall) if shortfall else value
        opener = self._opener()
        key = f"{context.idempotency_key}/{opener.running.name}"
        session = _session_of(context)
        delegation = services_of(session).delegation
        answered = await delegation.ask(opener, context_of(session), arguments["task"], key=key)
        return _result_of(answered, opener.running.name, context)


def _result_of(answered: TaskOutcomeRecord, agent: str, context: ToolContext) -> str:
    """Return the outcome of a task as text for a tool result, and add the outcome's untrusted sources to the call's context.

    An incomplete answer gets a note with its status.

    Raises:
        ToolError: The task failed; the text has the agent, the kind of the failure and the reason.
    """
    context.origin = answered.origin
    if answered.failed is None:
        return with_status_line(answered.text, answered.shortfall)
    raise ToolError(f"agent {agent!r} failed ({answered.failed}): {answered.text}")


@contextmanager
def excluding_approval_waits(limit: trio.CancelScope) -> Iterator[None]:
    """Return a block in which the time of waits for approvals does not count for the deadline of `limit`."""
    token = time_limits.set((*time_limits.get(), TimeLimit(limit)))
    try:
        yield
    finally:
        time_limits.reset(token)


# --- delegation tools -----------------------------------------------------------------------

Allowed = Collection[str] | Callable[[AgentCard], bool]
"""Names of the agents that may be called, or a function that decides by the agent's card."""


def delegation_tools(
    allowed: Allowed | None = None,
    *,
    timeout: float = 300.0,
    tries: int = 1,
    deadline: float = TASK_DEADLINE_SECONDS,
) -> tuple[Tool, Tool]:
    """Return the tools `find_agents` and `delegate_to_agent`, with which a model finds agents of the runtime and gives them tasks.

    Args:
        allowed: Names of the agents that may be found and called, or a function of the agent's card that returns a bool. None
            allows all agents. An agent never finds itself.
        timeout: Maximum seconds of a task with `wait=true`, all attempts included.
        tries: Maximum number of attempts of a task with `wait=true`.
        deadline: Seconds after which a task with `wait=false` fails; see `Session.delegate`.

    Raises:
        ConfigurationError: An argument is invalid.
    """
    check_seconds("timeout", timeout)
    check_seconds("deadline", deadline)
    at_least_one("tries", tries)
    if isinstance(allowed, str):
        raise ConfigurationError(f"allowed= must be a list of agent names, as in allowed=[{allowed!r}]")
    if callable(allowed):
        check_rule_function("allowed=", allowed, takes="(card)")
    elif allowed is not None:
        _check_names(allowed)
    return FindAgents(allowed), DelegateToAgent(allowed, timeout=timeout, tries=tries, deadline=deadline)


def _check_names(allowed: Collection[str]) -> None:
    if not isinstance(allowed, Collection):
        raise ConfigurationError(
            f"allowed= must be a list of agent names or a function of (card), not {allowed!r:.200}"
        )
    for name in allowed:
        if not isinstance(name, str):
            raise ConfigurationError(f"allowed= must contain names of agents, not {name!r:.200}")


class FindAgents(Tool):
    """Tool that returns the agents with a capability."""

    name = "find_agents"
    description = "Find other agents that can help, by what they can do. Without words all of them."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "capability": {"type": "string", "description": "What has to be done, in a few words."}
        },
        "additionalProperties": False,
    }
    effect: Effect = "pure"

    def __init__(self, allowed: Allowed | None = None) -> None:
        self._allowed = allowed

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        session = _session_of(context)
        agents = services_of(session).delegation.agents
        await agents.start_phase.wait_all(context_of(session))
        found = agents.find(arguments.get("capability", ""))
        cards = [attrs.asdict(card) for card in found if may_call(self._allowed, card, context)]
        return {"agents": cards[:MAX_FOUND]}


class DelegateToAgent(Tool):
    """Tool that gives a task to another agent, and waits for the answer or returns the id of the task."""

    name = "delegate_to_agent"
    description = (
        "Give a task to another agent. With wait=true its answer is the result; "
        "with wait=false you get the task's id at once, and the answer as a message later."
    )
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "agent": {"type": "string", "description": "The agent's name, as find_agents gives it."},
            "task": AgentTool.parameters["properties"]["task"],
            "wait": {"type": "boolean", "description": "Whether to wait for the answer; true if left out."},
            "priority": {"enum": ["LOW", "MEDIUM", "NORMAL", "HIGH", "URGENT"]},
        },
        "required": ["agent", "task"],
        "additionalProperties": False,
    }
    effect: Effect = "idempotent"
    sinks = ()  # the task carries the labels
    delegates = True
    parallel = True

    def __init__(self, allowed: Allowed | None, *, timeout: float, tries: int, deadline: float) -> None:
        self._allowed = allowed
        self.timeout = timeout
        self._tries = tries
        self._deadline = deadline

    def reaches_unchecked_agent(self, arguments: Mapping[str, Any], session: Any) -> bool:
        """Return True if the named agent runs in this process and lacks a policy that its tools need.

        A policy is needed by tools with trusted arguments, and by tools that delegate tasks.
        """
        return is_unchecked_here(session, arguments.get("agent"))

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        session = _session_of(context)
        delegation, name = services_of(session).delegation, arguments["agent"]
        agents = delegation.agents
        await agents.wait_started(name, context_of(session))
        card = agents.get(name)
        if card is None or not may_call(self._allowed, card, context):
            raise ToolError(
                f"agent {name!r} does not exist, or you may not call it: find an agent with find_agents"
            )
        given: dict[str, Any] = {
            "key": f"{context.idempotency_key}/{name}",
            "priority": Priority.of(arguments.get("priority", "NORMAL")),
        }
        opener, asker, task = agents.opener(name), context_of(session), arguments["task"]
        if arguments.get("wait", True):
            answered = await delegation.ask(opener, asker, task, tries=self._tries, **given)
            return _result_of(answered, name, context)
        task_id = await delegation.delegate(opener, asker, task, deadline=self._deadline, **given)
        return {"task_id": task_id, "agent": name}


def is_unchecked(opener: SessionOpener) -> bool:
    """Return True if an agent lacks a policy for untrusted text that its tools need.

    Tools need a policy if they have parameters that need trusted values, or if they delegate tasks.

    Untrusted text that reaches such an agent could cause effects that no policy checks.
    """
    calling = opener.running.core.calling
    return calling.policy is None and any(
        each.delegates or has_sinks(each) or each.audience for each in calling.registry
    )


def is_unchecked_here(session: SessionContext, agent: object) -> bool:
    """Return True if an agent named `agent` runs in the runtime of the session and lacks a policy that its tools need.

    See `is_unchecked`.
    """
    agents = services_of(session_of_context(session)).delegation.agents
    return isinstance(agent, str) and agent in agents and is_unchecked(agents.opener(agent))


def may_call(allowed: Allowed | None, card: AgentCard, context: ToolContext) -> bool:
    """Return True if the calling agent in `context` may call the agent of this card.

    `allowed` is the argument of `delegation_tools`; None allows all agents. Return False if the card is that of the calling agent.
    """
    if card.name == context.agent:
        return False
    if allowed is None:
        return True
    if callable(allowed):
        return rule_allows("the function of allowed=", allowed(card))
    return card.name in allowed


def _session_of(context: ToolContext) -> Session:
    if not isinstance(context.session, Session):
        raise ToolError("this tool works only in a session of an agent: call it in a turn of the agent")
    return context.session
