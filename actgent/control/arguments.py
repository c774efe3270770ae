"""Arguments that many calls take: ids, seconds, numbers and limits, checked where they come in."""

from actgent.errors import ConfigurationError

from .limits import SHARED, Limits

MAX_ID = 200
"""Characters of an id or name that a program gives. Those that are made from others may be longer."""


def check_limits(limits: object) -> None:
    """Refuse what are no limits.

    Raises:
        ConfigurationError: they are given and something else.
    """
    if not isinstance(limits, Limits | None):
        raise ConfigurationError(
            f"limits= takes Limits(...), e.g. Limits(model_calls=3), not {type(limits).__name__}"
        )


def check_session_limits(limits: object) -> None:
    """Refuse limits of a session that would not hold: only the shared bounds count for a session as a whole.

    Raises:
        ConfigurationError: The value is no `Limits`, or sets a bound of a turn.
    """
    check_limits(limits)
    if isinstance(limits, Limits) and (bounds := limits.bounds_of_turns):
        name, value = next(iter(bounds.items()))
        raise ConfigurationError(
            f"Limits({name}={value!r}) bounds turns and not a session: set it with Agent(limits=...); "
            f"limits= of a session takes {', '.join(SHARED)}"
        )


def check_id(name: str, value: object) -> None:
    """Refuse an id that is given and is no bounded, printable text: it reaches logs, terminals and databases as it is.

    Raises:
        ConfigurationError: it is not text, blank, too long, or has a character that is not seen or moves others.
    """
    if value is None:
        return
    if not (isinstance(value, str) and value.strip()):
        raise ConfigurationError(f"{name}= is a text that is not empty, not {value!r:.200}")
    if len(value) > MAX_ID:
        raise ConfigurationError(
            f"{name}= has at most {MAX_ID} characters, not {len(value)}: {value[:20]!r}..."
        )
    if not value.isprintable():
        place, character = next((at, each) for at, each in enumerate(value, 1) if not each.isprintable())
        raise ConfigurationError(
            f"{name}= is printable text on one line: take out character {place}, U+{ord(character):04X}, of {value!r}"
        )


def at_least_one(name: str, value: int) -> int:
    """A number of things.

    Raises:
        ConfigurationError: no whole number, or less than one.
    """
    if type(value) is not int or value < 1:
        raise ConfigurationError(f"{name}= is a whole number, at least 1, not {value!r}")
    return value


def check_flag(name: str, value: object) -> bool:
    """Return a flag.

    Raises:
        ConfigurationError: The value is not True or False.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name}= is True or False, not {value!r:.200}")
    return value


def check_seconds(name: str, value: object) -> None:
    """Refuse what is no time to wait.

    Raises:
        ConfigurationError: not a number, or less than zero.
    """
    if not (isinstance(value, (int, float)) and value >= 0):
        raise ConfigurationError(f"{name}= is a number of seconds, at least 0, not {value!r}")
