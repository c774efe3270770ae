"""Where `actgent top` and `actgent watch` look, as options."""

import os
import re
from pathlib import Path

import attrs
from cyclopts import Parameter

from actgent.errors import ConfigurationError

ADDRESS = "http://127.0.0.1:8300"
_HOST = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
"""An address without `http://`, as `actgent serve --bind` takes it."""
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
        return self.at.startswith(("http://", "https://")) or _HOST.fullmatch(self.at) is not None

    @property
    def url(self) -> str:
        """The server's address, also where what `actgent serve` prints was given: with `/v1`, or the dashboard's with its key."""
        address = self.at if "://" in self.at else f"http://{self.at}"
        return address.partition("#")[0].rstrip("/").removesuffix("/v1")

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
            why = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"the token cannot be read: {why}: {self.token_file}") from error
        if not given or not given.strip() or not given.strip().isascii():
            raise ConfigurationError(
                f"{self.url} takes a token: set {TOKEN}, or name its file by --token-file; `actgent token new` makes one"
            )
        return given.strip()
