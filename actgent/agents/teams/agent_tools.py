"""How agents call each other: `AgentRef`, `AgentTool`, and the delegation tools."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import trio

from actgent.actors.dead_letters import DeadLetter
from actgent.actors.ref import Address
from actgent.agents.session import Session, context_of, face_of, services_of
from actgent.control.arguments import at_least_one, check_seconds
from actgent.errors import ConfigurationError, NotRunning, ToolError
from actgent.journal.records import Answered
from actgent.messages import Message, Priority, Reply, Sender
from actgent.runtime.directory import AgentCard
from actgent.runtime.runtime import Startable
from actgent.runtime.sessions.opener import SessionOpener
from actgent.sessions.incoming import Content
from actgent.sessions.waiting.task_reports import with_shortfall
from actgent.sessions.waiting.tasks import TASK_DEADLINE
from actgent.tools.base import Effect, Tool, ToolContext
from actgent.tools.generators import allowed_by, check_rule_function
from actgent.tools.outputs.results import to_result_text
from actgent.tools.time_limits import TimeLimit, time_limits

Run = Callable[..., Awaitable[Reply]]
"""`Agent.run`."""
MAX_FOUND = 50
"""The number of agents a model is told of at a time."""


class AgentRef(Address):
    """An agent's address: each message is a conversation of its own."""

    def __init__(
        self,
        name: str,
        *,
        run: Run,
        opener: Callable[[], Awaitable[SessionOpener]],
        bury: Callable[[DeadLetter], object],
    ) -> None:
        self.name = name
        self._run = run
        self._opener = opener
        self._bury = bury

    async def ask(self, content: Any, *, deadline: float = 30) -> Reply:
        """Have the agent answer, within `deadline` seconds; a cancelled ask stops it.

        In a tool or handler, time in which the agent's turn waits for people does not count.

        Raises:
            DeadlineExceeded: no answer in time.
            ActgentError: the error that the conversation ended with.
        """
        check_seconds("deadline", deadline)
        return await self._run(content, timeout=deadline)

    async def tell(self, content: Any, *, enqueue_timeout: float = 30) -> None:
        """Enqueue a message for the agent and return once its inbox has accepted it.

        Raises:
            InboxFull: the inbox stayed full for `enqueue_timeout` seconds.
            NotRunning: the agent is not running; if it was, the message is a dead letter of its runtime.
        """
        try:
            await self._post(content, enqueue_timeout=enqueue_timeout)
        except NotRunning:
            self._bury(DeadLetter(self.name, content, "it is not running"))
            raise

    async def send_again(self, letter: DeadLetter) -> None:
        """Give the agent a message of an earlier run: in its session, which is made anew if it ended with that run."""
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
            await face_of(context).chat(
                message.parts, message.sender, priority=message.priority, message_id=message.id
            )

    async def _post(self, content: Content, *, enqueue_timeout: float = 30) -> None:
        opener = await self._opener()
        context = opener.new(Sender("user"), is_transient=True)
        async with opener.beginning(context):
            await face_of(context).chat(content, enqueue_timeout=enqueue_timeout)


class AgentTool(Tool):
    """An agent as a tool of another: it is given a task in words, and its answer is the result."""

    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "task": {"type": "string", "description": "What to do, in words, with all that is needed for it."}
        },
        "required": ["task"],
        "additionalProperties": False,
    }

    effect: Effect = "idempotent"
    """After a crash the same call finds the conversation that it began."""
    parallel = True
    """Several agents asked by one answer work at the same time."""

    def __init__(
        self, name: str, description: str, *, run: Run, agent: Startable, opener: Callable[[], SessionOpener]
    ) -> None:
        self.name = name
        self.description = description
        self.agent = agent
        self._run = run
        self._opener = opener

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        if context.session is None:
            reply = await self._run(arguments["task"])
            shortfall = self._opener().running.runner.turn_lifecycle.options.protocol.shortfall(
                reply.message_type
            )
            value = reply.text if reply.data is None else reply.data
            context.origin = reply.origin
            return with_shortfall(to_result_text(value), shortfall) if shortfall else value
        opener = self._opener()
        key = f"{context.effect_key}/{opener.running.name}"
        session = _session_of(context)
        delegation = services_of(session).delegation
        answered = await delegation.ask(opener, context_of(session), arguments["task"], key=key)
        return _result_of(answered, opener.running.name, context)


def _result_of(answered: Answered, agent: str, context: ToolContext) -> str:
    """Return what a task came to as the result of the call that gave it; text from outside keeps its origin.

    Raises:
        ToolError: The task failed; the text names the agent, the kind of the failure and the reason.
    """
    context.origin = answered.origin
    if answered.failed is None:
        return with_shortfall(answered.text, answered.shortfall)
    raise ToolError(f"agent {agent!r} failed ({answered.failed}): {answered.text}")


@contextmanager
def limited(limit: trio.CancelScope) -> Iterator[None]:
    """Let a time limit stand still, with those round it, while what is asked in the block waits for people."""
    token = time_limits.set((*time_limits.get(), TimeLimit(limit)))
    try:
        yield
    finally:
        time_limits.reset(token)


# --- found at the call -----------------------------------------------------------------------

Allowed = Collection[str] | Callable[[AgentCard], bool]
"""Which agents may be called: their names, or what decides it."""


def delegation_tools(
    allowed: Allowed | None = None,
    *,
    timeout: float = 300.0,
    tries: int = 1,
    deadline: float = TASK_DEADLINE,
) -> tuple[Tool, Tool]:
    """Two tools by which a model finds other agents of the runtime and gives them tasks: `find_agents`, `delegate_to_agent`.

    Args:
        allowed: The names of the agents that may be found and called, or a function that decides it by their card;
            None is all. An agent never finds itself.
        timeout: Seconds that a task may take whose answer is waited for, all its tries together.
        tries: How often a task that fails is given anew, where its answer is waited for.
        deadline: Seconds after which a task fails whose answer is not waited for; see `Session.delegate`.

    Raises:
        ConfigurationError: one of these is wrong.
    """
    check_seconds("timeout", timeout)
    check_seconds("deadline", deadline)
    at_least_one("tries", tries)
    if isinstance(allowed, str):
        raise ConfigurationError(f"allowed= takes several names: allowed=[{allowed!r}]")
    if callable(allowed):
        check_rule_function("allowed=", allowed, takes="(card)")
    elif allowed is not None:
        _check_names(allowed)
    return FindAgents(allowed), DelegateToAgent(allowed, timeout=timeout, tries=tries, deadline=deadline)


def _check_names(allowed: Collection[str]) -> None:
    if not isinstance(allowed, Collection):
        raise ConfigurationError(
            f"allowed= takes names of agents or a function of (card), not {allowed!r:.200}"
        )
    for name in allowed:
        if not isinstance(name, str):
            raise ConfigurationError(f"allowed= takes names of agents, not {name!r:.200}")


class FindAgents(Tool):
    """Tells a model which agents can do something."""

    name = "find_agents"
    description = "Find other agents that can help, by what they can do. Without words all of them."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "capability": {"type": "string", "description": "What has to be done, in a few words."},
        },
        "additionalProperties": False,
    }
    effect: Effect = "pure"
    inline = True

    def __init__(self, allowed: Allowed | None = None) -> None:
        self._allowed = allowed

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        session = _session_of(context)
        agents = services_of(session).delegation.agents
        await agents.starting.wait_all(context_of(session))
        found = agents.find(arguments.get("capability", ""))
        cards = [attrs.asdict(card) for card in found if may_call(self._allowed, card, context)]
        return {"agents": cards[:MAX_FOUND]}


class DelegateToAgent(Tool):
    """Lets a model give a task to another agent, and wait for its answer or be notified of it later."""

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
    parallel = True

    def __init__(self, allowed: Allowed | None, *, timeout: float, tries: int, deadline: float) -> None:
        self._allowed = allowed
        self.timeout = timeout
        self._tries = tries
        self._deadline = deadline

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        session = _session_of(context)
        delegation, name = services_of(session).delegation, arguments["agent"]
        agents = delegation.agents
        await agents.wait_started(name, context_of(session))
        card = agents.get(name)
        if card is None or not may_call(self._allowed, card, context):
            raise ToolError(f"there is no agent {name!r} that you may call: look with find_agents")
        given: dict[str, Any] = {
            "key": f"{context.effect_key}/{name}",
            "priority": Priority.of(arguments.get("priority", "NORMAL")),
        }
        opener, asker, task = agents.opener(name), context_of(session), arguments["task"]
        if arguments.get("wait", True):
            answered = await delegation.ask(opener, asker, task, tries=self._tries, **given)
            return _result_of(answered, name, context)
        task_id = await delegation.delegate(opener, asker, task, deadline=self._deadline, **given)
        return {"task_id": task_id, "agent": name}


def may_call(allowed: Allowed | None, card: AgentCard, context: ToolContext) -> bool:
    """Return True if the agent of a call may call another one."""
    if card.name == context.agent:
        return False
    if allowed is None:
        return True
    if callable(allowed):
        return allowed_by("the function of allowed=", allowed(card))
    return card.name in allowed


def _session_of(context: ToolContext) -> Session:
    if not isinstance(context.session, Session):
        raise ToolError("this tool only works in a session of an agent")
    return context.session
