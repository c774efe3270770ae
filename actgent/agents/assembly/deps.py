"""What a program gives the tools of its agents, and no journal ever holds: where it comes from, and where it is missing."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, get_origin

import attrs

from actgent.agents.session import Session, face_of
from actgent.errors import ConfigurationError, DepsMissing
from actgent.modes.modes import Modes
from actgent.runtime.sessions.new_session import OnSession
from actgent.sessions.context import SessionContext
from actgent.sessions.waiting.turn_future import CallOptions
from actgent.tools.outputs.results import worded
from actgent.tools.registry import ToolRegistry

_WAS_GIVEN = "it was given deps of its own before the restart, and no journal holds them"


@attrs.frozen(eq=False)
class AgentDeps:
    """The deps of one agent.

    Those of a run go before those of its session, which go before the agent's; a session without any has those of the
    one that it belongs to.
    """

    agent: str
    value: Any
    """A value, an async function of the session that returns it, or None."""
    tools: ToolRegistry

    def __attrs_post_init__(self) -> None:
        self.check(self.value)

    @property
    def is_function(self) -> bool:
        return inspect.iscoroutinefunction(self.value)

    @property
    def shared(self) -> Any:
        """The value for all sessions; None where each has its own."""
        return None if self.is_function else self.value

    def check(self, value: Any) -> None:
        """Refuse deps of another type than a tool takes, as far as a class says so.

        Raises:
            ConfigurationError: the text names the tool and both types.
        """
        if value is None or inspect.iscoroutinefunction(value):
            return
        for tool in self.tools:
            wanted = _class_of(tool.deps_type)
            if wanted is not None and not _fits(value, wanted):
                raise ConfigurationError(
                    f"agent {self.agent!r}: deps= is a {type(value).__name__}, and tool {tool.name!r} takes "
                    f"ToolContext[{wanted.__name__}]: pass a {wanted.__name__}, or an async function of the session "
                    "that returns one"
                )

    def first_hooks(self, modes: Modes | None) -> list[OnSession]:
        """Return what is called with each session before the program's functions are: this first, then its modes."""
        hooks: list[OnSession] = [self.give] if self.is_function else []
        return hooks if modes is None else [*hooks, modes.settle]

    async def give(self, session: Session[Any]) -> None:
        """Call the agent's function for a session that has none of its own: before its first message, and after a restart.

        Raises:
            DepsMissing: it failed; the cause says how.
            ConfigurationError: what it returned is of another type than a tool takes.
        """
        provide: Callable[[Session[Any]], Awaitable[Any]] = self.value
        if session.own_deps is not None:
            return
        try:
            value = await provide(session)
        except Exception as error:
            why = f"its agent's function for deps failed ({worded(error)})"
            raise DepsMissing(self.agent, session.id, why) from error
        self.check(value)
        session.take_made_deps(value)

    def missing(self, context: SessionContext, options: CallOptions) -> DepsMissing | None:
        """Return the error of a turn that needs deps and finds none."""
        if options.deps is not None:
            return None
        was_given = options.journal_form is not None and options.journal_form.deps
        if not was_given and not self.tools.deps_tool:
            return None
        return self._missing(context, was_given=was_given)

    def missing_to_resume(self, context: SessionContext, *, was_given: bool) -> DepsMissing | None:
        """Return the error of a session from the journal; `was_given`: it had deps of its own, or one of its runs had."""
        has_work = was_given or bool(context.mail.acceptances) or context.checkpoint is not None
        return self._missing(context, was_given=was_given) if has_work else None

    def _missing(self, context: SessionContext, *, was_given: bool) -> DepsMissing | None:
        session = face_of(context)
        if was_given:
            return None if session.own_deps is not None else DepsMissing(self.agent, context.id, _WAS_GIVEN)
        needs = self.tools.deps_tool
        if not needs or session.deps is not None:
            return None
        return DepsMissing(self.agent, context.id, f"tool {needs!r} takes deps, and there are none")


def _class_of(annotation: Any) -> type | None:
    """The class in a `ToolContext[...]`, None where none says what fits."""
    wanted = get_origin(annotation) or annotation
    return wanted if isinstance(wanted, type) and wanted is not object else None


def _fits(value: Any, wanted: type) -> bool:
    try:
        return isinstance(value, wanted)
    except TypeError:  # a Protocol that only type checkers know
        return True
