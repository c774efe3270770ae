"""Option groups shared by several commands: limits, and conversation options."""

from pathlib import Path
from typing import Annotated, Any

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number

from actgent.errors import ConfigurationError
from actgent.limits_and_schedules.limits import FORMS, OPTIONS, Limits


def _option(name: str) -> Any:
    """Return an attrs field for the command-line option of a limit.

    Counts take whole numbers of at least 1, others positive numbers.
    """
    if FORMS[name]["type"] == "integer":
        kind: Any = Annotated[int, Parameter(validator=Number(gte=1), help=OPTIONS[name])]
    else:
        kind = Annotated[float, Parameter(validator=Number(gt=0), help=OPTIONS[name])]
    return attrs.field(default=None, type=kind | None)


@Parameter(name="*")
@attrs.frozen(kw_only=True, these={f"limit_{name}": _option(name) for name in OPTIONS})
class LimitOptions:
    """Options `--limit-NAME`, one for each field of `Limits`. They apply to the whole conversation, including child sessions."""

    @property
    def limits(self) -> Limits:
        """Limits that the options set."""
        return Limits(**{name: getattr(self, f"limit_{name}") for name in OPTIONS})


def to_limits(options: LimitOptions | None) -> Limits | None:
    """Convert the limit options to `Limits`. None if the user gave no limit option."""
    return None if options is None else options.limits


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ConversationOptions:
    """Options of a conversation: message, attachments, journal and output format."""

    text: Annotated[str | None, Parameter(name=["--message", "-m"], allow_leading_hyphen=True)] = None
    """Send this message and exit; `-` reads the message from standard input."""
    attach: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = ()
    """Image, PDF or text file to attach to the first message; may be given several times."""
    journal: str | None = None
    """Journal that stores the conversation: a file, or postgres://HOST/DATABASE."""
    continue_latest: Annotated[bool, Parameter(name="--continue", negative=(), show_default=False)] = False
    """Resume the session of the journal that changed last."""
    session: str | None = None
    """Id of the session in the journal to resume, or to create."""
    json_output: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False
    """Print one JSON object per line: replies, tool results, events and failures."""

    def merge_into(self, options: Any) -> Any:
        """Return a copy of the chat options with these values.

        Raises:
            ConfigurationError: Two options exclude each other.
        """
        if self.text is not None and options.message is not None:
            raise ConfigurationError("the message is given twice: pass it as an argument or with --message")
        if self.continue_latest and self.session is not None:
            raise ConfigurationError(
                "--continue and --session exclude each other: --continue resumes the latest session, --session a named one"
            )
        return attrs.evolve(
            options,
            message=options.message if self.text is None else self.text,
            attach=self.attach,
            journal=self.journal,
            continue_latest=self.continue_latest,
            session=self.session,
            json=self.json_output,
        )


def is_message_text(argument: str) -> bool:
    """Return True if the only argument of `actgent chat` is a message: several words that are not an existing file."""
    return (
        len(argument.split()) > 1
        and not Path(argument.partition(":")[0]).exists()
        and not argument.endswith(".py")
    )
