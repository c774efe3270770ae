"""`OAuthSettings` and the file of tokens: what is known of the authorization of servers, kept between runs.

The file is for its user alone (0600), written whole, and changed by one process at a time, since a server that rotates
refresh tokens takes each of them once.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.support.files import write_whole
from actgent.support.strict_json import load_document

VERSION = 1
_KEYS = frozenset(("tokens", "scope", "client_id", "client_secret", "redirect_port"))


@attrs.frozen(kw_only=True)
class OAuthSettings:
    """How a server is authorized by OAuth."""

    tokens: Path
    """The file of tokens."""
    scope: str = ""
    """What is asked for; empty: what the server says that it needs."""
    client_id: str = ""
    """Of a client that was registered by hand; empty: one registers itself."""
    client_secret: str = attrs.field(default="", repr=False)
    redirect_port: int = 0
    """The port on this machine to which the authorization server redirects; 0: any that is free."""

    @classmethod
    def made(cls, given: str | Path | Mapping[str, Any]) -> "OAuthSettings":
        """From the path of a file of tokens, or a mapping with that as `tokens`.

        Raises:
            ConfigurationError: something in it is wrong.
        """
        options = dict(given) if isinstance(given, Mapping) else {"tokens": given}
        if unknown := sorted(options.keys() - _KEYS):
            raise ConfigurationError(f"oauth= has no {unknown[0]!r} (there are: {', '.join(sorted(_KEYS))})")
        if not isinstance(path := options.pop("tokens", None), str | Path) or not str(path):
            raise ConfigurationError("oauth= names the file of tokens: oauth='mcp-tokens.json'")
        port = options.get("redirect_port", 0)
        if type(port) is not int or not 0 <= port < 65_536:  # noqa: PLR2004 - TCP's ports
            raise ConfigurationError(f"oauth=, redirect_port is a port, not {port!r}")
        if wrong := sorted(
            key for key, text in options.items() if key != "redirect_port" and not isinstance(text, str)
        ):
            raise ConfigurationError(f"oauth=, {wrong[0]} is a text")
        return cls(tokens=Path(path).expanduser(), **options)


def in_folder(given: object, folder: Path) -> Any:
    """Return what a file says of OAuth, with the path of its tokens relative to that file's folder."""
    if isinstance(given, str):
        return str(folder / Path(given).expanduser())
    if isinstance(given, Mapping) and isinstance(given.get("tokens"), str):
        return {**given, "tokens": str(folder / Path(given["tokens"]).expanduser())}
    return given


@attrs.frozen
class TokenFile:
    """What a file of tokens holds of servers, each by its URL."""

    path: Path

    def read(self, url: str) -> dict[str, Any]:
        """Return what is known of a server; nothing where there is no file.

        Raises:
            ConfigurationError: it is no file of tokens.
        """
        found: dict[str, Any] = self._servers().get(url, {})
        return found

    def write(self, url: str, known: Mapping[str, Any]) -> None:
        """Put down what is known of a server; nothing removes it. Only in a block of `file_change(path)`.

        Raises:
            ConfigurationError: it is no file of tokens, or cannot be written.
        """
        servers = self._servers()
        servers.pop(url, None)
        if known:
            servers[url] = dict(known)
        text = json.dumps({"version": VERSION, "servers": servers}, indent=2, sort_keys=True) + "\n"
        try:
            write_whole(self.path, text, mode=0o600)
        except OSError as error:
            raise ConfigurationError(f"{self.path} cannot be written: {error.strerror}") from error

    def _servers(self) -> dict[str, Any]:
        try:
            data = load_document(self.path.read_text(encoding="utf-8"))
            if data["version"] != VERSION:
                raise ConfigurationError(f"{self.path}: a newer actgent wrote these tokens")
            return {str(url): dict(known) for url, known in data["servers"].items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigurationError(f"{self.path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{self.path} is no file of tokens: remove it, and authorize the servers again"
            ) from error
