"""What is said in a conversation and where it is kept, as options of `actgent chat` and `actgent run`."""

from pathlib import Path
from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from actgent.errors import ConfigurationError


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class TalkOptions:
    """Options of a conversation."""

    say: Annotated[str | None, Parameter(name=["--message", "-m"], allow_leading_hyphen=True)] = None
    """What to say, and end; `-` is all of standard input."""
    attach: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = ()
    """A picture, a PDF or a text file that goes with the first message; may be given several times."""
    journal: str | None = None
    """Keep the conversation in this file, or in postgres://HOST/DATABASE."""
    goes_on: Annotated[bool, Parameter(name="--continue", negative=(), show_default=False)] = False
    """Go on with the conversation in the journal that was last talked in."""
    session: str | None = None
    """Go on with the session of this id in the journal, or begin one."""
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False
    """Write a JSON object a line for programs: replies, tool results, events and failures."""

    def put_into(self, options: Any) -> Any:
        """The same options of a chat with these.

        Raises:
            ConfigurationError: two of them do not go together.
        """
        if self.say is not None and options.message is not None:
            raise ConfigurationError("the message is given twice: as an argument, and by --message")
        if self.goes_on and self.session is not None:
            raise ConfigurationError(
                "--continue goes on with the last session, --session with a named one: give one of them"
            )
        return attrs.evolve(
            options,
            message=options.message if self.say is None else self.say,
            attach=self.attach,
            journal=self.journal,
            goes_on=self.goes_on,
            session=self.session,
            json=self.as_json,
        )


def is_message(argument: str) -> bool:
    """Return True if the only argument of `actgent chat` is something to say: words, and no file of that name."""
    return (
        len(argument.split()) > 1
        and not Path(argument.partition(":")[0]).exists()
        and not argument.endswith(".py")
    )
