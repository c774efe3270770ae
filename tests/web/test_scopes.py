"""Each scope allows exactly its endpoints. The test requests each endpoint with a token of each scope."""

import pytest

from actgent.web.access_tokens import new_token
from actgent.web.routes.endpoint_table import ENDPOINTS

OPENS = {
    "read": {"read"},
    "chat": {"read", "chat"},
    "approve": {"read", "approve"},
    "journal": {"journal"},
    "metrics": {"metrics"},
    "admin": {"read", "chat", "approve", "journal", "metrics", "admin"},
}
"""Allowed scopes as in the documentation."""


@pytest.mark.parametrize("scope", OPENS)
async def test_scope_allows_its_endpoints(serving, scope):
    """A missing scope is a 403 that names the required scope, before any object is read."""
    secret, token = new_token("one", owner="ada", scopes=(scope,))
    async with serving(tokens=[token]) as served:
        served.tokens["one"] = secret
        async with served.client("one", **{"content-type": "application/json"}) as client:
            for endpoint in ENDPOINTS:
                path = "/v1" + endpoint.path.replace("{", "").replace("}", "")
                async with client.stream(endpoint.verb, path) as answer:
                    if endpoint.scope is None or endpoint.scope in OPENS[scope]:
                        assert answer.status_code not in (401, 403), path
                    else:
                        await answer.aread()
                        assert answer.status_code == 403, path
                        assert f"scope `{endpoint.scope}`" in answer.json()["detail"], path


async def test_token_of_the_request_is_described(serving):
    async with serving() as served, served.client("chatter") as client:
        found = (await client.get("/v1/me")).json()
    assert found == {"name": "chatter", "owner": "ada", "scopes": ["read", "chat"], "expires_at": None}
