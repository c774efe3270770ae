"""`actgent token`: the tokens of a gateway, made, listed and revoked in their file."""

from datetime import UTC, datetime
from pathlib import Path

from actgent.cli.terminal import Terminal
from actgent.errors import ConfigurationError, nearest
from actgent.web.tokens import AccessToken, days_from_now, new_token, read_tokens, write_tokens


def make_token(
    file: str, terminal: Terminal, *, name: str, owner: str, scopes: tuple[str, ...], days: float | None
) -> int:
    """Add a token to a file, and show it this once."""
    known = _known(file)
    if any(token.name == name for token in known):
        raise ConfigurationError(f"{file} has a token {name!r} already: revoke it, or choose another name")
    expires = None if days is None else days_from_now(days)
    secret, token = new_token(name, owner=owner, scopes=scopes, expires=expires)
    write_tokens(Path(file), [*known, token])
    terminal.raw(secret)
    terminal.notice(f"this is shown once; {file} holds its digest alone")
    return 0


def list_tokens(file: str, terminal: Terminal) -> int:
    """Name the tokens of a file."""
    known = _known(file)
    if not known:
        terminal.notice(f"there is no token in {file}: `actgent token new` makes one")
    for token in known:
        scopes = ", ".join(sorted(token.scopes))
        terminal.line(f"{token.name}: {token.owner}, {scopes}, {expiry_of(token)}")
    return 0


def revoke_token(file: str, name: str, terminal: Terminal) -> int:
    """Take a token out of a file: gateways that read it refuse it a second later."""
    known = _known(file)
    left = [token for token in known if token.name != name]
    if len(left) == len(known):
        raise ConfigurationError(
            f"{file} has no token {name!r}: {nearest(name, sorted(token.name for token in known))}"
        )
    write_tokens(Path(file), left)
    terminal.notice(f"{name} is not taken any more")
    return 0


def _known(file: str) -> list[AccessToken]:
    return read_tokens(Path(file)) if Path(file).exists() else []


def expiry_of(token: AccessToken) -> str:
    """When a token ends, in words."""
    if token.expires is None:
        return "without end"
    return f"until {datetime.fromtimestamp(token.expires, UTC):%Y-%m-%d %H:%M} UTC"
