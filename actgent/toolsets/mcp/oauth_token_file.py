"""OAuth settings and the token file, which keeps the authorization of MCP servers between runs.

The file is readable by its owner only (0600), and is replaced atomically. Only one process at a time changes it, because
servers that rotate refresh tokens accept each of them once.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs

from actgent.errors import ConfigurationError
from actgent.support.files_shared_by_processes import write_whole
from actgent.support.strict_json import load_document

VERSION = 1
_KEYS = frozenset(("tokens", "scope", "client_id", "client_secret", "client_metadata_url", "redirect_port"))


@attrs.frozen(kw_only=True)
class OAuthSettings:
    """OAuth settings of an MCP server."""

    tokens: Path
    """Path of the file that stores the tokens."""
    scope: str = ""
    """Requested scope; empty requests the scope that the server names."""
    client_id: str = ""
    """Id of a pre-registered client; empty uses `client_metadata_url` or registers a client dynamically."""
    client_secret: str = attrs.field(default="", repr=False)
    """Secret of a pre-registered client; empty if it has none."""
    client_metadata_url: str = ""
    """HTTPS URL of a client metadata document, used as the client's id if the server supports it; empty for no document."""
    redirect_port: int = 0
    """Local port that the authorization server redirects to; 0 uses any free port."""

    @classmethod
    def parse(cls, value: str | Path | Mapping[str, Any]) -> "OAuthSettings":
        """Create settings from the path of a token file, or from a mapping with the path as `tokens`.

        Raises:
            ConfigurationError: A key or value is invalid.
        """
        options = dict(value) if isinstance(value, Mapping) else {"tokens": value}
        if unknown := sorted(options.keys() - _KEYS):
            raise ConfigurationError(
                f"oauth= has no option {unknown[0]!r} (options: {', '.join(sorted(_KEYS))})"
            )
        if not isinstance(path := options.pop("tokens", None), str | Path) or not str(path):
            raise ConfigurationError("oauth= must name the token file: oauth='mcp-tokens.json'")
        port = options.get("redirect_port", 0)
        if type(port) is not int or not 0 <= port < 65_536:  # noqa: PLR2004 - TCP's ports
            raise ConfigurationError(f"oauth=: redirect_port must be a port number, not {port!r}")
        if wrong := sorted(
            key for key, text in options.items() if key != "redirect_port" and not isinstance(text, str)
        ):
            raise ConfigurationError(f"oauth=: {wrong[0]} must be a string")
        if document := options.get("client_metadata_url"):
            parts = urlsplit(str(document))
            if parts.scheme != "https" or not parts.hostname or parts.path in ("", "/"):
                raise ConfigurationError(
                    f"oauth=: client_metadata_url must be an https URL with a path, not {document!r:.200}"
                )
            if options.get("client_id"):
                raise ConfigurationError("oauth=: pass either client_id or client_metadata_url, not both")
        return cls(tokens=Path(path).expanduser(), **options)


def resolve_token_path(value: object, folder: Path) -> Any:
    """Resolve the token path in the `oauth` value of a servers file against the folder of that file."""
    if isinstance(value, str):
        return str(folder / Path(value).expanduser())
    if isinstance(value, Mapping) and isinstance(value.get("tokens"), str):
        return {**value, "tokens": str(folder / Path(value["tokens"]).expanduser())}
    return value


@attrs.frozen
class TokenFile:
    """Token file with one entry per server URL."""

    path: Path
    """Path of the token file."""

    def read(self, url: str) -> dict[str, Any]:
        """Return the stored authorization of the server at `url`; empty if the file has none.

        Raises:
            ConfigurationError: The file is not a token file.
        """
        found: dict[str, Any] = self._servers().get(url, {})
        return found

    def write(self, url: str, entry: Mapping[str, Any]) -> None:
        """Replace the stored authorization of the server at `url`; an empty mapping removes it.

        The caller must be inside `file_change(path)`.

        Raises:
            ConfigurationError: The file is not a token file, or cannot be written.
        """
        servers = self._servers()
        servers.pop(url, None)
        if entry:
            servers[url] = dict(entry)
        text = json.dumps({"version": VERSION, "servers": servers}, indent=2, sort_keys=True) + "\n"
        try:
            write_whole(self.path, text, mode=0o600)
        except OSError as error:
            raise ConfigurationError(f"{self.path} cannot be written: {error.strerror}") from error

    def _servers(self) -> dict[str, Any]:
        try:
            data = load_document(self.path.read_text(encoding="utf-8"))
            if data["version"] != VERSION:
                raise ConfigurationError(
                    f"{self.path}: a newer version of actgent wrote this token file: upgrade actgent"
                )
            return {str(url): dict(entry) for url, entry in data["servers"].items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigurationError(f"{self.path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{self.path} is not a token file: remove it and authorize the servers again"
            ) from error
