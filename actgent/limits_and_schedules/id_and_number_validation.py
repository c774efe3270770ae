"""Checks of common arguments: ids, seconds, counts, flags and limits."""

from actgent.errors import ConfigurationError

from .limits import SHARED, Limits

MAX_ID_CHARS = 200
"""Maximum length in characters of an id or name that a program passes. Derived ids can be longer."""


def check_limits(limits: object) -> None:
    """Raise if a `limits=` argument is neither None nor `Limits`.

    Raises:
        ConfigurationError: The value has another type.
    """
    if not isinstance(limits, Limits | None):
        raise ConfigurationError(
            f"limits= must be Limits(...), e.g. Limits(model_calls=3), not {type(limits).__name__}"
        )


def check_session_limits(limits: object) -> None:
    """Raise if session limits set a limit that applies to turns only.

    Raises:
        ConfigurationError: The value is not a `Limits`, or it sets a limit of a turn.
    """
    check_limits(limits)
    if isinstance(limits, Limits) and (bounds := limits.changed_turn_limits):
        name, value = next(iter(bounds.items()))
        raise ConfigurationError(
            f"Limits({name}={value!r}) bounds turns and not a session: set it with Agent(limits=...); "
            f"limits= of a session takes {', '.join(SHARED)}"
        )


def check_id(name: str, value: object) -> None:
    """Raise if an id is not a short printable text. `name` is the argument's name in the error.

    Ids are written to logs, terminals and databases without escaping. None is accepted.

    Raises:
        ConfigurationError: The id is not a text, is blank or too long, or has an unprintable character.
    """
    if value is None:
        return
    if not (isinstance(value, str) and value.strip()):
        raise ConfigurationError(f"{name}= must be a string that is not empty, not {value!r:.200}")
    if len(value) > MAX_ID_CHARS:
        raise ConfigurationError(
            f"{name}= may have at most {MAX_ID_CHARS} characters, but {value[:20]!r}... has {len(value)}"
        )
    if not value.isprintable():
        place, character = next((at, each) for at, each in enumerate(value, 1) if not each.isprintable())
        raise ConfigurationError(
            f"{name}= must be printable text on one line: remove character {place}, U+{ord(character):04X}, of {value!r}"
        )


def check_known_id(name: str, value: object) -> None:
    """Raise if the id of an existing object is not a text, e.g. if the object itself was passed.

    A text of any form is accepted. `name` is the argument's name in the error.

    Raises:
        ConfigurationError: The id is not a text.
    """
    if not isinstance(value, str):
        raise ConfigurationError(f"{name}= must be an id, which is a string, not {value!r:.200}")


def at_least_one(name: str, value: int) -> int:
    """Return `value` if it is a whole number of at least 1. `name` is the argument's name in the error.

    Raises:
        ConfigurationError: The value is not a whole number of at least 1.
    """
    if type(value) is not int or value < 1:
        raise ConfigurationError(f"{name}= must be a whole number of at least 1, not {value!r}")
    return value


def check_flag(name: str, value: object) -> bool:
    """Return `value` if it is a bool. `name` is the argument's name in the error.

    Raises:
        ConfigurationError: The value is not True or False.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name}= must be True or False, not {value!r:.200}")
    return value


def check_seconds(name: str, value: object) -> None:
    """Raise if a value is not a duration in seconds. `name` is the argument's name in the error.

    Raises:
        ConfigurationError: The value is not a number, or is negative.
    """
    if not (isinstance(value, (int, float)) and value >= 0):
        raise ConfigurationError(f"{name}= must be a number of seconds of at least 0, not {value!r}")
