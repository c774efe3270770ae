"""The pages of webhooks and dead letters on the dashboard."""

import pytest

from actgent import ActorFailed, Webhook, new_webhook_secret
from tests.web.conftest import Parser

WAIT = {"prefer": "wait=20"}


async def test_a_failed_delivery_is_sent_again(serving, receiving, screen):
    """The page lists the failed delivery with its reason. After *Send again* the receiver gets it."""
    status = [503]
    with receiving(lambda *_: status[0]) as receiver:
        hook = Webhook(
            receiver.url,
            secrets=[new_webhook_secret()],
            events=["reply"],
            allow=["127.0.0.1"],
            retry_timeout=0.02,
        )
        async with serving(notify=[hook]) as served, served.client("root") as root:
            await root.put("/v1/sessions/s1", json={"agent": "clerk"})
            await root.post("/v1/sessions/s1/messages", json={"input": "hello"}, headers=WAIT)
            await screen.open(f"{served.gateway.url}/#key={served.tokens['root']}")
            await screen.until("document.querySelector('nav')")
            await screen.go("#/webhooks")
            await screen.until("document.querySelector('main tbody button')")
            row = await screen.run("document.querySelector('main tbody tr').innerText")
            assert "s1" in row
            assert "503" in row
            status[0] = 204
            await screen.run("document.querySelector('main tbody button').click()")
            await screen.until(
                "document.querySelector('main [role=status]').innerText === '1 delivery queued.'"
            )
            await screen.until("document.querySelector('main').innerText.includes('No delivery failed.')")
            assert [body["data"]["session_id"] for body in receiver.bodies()] == ["s1"]


async def test_a_dead_letter_is_sent_again(serving, screen):
    """The page lists the dead letter with its reason as text. After *Send again* the list is empty."""
    async with serving() as served:
        parser = await served.runtime.spawn(Parser, name="parser")
        with pytest.raises(ActorFailed):
            await parser.ask("<b>seven</b>")
        await screen.open(f"{served.gateway.url}/#key={served.tokens['root']}")
        await screen.until("document.querySelector('nav')")
        await screen.go("#/dead-letters")
        await screen.until("document.querySelector('main section button')")
        assert "<b>seven</b>" in await screen.run("document.querySelector('main section').innerText")
        Parser.is_repaired = True
        await screen.run("document.querySelector('main section button').click()")
        await screen.until("document.querySelector('main .empty')")
        assert served.runtime.dead_letters == ()
