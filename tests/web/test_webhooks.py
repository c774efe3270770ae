"""Webhooks to receivers on loopback that accept, reject, hang, disconnect, redirect and are slow."""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from urllib.parse import quote

import pytest
import trio

from actgent import BareAgent, ConfigurationError, ScriptedLLM, ToolCall, Webhook, new_webhook_secret, tool

SECRET = new_webhook_secret()
LOCAL = ["127.0.0.1"]


def check_signature(headers, body, secrets):
    """Verify a signature as the specification requires of receivers."""
    signed = b".".join((headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body))
    values = [each.removeprefix("v1,") for each in headers["webhook-signature"].split(" ")]
    for secret in secrets:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert expected in values
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 300


async def until(condition):
    """Wait for a condition that other threads change."""
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - threads tell nobody
            await trio.sleep(0.01)


def hook(receiver, **options):
    options = {"secrets": [SECRET], "allow": LOCAL, "pause": 0.01, **options}
    return Webhook(receiver.url, **options)


@asynccontextmanager
async def told(serving, receiver, *more, journal="memory:", **options):
    notify = [hook(receiver, **options), *more]
    async with serving(notify=notify, journal=journal) as served, served.client() as ada:
        yield served, ada


async def say(client, session, words="hello"):
    await client.put(f"/v1/sessions/{session}", json={"agent": "clerk"})
    response = await client.post(
        f"/v1/sessions/{session}/messages", json={"input": words}, headers={"prefer": "wait=20"}
    )
    assert response.status_code in (200, 202), response.text


async def given_up(served):
    """Return the failed notifications that an administrator sees."""
    async with served.client("root") as root:
        items = (await root.get("/v1/webhooks")).json()["items"]
    return [each for item in items for each in item["failed"]]


async def test_events_are_sent_and_signed(serving, receiving):
    """A reply, an approval and the end of a session are each sent once, in order, with a valid signature."""
    with receiving() as receiver:
        async with told(serving, receiver) as (_, ada):
            await ada.put("/v1/sessions/s1", json={"agent": "clerk", "mode": "act"})
            await say(ada, "s1")
            await say(ada, "s1", "deploy it")
            waiting = (await ada.get("/v1/approvals")).json()["items"]
            await ada.post(f"/v1/approvals/{waiting[0]['id']}/decision", json={"approve": {}})
            await until(lambda: len(receiver.got) == 3)
            await ada.post("/v1/sessions/s1/close", json={})
            await until(lambda: len(receiver.got) == 4)
    assert [body["type"] for body in receiver.bodies()] == ["reply", "approval", "reply", "closed"]
    first = receiver.bodies()[0]["data"]
    assert (first["agent"], first["session_id"], first["owner"]) == ("clerk", "s1", "ada")
    assert first["text"] == "you said: hello"
    numbers = [body["data"]["number"] for body in receiver.bodies()]
    assert numbers == sorted(numbers)
    for headers, _ in receiver.got:
        check_signature(headers, headers["raw"], [SECRET])
    assert max(Counter(receiver.tried).values()) == 1


async def test_failed_turn_is_sent_to_webhooks(serving, receiving):
    """The notification has the kind of the failure."""

    def fail(chat):
        raise ValueError("secret words")

    agents = [BareAgent("clerk", llm=ScriptedLLM(fail))]
    with receiving() as receiver:
        async with serving(agents=agents, notify=[hook(receiver)]) as served, served.client() as ada:
            await say(ada, "s1")
            await until(lambda: receiver.bodies("failed"))
    data = receiver.bodies("failed")[0]["data"]
    assert data["failed"] == "model"
    assert "secret words" not in json.dumps(data)


async def test_large_integers_and_surrogates_are_sent(serving, receiving):
    """Receivers, lists and streams get an integer of more than 64 bits and an unpaired surrogate."""

    @tool(approval=True)
    def count(number: int, text: str) -> str:
        """Count."""
        return f"{number} {text}"

    agents = [
        BareAgent(
            "clerk",
            llm=ScriptedLLM([ToolCall("count", {"number": 2**70, "text": "half \ud800"})]),
            tools=[count],
        )
    ]
    with receiving() as receiver:
        async with serving(agents=agents, notify=[hook(receiver)]) as served, served.client() as ada:
            await say(ada, "s1")
            listed = await ada.get("/v1/approvals")
            assert listed.status_code == 200, listed.text
            await until(lambda: receiver.bodies("approval"))
            async with ada.stream("GET", "/v1/sessions/s1/events?after=0") as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("data: ") and "arguments" in line:
                        streamed = line
                        break
    expected = {"number": 2**70, "text": "half \ufffd"}
    assert receiver.bodies("approval")[0]["data"]["arguments"] == expected
    assert listed.json()["items"][0]["arguments"] == expected
    assert str(2**70) in streamed


@pytest.mark.parametrize("answer", [500, "die", (429, ("retry-after", "0")), 302])
async def test_rejected_notification_is_retried_with_its_id(serving, receiving, answer):
    """A receiver that rejects a notification several times gets it again with the same id, before later notifications."""

    def behave(receiver, body):
        return answer if len(receiver.tried) <= 3 else 200

    with receiving(behave) as receiver:
        async with told(serving, receiver) as (_, ada):
            await say(ada, "s1")
            await say(ada, "s1", "again")
            await until(lambda: len(receiver.got) == 2)
    assert [body["data"]["text"] for body in receiver.bodies()] == ["you said: hello", "you said: again"]
    assert Counter(receiver.tried) == {
        receiver.got[0][0]["webhook-id"]: 4,
        receiver.got[1][0]["webhook-id"]: 1,
    }


async def test_hanging_receiver_delays_no_other(serving, receiving):
    """While one receiver hangs, the others get all notifications."""
    with receiving(lambda *_: "hang") as slow, receiving() as good:
        async with told(serving, good, hook(slow, timeout=0.2)) as (served, ada):
            for number in range(20):
                await say(ada, f"s{number}")
            await until(lambda: len(good.got) == 20)
            await until(lambda: len(set(slow.tried)) > 1)
            assert not await given_up(served)


async def test_rejected_session_delays_no_other(serving, receiving):
    """A receiver that rejects the notifications of one session gets those of other sessions."""

    def behave(receiver, body):
        return 500 if body["data"]["session_id"] == "bad" else 200

    with receiving(behave) as receiver:
        async with told(serving, receiver) as (_, ada):
            await say(ada, "bad")
            for number in range(20):
                await say(ada, f"s{number}")
            await until(lambda: len(receiver.got) == 20)


async def test_undelivered_notification_is_listed_as_failed(serving, receiving):
    """After the retry timeout, a notification is listed as failed, and the next one is sent."""

    def behave(receiver, body):
        return 503 if body["data"]["text"] == "you said: bad" else 204

    with receiving(behave) as receiver:
        async with told(serving, receiver, retry_timeout=0.05) as (served, ada):
            await say(ada, "s1", "bad")
            await say(ada, "s1", "good")
            await until(lambda: len(receiver.got) == 1)
            failed = await given_up(served)
            assert [each["session_id"] for each in failed] == ["s1"]
            assert failed[0]["reason"] == "the receiver answered 503"
            assert (await ada.get("/v1/webhooks")).status_code == 403


async def test_failed_notifications_are_redelivered(serving, receiving):
    """Selected or all failed notifications are sent once under their ids. Delivered ones leave the list, and others remain."""
    down = {"s1", "s2", "s3"}

    def behave(receiver, body):
        return 503 if body["data"]["session_id"] in down else 204

    with receiving(behave) as receiver:
        async with (
            told(serving, receiver, retry_timeout=0.05) as (served, ada),
            served.client("root") as root,
        ):
            for session in sorted(down):
                await say(ada, session, "hello")
            with trio.fail_after(30):
                while len(failed := await given_up(served)) < 3:  # noqa: ASYNC110 - asked over HTTP
                    await trio.sleep(0.02)
            (place,) = (each["id"] for each in (await root.get("/v1/webhooks")).json()["items"])
            by_session = {each["session_id"]: each["webhook_id"] for each in failed}
            down -= {"s1", "s2"}
            path = f"/v1/webhooks/{place}/redelivery"
            sent = await root.post(path, json={"webhook_ids": [by_session["s1"]]})
            assert (sent.status_code, [each["session_id"] for each in sent.json()["items"]]) == (202, ["s1"])
            await until(lambda: len(receiver.got) == 1)
            assert receiver.got[0][0]["webhook-id"] == by_session["s1"]
            unknown = await root.post(path, json={"webhook_ids": [by_session["s1"], "msg_none"]})
            assert (unknown.status_code, unknown.json()["webhook_ids"][-1]) == (404, "msg_none")
            for _ in range(2):
                assert (await root.post(path, json={})).status_code == 202
            await until(lambda: len(receiver.got) == 2)
            await until(lambda: receiver.tried.count(by_session["s3"]) > 3)
            with trio.fail_after(30):
                while [each["session_id"] for each in await given_up(served)] != ["s3"]:  # noqa: ASYNC110 - asked over HTTP
                    await trio.sleep(0.02)
            await served.runtime.delete_session("s3", agent="clerk")
            with trio.fail_after(30):
                while await given_up(served):
                    await root.post(path, json={})  # a notification in flight is not sent again
                    await trio.sleep(0.02)
            assert (await ada.post(path, json={})).status_code == 403
            assert (await root.post("/v1/webhooks/none/redelivery", json={})).status_code == 404
    assert Counter(headers["webhook-id"] for headers, _ in receiver.got) == {
        by_session["s1"]: 1,
        by_session["s2"]: 1,
    }


async def test_failed_notifications_are_redelivered_after_a_restart(serving, receiving, tmp_path):
    """The journal has the list. Delivered notifications are not in the list after another restart."""
    journal, status = f"sqlite:///{tmp_path}/j.db", [503]
    with receiving(lambda *_: status[0]) as receiver:
        async with told(serving, receiver, retry_timeout=0.02, journal=journal) as (served, ada):
            await say(ada, "s1")
            with trio.fail_after(30):
                while not await given_up(served):  # noqa: ASYNC110 - asked over HTTP
                    await trio.sleep(0.02)
        status[0] = 204
        async with told(serving, receiver, journal=journal) as (served, _), served.client("root") as root:
            (hook_now,) = (await root.get("/v1/webhooks")).json()["items"]
            await root.post(f"/v1/webhooks/{hook_now['id']}/redelivery", json={})
            await until(lambda: len(receiver.got) == 1)
            with trio.fail_after(30):
                while await given_up(served):  # noqa: ASYNC110 - asked over HTTP
                    await trio.sleep(0.02)
        async with told(serving, receiver, journal=journal) as (served, _):
            assert await given_up(served) == []
    assert len(receiver.got) == 1


async def test_private_receiver_requires_allow(serving, receiving):
    """Without `allow`, no request reaches a receiver on loopback, also not by a redirect."""
    with receiving() as inner, receiving(lambda *_: (307, ("location", inner.url))) as outer:
        closed = hook(inner, allow=[])
        async with told(serving, outer, closed, retry_timeout=0.02) as (served, ada):
            await say(ada, "s1")
            with trio.fail_after(30):
                while len(failed := await given_up(served)) < 2:  # noqa: ASYNC110 - asked over HTTP
                    await trio.sleep(0.02)
        assert not inner.tried
    assert sorted(each["reason"].partition(" (")[0] for each in failed) == [
        "the host '127.0.0.1' cannot be reached from here: its address is not public",
        "the receiver redirects",
    ]


async def test_client_sets_the_receiver_of_its_session(serving, receiving):
    """A client sets the receiver of its session, and gets the secret of that receiver's signatures."""
    with receiving() as receiver:
        notify = [Webhook(None, secrets=[SECRET], allow=LOCAL)]
        async with serving(notify=notify) as served, served.client() as ada:
            wanted = {"agent": "clerk", "notify": {"url": receiver.url, "events": ["reply"]}}
            made = await ada.put("/v1/sessions/mine", json=wanted)
            again = await ada.put("/v1/sessions/mine", json=wanted)
            assert (made.status_code, again.status_code) == (201, 200)
            assert made.json() == again.json()
            other = {"agent": "clerk", "notify": {"url": receiver.url + "/other"}}
            assert (await ada.put("/v1/sessions/mine", json=other)).status_code == 409
            await say(ada, "theirs")
            response = await ada.post(
                "/v1/sessions/mine/messages", json={"input": "x"}, headers={"prefer": "wait=20"}
            )
            assert response.status_code == 200
            await ada.post("/v1/sessions/mine/close", json={})
            await until(lambda: receiver.got)
    assert [(body["type"], body["data"]["session_id"]) for body in receiver.bodies()] == [("reply", "mine")]
    secret = made.json()["notify"]["secret"]
    assert secret != SECRET
    headers = receiver.got[0][0]
    check_signature(headers, headers["raw"], [secret])


async def test_clients_reach_only_allowed_ports_and_paths(serving, receiving):
    """The `allow` list of the clients' webhook limits host, port and path. The gateway checks a client's URL when the session is created."""
    with receiving() as receiver, receiving() as other:
        host = receiver.url.split("/")[2]
        base, elsewhere = receiver.url.removesuffix("/hook"), other.url.removesuffix("/hook")
        notify = [hook(other), Webhook(None, secrets=[SECRET], allow=[f"{host}/hooks"], pause=0.01)]
        async with serving(notify=notify) as served, served.client() as ada:
            refused = [
                base + "/admin",
                base + "/hooksx",
                base + "/hooks/../admin",
                base + "/hooks/%2e%2e/admin",
                base + "/hooks%2f..%2fadmin",
                elsewhere + "/hooks",
                "http://127.0.0.1/hooks",
                "http://localhost:22/hooks",
                "http://169.254.169.254/hooks",
                f"http://[::ffff:127.0.0.1]:{host.partition(':')[2]}/admin",
            ]
            for number, url in enumerate(refused):
                body = {"agent": "clerk", "notify": {"url": url}}
                made = await ada.put(f"/v1/sessions/no-{number}", json=body)
                assert made.status_code == 422, url
                assert "not public" in made.json()["detail"]
                assert (await ada.get(f"/v1/sessions/no-{number}")).status_code == 404
            taken = {"agent": "clerk", "notify": {"url": base + "/hooks/mine", "events": ["reply"]}}
            assert (await ada.put("/v1/sessions/mine", json=taken)).status_code == 201
            await say(ada, "mine")
            await until(lambda: receiver.got and other.got)
        assert {each[1]["data"]["session_id"] for each in receiver.got} == {"mine"}


async def test_a_pooled_connection_does_not_open_another_path(serving, receiving):
    """A session's address was allowed when it was set. The pooled connection of an allowed path does not carry its notifications."""
    with receiving() as receiver:
        base, host = receiver.url.removesuffix("/hook"), receiver.url.split("/")[2]
        notify = [Webhook(None, secrets=[SECRET], allow=LOCAL)]
        async with serving(notify=notify) as served, served.client() as ada:
            outbox = served.gateway.app.context.outboxes[0]
            for name in ("hooks", "admin"):
                wanted = {"agent": "clerk", "notify": {"url": f"{base}/{name}", "events": ["reply"]}}
                assert (await ada.put(f"/v1/sessions/{name}", json=wanted)).status_code == 201
            outbox.webhook = Webhook(None, secrets=[SECRET], allow=[f"{host}/hooks"], pause=0.01)
            for name in ("hooks", "admin"):
                await say(ada, name)
            await until(lambda: receiver.got)
            with trio.fail_after(30):
                while not (failed := await given_up(served)):  # noqa: ASYNC110 - asked over HTTP
                    await trio.sleep(0.02)
    assert [each["session_id"] for each in failed] == ["admin"]
    assert {each[1]["data"]["session_id"] for each in receiver.got} == {"hooks"}


async def test_session_receivers_require_a_webhook(served):
    """Without a webhook for client addresses, or with an invalid address, the session is not created."""
    async with served.client() as ada:
        for url in ("https://example.com/x", "ftp://example.com"):
            made = await ada.put("/v1/sessions/s1", json={"agent": "clerk", "notify": {"url": url}})
            assert made.status_code == 422
        assert (await ada.get("/v1/sessions/s1")).status_code == 404


async def test_secrets_are_replaced_without_a_restart(serving, receiving, tmp_path):
    """Each secret of the file signs, the newest first, also after a change of the file."""
    newer, file = new_webhook_secret(), tmp_path / "secrets"
    file.write_text(SECRET)
    with receiving() as receiver:
        async with told(serving, receiver, secrets=file) as (_, ada):
            await say(ada, "s1")
            await until(lambda: len(receiver.got) == 1)
            file.write_text(f"{newer}\n{SECRET}\n")
            await say(ada, "s1")
            await until(lambda: len(receiver.got) == 2)
            file.write_text("nothing good")
            await say(ada, "s1")
            await until(lambda: len(receiver.got) == 3)
    for (headers, _), secrets in zip(receiver.got, ([SECRET], [newer, SECRET], [newer, SECRET]), strict=True):
        check_signature(headers, headers["raw"], secrets)
        assert len(headers["webhook-signature"].split()) == len(secrets)


async def test_webhook_sends_events_missed_by_earlier_processes(serving, receiving, tmp_path):
    """A gateway without the webhook runs between two gateways with it. Events before the first gateway are not sent."""
    journal = f"sqlite:///{tmp_path}/a.db"
    with receiving() as receiver:
        async with serving(journal=journal) as served, served.client() as ada:
            await say(ada, "old")
        async with serving(journal=journal, notify=[hook(receiver)]) as served, served.client() as ada:
            await say(ada, "s1")
            await until(lambda: len(receiver.got) == 1)
        async with serving(journal=journal) as served, served.client() as ada:
            await say(ada, "s1")
            await say(ada, "s2")
        async with serving(journal=journal, notify=[hook(receiver)]) as served, served.client() as ada:
            await until(lambda: len(receiver.got) == 3)
            await say(ada, "s3")
            await until(lambda: len(receiver.got) == 4)
            listed = (await ada.get("/v1/sessions")).json()["items"]
    sessions = [body["data"]["session_id"] for body in receiver.bodies()]
    assert sorted(sessions) == ["s1", "s1", "s2", "s3"]
    assert max(Counter(receiver.tried).values()) == 1
    assert {each["id"] for each in listed} == {"old", "s1", "s2", "s3"}


async def test_recreated_session_is_sent_to_webhooks_again(serving, receiving):
    """The new session has the id of an erased session. Its messages have new ids and are sent."""
    with receiving() as receiver:
        async with told(serving, receiver) as (served, ada), served.client("root") as root:
            for count in (1, 2):
                await say(ada, "s1")
                await until(lambda count=count: len(receiver.got) == count)
                assert (await root.delete("/v1/sessions/s1")).status_code == 204
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 2


async def test_erased_session_sends_no_rest_of_a_page(serving, receiving):
    """A session that is erased while the receiver answers slowly sends no later notification."""
    gates, tries = (threading.Event(), threading.Event()), []

    def answer_late(*_):
        number = len(tries)
        tries.append(number)
        gates[min(number, 1)].wait(20)
        return 503 if number == 0 else 200

    with receiving(answer_late) as receiver:
        async with told(serving, receiver) as (served, ada), served.client("root") as root:
            await say(ada, "s1")
            await until(lambda: len(tries) == 1)
            await say(ada, "s1", "again")
            gates[0].set()
            await until(lambda: len(tries) == 2)  # the page now has both replies
            assert (await root.delete("/v1/sessions/s1")).status_code == 204
            await trio.sleep(0.2)  # until the outbox has read the erasure
            gates[1].set()
            await say(ada, "s2")
            await until(lambda: len(receiver.got) == 2)
    assert [body["data"]["session_id"] for body in receiver.bodies()] == ["s1", "s2"]


async def test_webhook_queue_overflow_loses_no_reply(serving, receiving, monkeypatch):
    """If the queues and the feed overflow, the journal is read, and each reply is sent in order."""
    monkeypatch.setattr("actgent.web.webhooks.outbox.MAX_STREAMS", 4)
    monkeypatch.setattr("actgent.web.webhooks.outbox.FEED_CAPACITY", 2)
    opened = threading.Event()

    def behave(receiver, body):
        return 200 if opened.is_set() else 500

    with receiving(behave) as receiver:
        async with told(serving, receiver) as (_, ada):
            for _ in range(2):
                for number in range(15):
                    await say(ada, f"s{number}")
            opened.set()
            await until(lambda: len({headers["webhook-id"] for headers, _ in receiver.got}) == 30)
    assert_in_order(receiver)


def assert_in_order(receiver):
    """Assert that the first deliveries of each session are in the order of its records."""
    numbers = defaultdict(list)
    for headers, body in receiver.got:
        known = numbers[body["data"]["session_id"]]
        if headers["webhook-id"] not in [each for each, _ in known]:
            known.append((headers["webhook-id"], body["data"]["number"]))
    for known in numbers.values():
        assert [number for _, number in known] == sorted(number for _, number in known)


async def test_child_sessions_send_only_approvals(serving, receiving):
    """Answers of a child session to its parent are not sent to webhooks."""

    @tool(approval=True)
    def deploy(place: str) -> str:
        """Deploy to a place."""
        return f"deployed to {place}"

    below = BareAgent(
        "worker", llm=ScriptedLLM([ToolCall("deploy", {"place": "mars"}), "done"]), tools=[deploy]
    )
    above = BareAgent(
        "clerk", llm=ScriptedLLM([ToolCall("worker", {"task": "go"}), "ready"]), tools=[below.as_tool()]
    )
    with receiving() as receiver:
        async with serving(agents=[above], notify=[hook(receiver)]) as served, served.client() as ada:
            await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
            await ada.post("/v1/sessions/s1/messages", json={"input": "x"})
            await until(lambda: receiver.got)
            waiting = (await ada.get("/v1/approvals")).json()["items"]
            place = quote(waiting[0]["id"], safe="")
            decided = await ada.post(f"/v1/approvals/{place}/decision", json={"approve": {}})
            assert decided.status_code == 204, decided.text
            await until(lambda: len(receiver.got) == 2)
    assert [(body["type"], body["data"]["agent"]) for body in receiver.bodies()] == [
        ("approval", "worker"),
        ("reply", "clerk"),
    ]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Webhook("example.com", secrets=[SECRET]), "must be a URL such as"),
        (lambda: Webhook("https://a:b@example.com", secrets=[SECRET]), "must not contain a user name"),
        (lambda: Webhook("https://example.com", secrets=[]), "must have at least one secret"),
        (lambda: Webhook("https://example.com", secrets=["whsec_aa"]), "24 to 64 random bytes"),
        (lambda: Webhook("https://example.com", secrets=[SECRET], events=["repli"]), "did you mean 'reply'"),
        (lambda: Webhook("https://example.com", secrets=[SECRET], timeout=-1), "timeout"),
        (lambda: Webhook(None, secrets=[SECRET], allow=["http://a/b"]), "HOST:PORT/PATH.*http://a/b"),
        (lambda: Webhook(None, secrets=[SECRET], allow=["a:0"]), "HOST:PORT/PATH"),
        (lambda: Webhook(None, secrets=[SECRET], allow=["a:70000/x"]), "HOST:PORT/PATH"),
    ],
)
def test_invalid_webhook_is_rejected(make, expected):
    """The constructor raises the error."""
    with pytest.raises(ConfigurationError, match=expected):
        make()


async def test_one_address_has_one_webhook(serving):
    """Two webhooks with the same address are rejected."""
    twice = [Webhook("https://example.com", secrets=[SECRET]) for _ in range(2)]
    with pytest.raises(ConfigurationError, match=r"two webhooks have the same URL \(https://example\.com"):
        async with serving(notify=twice):
            pass
