"""Options of `top`, `watch` and `webhooks` that select a server or a journal."""

import os
import re
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number

from actgent.cli.command_options import Argument, Flag
from actgent.errors import ConfigurationError

DEFAULT_URL = "http://127.0.0.1:8300"
"""URL of a server with default options."""
_HOST_AND_PORT = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
"""Address without `http://`, as in `actgent serve --bind`."""
_SCHEMES = ("http", "https", "postgres", "postgresql", "sqlite")
TOKEN_VARIABLE = "ACTGENT_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable with the access token."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ServerOptions:
    """Options that select the server or journal to read."""

    at: str = DEFAULT_URL
    """URL of a running server, or a journal to read: a file, or postgres://HOST/DATABASE."""
    token_file: str | None = None
    """File with the access token of the server. Default: the variable ACTGENT_TOKEN."""

    @property
    def is_server(self) -> bool:
        """True if `at` is the address of a server and not a journal.

        Raises:
            ConfigurationError: The address has a scheme of neither a server nor a journal.
        """
        scheme, separator, _ = self.at.partition("://")
        if separator and scheme not in _SCHEMES:
            raise ConfigurationError(
                f"--at must be http://HOST:PORT, https://HOST, postgres://HOST/DATABASE or a journal file, not {scheme[:20]!r}://..."
            )
        return self.at.startswith(("http://", "https://")) or _HOST_AND_PORT.fullmatch(self.at) is not None

    @property
    def url(self) -> str:
        """Base URL of the server, from the address in `at` without `/v1` or the login key of a dashboard link."""
        address = self.at if "://" in self.at else f"http://{self.at}"
        return address.partition("#")[0].rstrip("/").removesuffix("/v1")

    def token(self) -> str:
        """Return the access token from the file or the environment variable.

        Raises:
            ConfigurationError: The access token is missing, unreadable or not ASCII.
        """
        try:
            token = (
                os.environ.get(TOKEN_VARIABLE)
                if self.token_file is None
                else Path(self.token_file).read_text("utf-8")
            )
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"the token cannot be read: {why}: {self.token_file}") from error
        if not token or not token.strip() or not token.strip().isascii():
            raise ConfigurationError(
                f"{self.url} requires an access token: set {TOKEN_VARIABLE} or use --token-file; `actgent token new` creates a token"
            )
        return token.strip()


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class TopOptions:
    """Options of `actgent top`."""

    server: ServerOptions = attrs.field(factory=ServerOptions)
    """Server or journal to read."""
    interval: Annotated[float, Parameter(validator=Number(gte=0.1))] = 1.0
    """Time between two updates in seconds."""
    once: Flag = False
    """Print the state once and exit."""
    json: Flag = False
    """Print one JSON object per update."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class WatchOptions:
    """Options of `actgent watch`."""

    session: Argument = ""
    """Id of the session."""
    server: ServerOptions = attrs.field(factory=ServerOptions)
    """Server or journal to read."""
    agent: str | None = None
    """Name of the agent, if several agents have a session with this id."""
    after: Annotated[int, Parameter(validator=Number(gte=0))] = 0
    """Number of the last event to skip. Only later events are shown; 0 shows all events."""
    once: Flag = False
    """Print existing events and exit."""
    json: Flag = False
    """Print one JSON object per event."""
