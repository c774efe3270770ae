"""How a browser gets a token: by the one-time key that the terminal shows."""

import trio
from starlette.responses import Response

from actgent.web.problems import Problem
from actgent.web.tokens import SCOPES

from .endpoints import JSON, Endpoint, HTTPCall
from .views import to_date

_LOGIN = {
    "type": "object",
    "properties": {"key": {"type": "string", "minLength": 1, "maxLength": 500}},
    "required": ["key"],
    "additionalProperties": False,
}


async def exchange_key(call: HTTPCall) -> Response:
    """Exchange a one-time key for a token of 12 hours; a key counts once, in the process that showed it."""
    gateway = call.gateway
    found = gateway.logins.exchange(call.body["key"], now=gateway.reach.runtime.clock.now())
    if found is None:
        gateway.meters.note_wrong(call.client, now=trio.current_time())
        raise Problem(
            "unauthorized", "the key was used before, or it is of another run: sign in with a token"
        )
    secret, token = found
    return JSON({"token": secret, "owner": token.owner, "expires_at": to_date(token.expires or 0.0)})


async def get_token(call: HTTPCall) -> Response:
    """The token of the request: its owner, what it may, and when it expires."""
    caller = call.caller
    return JSON(
        {
            "name": caller.token.name,
            "owner": caller.owner,
            "scopes": [each for each in SCOPES if caller.allows(each)],
            "expires_at": to_date(caller.token.expires or 0.0),
        }
    )


ENDPOINTS = (
    Endpoint(verb="POST", path="/login", answer=exchange_key, scope=None, body=_LOGIN),
    Endpoint(verb="GET", path="/token", answer=get_token, scope="read"),
)
