"""What a developer may pass to an agent, checked before anything runs."""

from collections.abc import Mapping

from actgent.errors import ConfigurationError
from actgent.protocols.base import Protocol
from actgent.tools.base import Tool

from .limits import Limits


def check_arguments(*, name: object, tools: object, protocol: object, limits: object) -> None:
    """Refuse what type checkers would refuse, for those who use none.

    Raises:
        ConfigurationError: one of these is wrong; the text names it.
    """
    if not isinstance(name, str) or not name.strip():
        raise ConfigurationError("an agent needs a name= that is a text and not empty")
    if isinstance(tools, Tool):
        raise ConfigurationError(f"tools= takes a list: tools=[{tools.name}]")
    if not isinstance(protocol, Protocol | None):
        raise ConfigurationError(f"protocol= takes a Protocol object, e.g. Bare(), not {protocol!r}")
    if not isinstance(limits, Limits | None):
        raise ConfigurationError(
            f"limits= takes Limits(...), e.g. Limits(model_calls=3), not {type(limits).__name__}"
        )


def check_routes(routes: Mapping[str, object], *, kind: type) -> None:
    """Refuse routes to something else than agents.

    Raises:
        ConfigurationError: the text names the route.
    """
    for action, target in routes.items():
        if not isinstance(target, kind):
            raise ConfigurationError(f"the route {action!r} leads to an Agent, not to {target!r}")


def to_text(name: str, value: object) -> str:
    """A text, or a list of texts as one.

    Raises:
        ConfigurationError: neither; the text names the argument.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    raise ConfigurationError(f"{name}= takes a text, not {type(value).__name__}")


def check_seconds(name: str, value: object) -> None:
    """Refuse what is no time to wait.

    Raises:
        ConfigurationError: not a number, or less than zero.
    """
    if not (isinstance(value, int | float) and value >= 0):
        raise ConfigurationError(f"{name}= is a number of seconds, at least 0, not {value!r}")
