"""The login key of the dashboard is valid once, in one process, and its token for twelve hours."""

import json

import httpx2
import pytest
import trio

from actgent.web.access_tokens import LOGIN_SECONDS, Logins, TokenStore


def key_of(gateway):
    url, _, key = gateway.link.partition("/#key=")
    assert url == gateway.url
    return key


async def log_in(gateway, key, **headers):
    async with httpx2.AsyncClient(base_url=gateway.url) as client:
        return await client.post("/v1/login", json={"key": key}, headers=headers)


async def test_login_key_is_exchanged_once(serving):
    """Of ten concurrent requests with the key, one gets an admin token. The key itself is not a token."""
    async with serving(tokens=None) as served:
        key, answers = key_of(served.gateway), []

        async def exchange():
            answers.append(await log_in(served.gateway, key))

        async with httpx2.AsyncClient(base_url=served.gateway.url) as client:
            as_token = await client.get("/v1/sessions", headers={"authorization": f"Bearer {key}"})
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(exchange)
        values = [each.json() for each in answers if each.status_code == 200]
        refused = [each for each in answers if each.status_code == 401]
        async with httpx2.AsyncClient(base_url=served.gateway.url) as client:
            token = {"authorization": f"Bearer {values[0]['token']}"}
            listed = await client.get("/v1/webhooks", headers=token)
    assert (len(values), len(refused), as_token.status_code, listed.status_code) == (1, 9, 401, 200)
    assert values[0]["owner"] == "admin"
    assert refused[0].headers["www-authenticate"].startswith("Bearer")
    assert refused[0].json()["type"] == "/errors/unauthorized"
    assert values[0]["token"] not in (key, served.gateway.key)


async def test_login_key_is_valid_in_one_process(serving):
    """Another gateway rejects it. With configured tokens there is no key, and the link has none."""
    async with serving(tokens=None) as one, serving(tokens=None) as two, serving() as three:
        assert (await log_in(two.gateway, key_of(one.gateway))).status_code == 401
        assert (await log_in(three.gateway, key_of(one.gateway))).status_code == 401
        assert three.gateway.link == three.gateway.url
        assert (await log_in(one.gateway, key_of(one.gateway))).status_code == 200


async def test_unauthenticated_body_is_limited(serving):
    """A long body without a token is rejected by its length, or while it arrives."""

    async def pieces():
        for _ in range(100):
            yield b" " * 1000

    async with serving(tokens=None) as served, httpx2.AsyncClient(base_url=served.gateway.url) as client:
        kind = {"content-type": "application/json"}
        response = await client.post("/v1/login", json={"key": "x" * 5000})
        untold = await client.post("/v1/login", content=pieces(), headers=kind)
        assert (response.status_code, untold.status_code) == (413, 413)
        assert response.json()["limit"] == 4096


async def test_other_sites_cannot_use_the_login_key(serving):
    """A page of another site, a form and a DNS rebinding name are rejected before the key is checked."""
    async with serving(tokens=None) as served:
        key = key_of(served.gateway)
        for headers in (
            {"origin": "http://evil.example"},
            {"sec-fetch-site": "same-site"},
            {"host": "evil.example"},
        ):
            assert (await log_in(served.gateway, key, **headers)).status_code in (403, 421)
        async with httpx2.AsyncClient(base_url=served.gateway.url) as client:
            form = await client.post("/v1/login", data={"key": key})
            await client.get(f"/v1/login?key={key}")
        assert form.status_code == 415
        assert (await log_in(served.gateway, key)).status_code == 200


def test_login_token_expires_after_twelve_hours():
    """The token is valid up to the last moment."""
    store = TokenStore()
    logins = Logins(store)
    secret, token = logins.exchange(logins.new_key(), now=1000.0)
    assert LOGIN_SECONDS == 12 * 3600

    async def find(now):
        return store.find(secret, now=now)

    assert trio.run(find, 1000.0 + LOGIN_SECONDS - 1) is token
    assert trio.run(find, 1000.0 + LOGIN_SECONDS) is None


@pytest.mark.parametrize("key", ["", "once_", "x" * 501, "\ud800", "once_\n"])
async def test_malformed_login_key_is_rejected(serving, key):
    """The correct key remains valid."""
    async with serving(tokens=None) as served, httpx2.AsyncClient(base_url=served.gateway.url) as client:
        body, headers = json.dumps({"key": key}), {"content-type": "application/json"}
        refused = await client.post("/v1/login", content=body, headers=headers)
        assert refused.status_code in (400, 401, 422)
        assert (await log_in(served.gateway, key_of(served.gateway))).status_code == 200
