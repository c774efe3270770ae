"""`PlanAgent`: plans, executes the plan item by item, and answers from the results."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack, overload

from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.memory.message_count_limit import LimitedMemory, LimitedView
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.messages import DataT_co, ToolCall
from actgent.modes.mode_tools import SetMode
from actgent.protocols.plan import CONFIG, ROLES, Planning
from actgent.tools.tool_interface import DepsT, Tool, ToolContext
from actgent.turns.calls.tool_calls import Access

from .agent import Agent
from .agent_constructor_validation import memory_of
from .keyword_argument_types import AgentOptions
from .session import Session, context_of


class PlanAgent(Agent[DataT_co, DepsT]):
    """An agent that plans first. Its reply's `message_type` states if the plan was executed completely.

    `models` may name a model for each of the roles `planning`, `execution` and `synthesis`. Handlers receive the plan in the
    events `intent`, `plan`, `plan_update`, `item` and `thoughts`.
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
        return [*super()._access_rules(), _tool_disabled_reason]

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
        """Change settings of a session. They apply from its next model call on. If an argument is None, its setting stays unchanged.

        To configure the first message of a session, call `configure` in an `on_session` function. The system prompt of a session
        is set by `create_session(prompt=)`.

        Args:
            session: A session of this agent.
            model: Role of the model for all stages: a key of the agent's `models=`.
            models: Roles of models by stage: `planning`, `execution`, `synthesis`.
            tools: Names of the tools that may be called; calls of other tools are rejected.
            history: Maximum number of earlier user messages and final answers that the model sees. Plans, calls and results between
                these messages are also shown, and do not count.

        Raises:
            ConfigurationError: The agent does not have the model, the stage or the tool.
        """
        if session.agent_name != self.name:
            raise ConfigurationError(
                f"session {session.id!r} belongs to agent {session.agent_name!r}, not to {self.name!r}"
            )
        self._check_config([model] if model else [], models or {}, tools or ())
        if history is not None and (type(history) is not int or history < 0):
            raise ConfigurationError(f"history= must be a whole number of at least 0, not {history!r:.200}")
        options = {
            "model": model,
            "models": None if models is None else dict(models),
            "tools": None if tools is None else list(dict.fromkeys(tools)),
            "history": history,
        }
        changes = {name: value for name, value in options.items() if value is not None}
        session.state.dispatch(lambda state: (CONFIG, {**state.get(CONFIG, {}), **changes}))
        _limit_history(session)

    def _check_config(self, roles: list[str], models: Mapping[str, str], tools: Sequence[str]) -> None:
        if not isinstance(models, Mapping):
            raise ConfigurationError(f"models= must be a mapping {{stage: model}}, not {models!r:.200}")
        for stage in models.keys() - set(ROLES.values()):
            raise ConfigurationError(
                f"models= has an unknown stage {stage!r}: {did_you_mean_or_list(stage, ROLES.values())}"
            )
        for role in {*roles, *models.values()} - self._models.named.keys():
            raise ConfigurationError(f"agent {self.name!r} has no model {role!r}: add it to models=")
        if isinstance(tools, str):
            raise ConfigurationError(f"tools= must be a list of tool names, e.g. [{tools!r}], not a string")
        self._find_tools(tools)

    def enabled_tools(self, session: Session) -> tuple[str, ...]:
        """Return the names of the tools that a session may call."""
        enabled = _enabled_tools(session.state)
        return tuple(tool.name for tool in self.tools if _is_enabled(tool, enabled))

    def enable_tools(self, session: Session, *names: str) -> None:
        """Permit the model of a session to call the tools `names` in addition to its other tools.

        Raises:
            ConfigurationError: The agent has no tool of one of these names.
        """
        wanted = [tool.name for tool in self._find_tools(names)]
        self.configure(session, tools=[*self.enabled_tools(session), *wanted])

    def disable_tools(self, session: Session, *names: str) -> None:
        """Reject a session's calls of these tools.

        Raises:
            ConfigurationError: The agent has no tool of one of these names, or the tool is enabled in every session.
        """
        for tool in self._find_tools(names):
            if _is_enabled(tool, ()):
                raise ConfigurationError(
                    f"tool {tool.name!r} is enabled in every session, so disable_tools() cannot disable it"
                )
        self.configure(session, tools=[name for name in self.enabled_tools(session) if name not in names])

    def _find_tools(self, names: Iterable[object]) -> list[Tool]:
        """Return the agent's tools with the given names.

        Raises:
            ConfigurationError: A name is not a str, or the agent has no tool with this name.
        """
        found = []
        for name in names:
            if not isinstance(name, str):
                raise ConfigurationError(
                    f"pass the names of tools as separate arguments, as in enable_tools(session, 'a', 'b'), not {name!r:.100}"
                )
            if (tool := self.tools.get(name)) is None:
                raise ConfigurationError(
                    f"agent {self.name!r} has no tool {name!r}: {did_you_mean_or_list(name, [tool.name for tool in self.tools])}"
                )
            found.append(tool)
        return found


def _tool_disabled_reason(_: ToolCall, tool: Tool, context: ToolContext) -> str | None:
    """Return the reason why the session of a tool call may not call the tool; None if the tool is enabled."""
    enabled = _enabled_tools(context.state or {})
    if _is_enabled(tool, enabled):
        return None
    return f'Tool "{tool.name}" is not enabled for session "{context.session_id}".'


def _is_enabled(tool: Tool, enabled: Sequence[str] | None) -> bool:
    return enabled is None or tool.name in enabled or tool.in_every_mode or isinstance(tool, SetMode)


def _enabled_tools(state: Mapping[str, Any]) -> Sequence[str] | None:
    enabled: Sequence[str] | None = state.get(CONFIG, {}).get("tools")
    return enabled


def _limit_history(session: Session) -> None:
    """Limit the messages that the model receives in this session to the `history` value of `PlanAgent.configure`."""
    view = context_of(session).conversation.current_view()
    if isinstance(view, LimitedView):
        view.limit = session.state.get(CONFIG, {}).get("history")
