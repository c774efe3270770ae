"""Dependencies of tools: the value or function in `deps=`, its type check, and the error if deps are missing."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, get_origin

import attrs

from actgent.agents.session import Session, session_of_context
from actgent.errors import ConfigurationError, DepsMissing
from actgent.modes.mode_enforcement import Modes
from actgent.runtime.sessions.new_session import OnSession
from actgent.sessions.session_context import SessionContext
from actgent.support.field_repr import FieldRepr
from actgent.tools.outputs.result_text import error_text
from actgent.tools.tool_registry import ToolRegistry

_WAS_GIVEN = "its deps from before the restart are lost, as deps are not written to the journal"


@attrs.frozen(eq=False, repr=False)
class AgentDeps(FieldRepr):
    """Value or function in `deps=` of one agent, from which its tools get `ToolContext.deps`.

    The order of precedence is: deps of the run, of the session, of the agent, of the parent session.
    """

    agent: str
    """Name of the agent."""
    value: Any
    """Argument `deps=`: a value for all sessions, or an async function of the session; None if the agent has no deps."""
    tools: ToolRegistry
    """Tools of the agent, whose declared types the deps must fit."""

    def __attrs_post_init__(self) -> None:
        self.check(self.value)

    @property
    def is_function(self) -> bool:
        """True if `deps=` is an async function that makes the deps of each session, and not one value for all sessions."""
        return inspect.iscoroutinefunction(self.value)

    @property
    def shared(self) -> Any:
        """The value in `deps=` that all sessions share; None if a function makes a value for each session."""
        return None if self.is_function else self.value

    def check(self, value: Any) -> None:
        """Check that deps have the type that the tools declare. An async function that makes deps, and None, are accepted.

        Raises:
            ConfigurationError: The deps do not fit a tool; the text names the tool and both types.
        """
        if value is None or inspect.iscoroutinefunction(value):
            return
        for tool in self.tools:
            expected = _class_of(tool.deps_type)
            if expected is not None and not _fits(value, expected):
                raise ConfigurationError(
                    f"agent {self.agent!r}: deps= is a {type(value).__name__}, and tool {tool.name!r} takes "
                    f"ToolContext[{expected.__name__}]: pass a {expected.__name__}, or an async function of the session "
                    "that returns one"
                )

    def first_hooks(self, modes: Modes | None) -> list[OnSession]:
        """Return internal `on_session` functions, which run before those of the program.

        The first creates the deps of the session, if `deps=` is a function. The second replaces a mode that the agent no
        longer has, if the agent has `modes`.
        """
        hooks: list[OnSession] = [self.give] if self.is_function else []
        return hooks if modes is None else [*hooks, modes.replace_unknown_mode]

    async def give(self, session: Session[Any]) -> None:
        """Call the agent's deps function and store the result in the session, unless the session has its own deps.

        It runs before the first message of the session, and again after a restart.

        Raises:
            DepsMissing: The function failed; the exception is the cause.
            ConfigurationError: The returned value does not fit a tool.
        """
        provide: Callable[[Session[Any]], Awaitable[Any]] = self.value
        if session.own_deps is not None:
            return
        try:
            value = await provide(session)
        except Exception as error:
            why = f"its agent's function for deps failed ({error_text(error)})"
            raise DepsMissing(self.agent, session.id, why) from error
        self.check(value)
        session.store_created_deps(value)

    def missing_to_resume(self, context: SessionContext, *, was_given: bool) -> DepsMissing | None:
        """Return the error for a loaded session that has unfinished work but lacks deps; None if it can resume.

        A session without unfinished work needs no deps. `was_given` is True if the program passed deps to the
        session or one of its runs before the restart.
        """
        has_work = was_given or bool(context.acceptances) or context.checkpoint is not None
        return self.missing(context, was_given=was_given) if has_work else None

    def missing(self, context: SessionContext, *, was_given: bool) -> DepsMissing | None:
        """Return the error for a session whose next turn needs deps that are not set; None if the turn can run.

        `was_given` is True if the program passed deps to the session or its run before a restart. Then the
        program must pass them again, even if the agent has default deps.
        """
        session = session_of_context(context)
        if was_given:
            return None if session.own_deps is not None else DepsMissing(self.agent, context.id, _WAS_GIVEN)
        needs = self.tools.deps_tool
        if not needs or session.deps is not None:
            return None
        return DepsMissing(self.agent, context.id, f"tool {needs!r} needs deps, and none are set")


def _class_of(annotation: Any) -> type | None:
    """Return the class in the annotation `ToolContext[CLASS]`, for the type check of deps; None if it is not a class."""
    declared = get_origin(annotation) or annotation
    return declared if isinstance(declared, type) and declared is not object else None


def _fits(value: Any, expected: type) -> bool:
    try:
        return isinstance(value, expected)
    except TypeError:  # a Protocol that only type checkers know
        return True
