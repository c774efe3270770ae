"""Dead letters over HTTP and in the client: administrators list them and send them again."""

import pytest
import trio

from actgent import ActgentError, ActorFailed, PermissionDenied, connect
from tests.web.conftest import Parser


@pytest.fixture
async def failed(served, monkeypatch):
    """Yield a gateway whose actor failed to process one message."""
    monkeypatch.setattr(Parser, "is_repaired", False)
    parser = await served.runtime.spawn(Parser, name="parser")
    with pytest.raises(ActorFailed):
        await parser.ask("<b>seven</b>")
    return served


async def letters_of(client):
    answer = await client.get("/v1/dead-letters")
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


async def test_a_letter_is_sent_again(failed):
    """An accepted letter leaves the list. An unknown letter is not found."""
    async with failed.client("root") as root:
        (letter,) = await letters_of(root)
        assert (letter["actor"], letter["error"]) == ("parser", "ValueError")
        assert letter["text"] == "'<b>seven</b>'"
        Parser.is_repaired = True
        path = f"/v1/dead-letters/{letter['id']}/redelivery"
        sent = await root.post(path, json={})
        assert (sent.status_code, sent.json()["id"]) == (202, letter["id"])
        assert await letters_of(root) == []
        assert (await root.post(path, json={})).status_code == 404


async def test_a_letter_that_fails_again_is_listed_again(failed):
    async with failed.client("root") as root:
        (letter,) = await letters_of(root)
        await root.post(f"/v1/dead-letters/{letter['id']}/redelivery", json={})
        with trio.fail_after(20):
            while not (again := await letters_of(root)):  # noqa: ASYNC110 - asked over HTTP
                await trio.sleep(0.02)
        assert again[0]["actor"] == "parser"


async def test_dead_letters_need_the_scope_admin(failed):
    async with failed.client() as ada:
        assert (await ada.get("/v1/dead-letters")).status_code == 403
        assert (await ada.post("/v1/dead-letters/x/redelivery", json={})).status_code == 403


async def test_the_client_lists_and_sends_letters(failed):
    async with connect(failed.gateway.url, token=failed.tokens["root"]) as client:
        (letter,) = await client.dead_letters()
        (local,) = failed.runtime.dead_letters
        assert (letter.id, letter.actor, letter.reason) == (local.id, local.actor, local.reason)
        Parser.is_repaired = True
        await client.send_again(letter)
        assert await client.dead_letters() == ()
        with pytest.raises(ActgentError):
            await client.send_again(letter)
    async with connect(failed.gateway.url, token=failed.tokens["ada"]) as client:
        with pytest.raises(PermissionDenied):
            await client.dead_letters()
