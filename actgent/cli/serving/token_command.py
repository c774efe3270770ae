"""`actgent token`: create, list and revoke access tokens in a token file."""

from datetime import UTC, datetime
from pathlib import Path

from actgent.cli.terminal_io import Terminal
from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.web.access_tokens import AccessToken, days_from_now, new_token, read_tokens, write_tokens


def make_token(
    file: str, terminal: Terminal, *, name: str, owner: str, scopes: tuple[str, ...], days: float | None
) -> int:
    """Create an access token, add its entry to the token file, and print the token once.

    Raises:
        ConfigurationError: The file already has a token with this name, or a scope is unknown.
    """
    tokens = _read_existing(file)
    if any(token.name == name for token in tokens):
        raise ConfigurationError(f"{file} already has a token {name!r}: revoke it, or choose another name")
    expires = None if days is None else days_from_now(days)
    secret, token = new_token(name, owner=owner, scopes=scopes, expires=expires)
    write_tokens(Path(file), [*tokens, token])
    terminal.json_line(secret)
    terminal.notice(f"the token is shown only once; {file} stores its digest")
    return 0


def list_tokens(file: str, terminal: Terminal) -> int:
    """Print the entries of the token file with owner, scopes and expiry."""
    tokens = _read_existing(file)
    if not tokens:
        terminal.notice(f"{file} has no tokens: `actgent token new` creates one")
    for token in tokens:
        scopes = ", ".join(sorted(token.scopes))
        terminal.line(f"{token.name}: {token.owner}, {scopes}, {format_expiry(token)}")
    return 0


def revoke_token(file: str, name: str, terminal: Terminal) -> int:
    """Remove the entry of a token from the token file. Running servers reject the token within one second.

    Raises:
        ConfigurationError: The file has no token with this name.
    """
    tokens = _read_existing(file)
    remaining = [token for token in tokens if token.name != name]
    if len(remaining) == len(tokens):
        raise ConfigurationError(
            f"{file} has no token {name!r}: {did_you_mean_or_list(name, sorted(token.name for token in tokens))}"
        )
    write_tokens(Path(file), remaining)
    terminal.notice(f"revoked {name}")
    return 0


def _read_existing(file: str) -> list[AccessToken]:
    return read_tokens(Path(file)) if Path(file).exists() else []


def format_expiry(token: AccessToken) -> str:
    """Return the expiry of a token as text, in UTC, or `no expiry`."""
    if token.expires is None:
        return "no expiry"
    return f"until {datetime.fromtimestamp(token.expires, UTC):%Y-%m-%d %H:%M} UTC"
