"""Agents that plan, execute the plan item by item, and answer from what they found."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Literal, Unpack, overload

import attrs
import trio

from actgent.errors import ConfigurationError, Suspended, nearest
from actgent.memory.short_term import ShortTermMemory
from actgent.memory.windowed import LimitedMemory, LimitedView
from actgent.messages import (
    NO_USAGE,
    DataT_co,
    Delivery,
    Failure,
    Message,
    Reply,
    ToolCall,
    ToolResult,
    Usage,
)
from actgent.modes.tools import SetMode
from actgent.protocols.plan import CONFIG, ROLES, Plan, Planning, plan_of
from actgent.sessions.incoming import Content
from actgent.sessions.waiting.turn_reader import heed
from actgent.tools.base import DepsT, Tool, ToolContext
from actgent.turns.calls.tool_calls import Access

from .agent import Agent
from .options import AgentOptions, FormT, ProcessOptions
from .runs import SessionView, view_session
from .session import Session, context_of
from .validation import memory_of

Status = Literal["success", "partial", "error", "suspended"]
_CLOSING = 5.0
"""Seconds to close a session that `process` opened, also when it is cancelled."""


@attrs.frozen(kw_only=True)
class PlanResult(Generic[DataT_co]):
    """What one request came to, whatever it came to."""

    status: Status
    """`success`: all was done; `partial`: something failed or was left out; `suspended`: an item waits; `error`."""
    reply: Reply[DataT_co] | None = None
    """The last reply of the turn; None where there is none."""
    error: Exception | None = None
    """Why there is no answer, or what the request waits for; None otherwise."""
    plan: Plan | None = None
    """The plan with the state of its items; None where none was made."""
    session_id: str = ""
    """The session of the request; closed by now if it was a fresh one and nothing waits."""
    turn_id: str = ""
    """The id of the outside message, and the correlation id of all that it led to."""
    model_calls: int = 0
    """Answers of models in the turn."""
    tool_calls: int = 0
    """Tool calls that had a result."""
    usage: Usage = NO_USAGE
    """Tokens and cost of the turn."""
    seconds: float = 0.0
    """How long the request took, by trio's clock."""

    def __str__(self) -> str:
        return self.text

    @property
    def data(self) -> DataT_co | None:
        """The value of the declared form; None where there is no answer in it."""
        return None if self.reply is None else self.reply.data

    @property
    def text(self) -> str:
        """The answer in words, or what went wrong."""
        return str(self.reply if self.reply is not None else self.error)


class PlanAgent(Agent[DataT_co, DepsT]):
    """An agent that plans first, and says in its reply's `message_type` whether all of the plan was done.

    `models` may name a model for each of `planning`, `execution` and `synthesis`. Handlers are notified of the plan by
    the events `intent`, `plan`, `plan_update`, `item` and `thoughts`.
    """

    default_protocol = Planning

    @overload
    def __init__(
        self, name: str, *, output: type[DataT_co], **options: Unpack[AgentOptions[DepsT]]
    ) -> None: ...
    @overload
    def __init__(
        self, name: str, *, output: object = None, **options: Unpack[AgentOptions[DepsT]]
    ) -> None: ...
    def __init__(self, name: str, *, output: object = None, **options: Unpack[AgentOptions[DepsT]]) -> None:
        options["memory"] = LimitedMemory(memory_of(options.get("memory") or ShortTermMemory()))
        super().__init__(name, output=output, **options)
        self.on_session(_limit_history)

    def _access_rules(self) -> Iterable[Access]:
        return [*super()._access_rules(), _not_enabled]

    # --- one request ---------------------------------------------------------------------

    @overload
    async def process(
        self,
        content: Content,
        *,
        session: Session | None = None,
        output: type[FormT],
        **options: Unpack[ProcessOptions[DepsT]],
    ) -> PlanResult[FormT]: ...
    @overload
    async def process(
        self,
        content: Content,
        *,
        session: Session | None = None,
        output: None = None,
        **options: Unpack[ProcessOptions[DepsT]],
    ) -> PlanResult[DataT_co]: ...
    @overload
    async def process(
        self,
        content: Content,
        *,
        session: Session | None = None,
        output: object,
        **options: Unpack[ProcessOptions[DepsT]],
    ) -> PlanResult: ...
    async def process(
        self,
        content: Content,
        *,
        session: Session | None = None,
        output: Any = None,
        **options: Unpack[ProcessOptions[DepsT]],
    ) -> PlanResult[Any]:
        """Plan, execute, answer; what goes wrong in the turn is in the result. Without a session in a fresh one.

        The options are those of `run`, for this request alone: `model` is a role of `models` that all stages ask,
        `prompt` a layer of the system prompt; `temperature`, `max_tokens`, `sender`, `metadata` and `deps` are as there.
        `limits` bound it instead of the agent's; reaching one is an error in the result.
        Answers are streamed to whoever has attached `session.on_token`.
        Where a tool call waits for a person, the status is `suspended`, the error says for what, and `resume` goes on.

        Raises:
            NotRunning: the agent's block is not open.
            InboxFull: there was no room.
        """
        if session is not None:
            return await self._process(content, session, output=output, **options)
        session, result = await self.create_session("user"), None
        try:
            result = await self._process(content, session, output=output, **options)
        finally:
            if (context_of(session).status if result is None else result.status) != "suspended":
                with trio.move_on_after(_CLOSING, shield=True):
                    await session.aclose()
        return result

    async def _process(self, content: Content, session: Session, **options: Any) -> PlanResult:
        started, opener = trio.current_time(), await self._await_opener()
        before = await view_session(opener, session)
        heard = await _hear(self.stream(content, session=session, **options))
        if heard.failure is not None and heard.failure.kind == "moved":  # its options went with it
            moved, metadata = heard.failure.message_id, options.get("metadata")
            heard = await _hear(self.stream(content, session=session, message_id=moved, metadata=metadata))
        after = await view_session(opener, session)
        failure = _suspended(after) if after.status == "suspended" else heard.failure
        reply = heard.reply
        turn_id, model_calls = _counted(after.history[len(before.history) :], reply, failure)
        return PlanResult(
            status=_status(reply, failure),
            reply=reply,
            error=None if failure is None else failure.error,
            plan=plan_of(after.state),
            session_id=session.id,
            turn_id=turn_id,
            model_calls=model_calls,
            tool_calls=heard.tool_calls,
            usage=reply.usage if reply is not None else after.usage - before.usage,
            seconds=trio.current_time() - started,
        )

    # --- a session's configuration -------------------------------------------------------

    def configure(
        self,
        session: Session,
        *,
        model: str | None = None,
        models: Mapping[str, str] | None = None,
        tools: Sequence[str] | None = None,
        history: int | None = None,
    ) -> None:
        """Give a session a configuration of its own, from its next model call on; what is None stays as it is.

        For a session's first message call it in an `on_session` function. A system prompt is given to `create_session`.

        Args:
            session: One of this agent's.
            model: The role, a key of the agent's `models`, that all stages ask.
            models: The same by stage: `planning`, `execution`, `synthesis`.
            tools: The names of the only tools that may be called.
            history: How many messages from before the turn the model is shown.

        Raises:
            ConfigurationError: the agent has no such model, stage or tool.
        """
        self._check_config([model] if model else [], models or {}, tools or ())
        if history is not None and history < 0:
            raise ConfigurationError(f"history={history}: at least 0")
        given = {
            "model": model,
            "models": None if models is None else dict(models),
            "tools": None if tools is None else list(dict.fromkeys(tools)),
            "history": history,
        }
        said = {name: value for name, value in given.items() if value is not None}
        session.state.dispatch(lambda state: (CONFIG, {**state.get(CONFIG, {}), **said}))
        _limit_history(session)

    def _check_config(self, roles: list[str], models: Mapping[str, str], tools: Sequence[str]) -> None:
        for stage in models.keys() - set(ROLES.values()):
            raise ConfigurationError(f"there is no stage {stage!r}: {nearest(stage, ROLES.values())}")
        for role in {*roles, *models.values()} - self._models.named.keys():
            raise ConfigurationError(f"agent {self.name!r} has no model {role!r}: add it to models=")
        for name in tools:
            if self.tools.get(name) is None:
                raise ConfigurationError(
                    f"agent {self.name!r} has no tool {name!r}: {nearest(name, [tool.name for tool in self.tools])}"
                )

    def enabled_tools(self, session: Session) -> tuple[str, ...]:
        """The names of the tools that a session may call."""
        enabled = _enabled_in(session.state)
        return tuple(tool.name for tool in self.tools if _is_enabled(tool, enabled))

    def enable_tools(self, session: Session, *names: str) -> None:
        """Let a session call further tools."""
        self.configure(session, tools=[*self.enabled_tools(session), *names])

    def disable_tools(self, session: Session, *names: str) -> None:
        """Let a session call these tools no more."""
        self.configure(session, tools=[name for name in self.enabled_tools(session) if name not in names])


def _not_enabled(_: ToolCall, tool: Tool, told: ToolContext) -> str | None:
    """The rule of access: the configuration of a session names the only tools that it may call."""
    enabled = _enabled_in(told.state or {})
    if _is_enabled(tool, enabled):
        return None
    return f'Tool "{tool.name}" is not enabled for thread "{told.session_id}".'


def _is_enabled(tool: Tool, enabled: Sequence[str] | None) -> bool:
    return enabled is None or tool.name in enabled or tool.in_every_mode or isinstance(tool, SetMode)


def _enabled_in(state: Mapping[str, Any]) -> Sequence[str] | None:
    enabled: Sequence[str] | None = state.get(CONFIG, {}).get("tools")
    return enabled


def _limit_history(session: Session) -> None:
    """Show as much of what was said as the session's configuration says, which a journal may have kept."""
    view = context_of(session).conversation.view
    if isinstance(view, LimitedView):
        view.limit = session.state.get(CONFIG, {}).get("history")


def _status(reply: Reply | None, failure: Failure | None) -> Status:
    if failure is not None:
        return "suspended" if isinstance(failure.error, Suspended) else "error"
    kinds: dict[str | None, Status] = {"success": "success", "suspended": "suspended"}
    return kinds.get(reply.message_type, "partial") if reply is not None else "error"


@attrs.define
class _Heard:
    """What a request's stream had."""

    reply: Reply | None = None
    """The last one."""
    failure: Failure | None = None
    """What ended it."""
    tool_calls: int = 0
    """Those that had a result."""

    def take(self, delivery: Delivery) -> None:
        if isinstance(delivery, Reply):
            self.reply = delivery
        elif isinstance(delivery, ToolResult):
            self.tool_calls += 1
        elif isinstance(delivery, Failure) and delivery.kind != "handler":
            self.failure = delivery


async def _hear(stream: AbstractAsyncContextManager[trio.abc.ReceiveChannel[Delivery]]) -> _Heard:
    heard = _Heard()
    async with stream as deliveries:
        heed(deliveries)
        async for delivery in deliveries:
            heard.take(delivery)
    return heard


def _suspended(session: SessionView) -> Failure:
    """Describe a turn that waits for approvals as a failure of the kind `suspended`."""
    waiting = session.approvals
    error = Suspended([each.id for each in waiting], [each.tool_name for each in waiting])
    message = next(each for each in reversed(session.history) if each.sender.kind == "user")
    return Failure(kind="suspended", error=error, message_id=message.id)


def _counted(history: Sequence[Message], reply: Reply | None, failure: Failure | None) -> tuple[str, int]:
    """The turn's id, and how many of its messages are answers of a model."""
    answer = next((message for message in history if reply is not None and message.id == reply.id), None)
    turn_id = failure.message_id if failure is not None else (answer and answer.correlation_id) or ""
    own = [message for message in history if message.correlation_id == turn_id]
    return turn_id, sum(message.sender.kind == "assistant" for message in own)
