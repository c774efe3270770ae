"""Endpoints of the browser login: exchange the one-time key from the terminal for a token, and show the token's scopes."""

import trio

from actgent.web import json_response_types
from actgent.web.access_tokens import SCOPES
from actgent.web.problem_documents import Problem

from .endpoints import JSON, Endpoint, HTTPCall
from .json_serializers import to_date

_LOGIN = {
    "type": "object",
    "properties": {"key": {"type": "string", "minLength": 1, "maxLength": 500}},
    "required": ["key"],
    "additionalProperties": False,
}


async def exchange_key(call: HTTPCall) -> JSON[json_response_types.LoginToken]:
    """Exchange a one-time login key for an access token that is valid for 12 hours.

    A key works once, and only at the server process that printed it.
    """
    gateway = call.gateway
    found = gateway.logins.exchange(call.body["key"], now=gateway.access.runtime.clock.now())
    if found is None:
        gateway.meters.count_unknown_token(call.client, now=trio.current_time())
        raise Problem(
            "unauthorized",
            "the login key was already used, or another process printed it: sign in with a token",
        )
    secret, token = found
    return JSON({"token": secret, "owner": token.owner, "expires_at": to_date(token.expires or 0.0)})


async def get_me(call: HTTPCall) -> JSON[json_response_types.Identity]:
    """Return name, owner, scopes and expiry of the token that the request was sent with."""
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
    Endpoint(verb="GET", path="/me", answer=get_me, scope="read"),
)
