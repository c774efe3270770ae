"""Where `actgent top` and `actgent watch` look, as options."""

import os
from pathlib import Path

import attrs
from cyclopts import Parameter

from actgent.errors import ConfigurationError

ADDRESS = "http://127.0.0.1:8300"
TOKEN = "ACTGENT_TOKEN"  # noqa: S105 - the name of a variable


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class PlaceOptions:
    """Where to look."""

    at: str = ADDRESS
    """The address of a running server, or a journal (a file, or postgres://HOST/DATABASE), which is only read."""
    token_file: str | None = None
    """The file with the token for a server; without it, the variable ACTGENT_TOKEN."""

    @property
    def is_server(self) -> bool:
        """True for the address of a server."""
        return self.at.startswith(("http://", "https://"))

    def token(self) -> str:
        """The token.

        Raises:
            ConfigurationError: there is none.
        """
        try:
            given = (
                os.environ.get(TOKEN) if self.token_file is None else Path(self.token_file).read_text("utf-8")
            )
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the token cannot be read: {self.token_file}") from error
        if not given or not given.strip() or not given.strip().isascii():
            raise ConfigurationError(
                f"{self.at} takes a token: set {TOKEN}, or name its file by --token-file; `actgent token new` makes one"
            )
        return given.strip()
