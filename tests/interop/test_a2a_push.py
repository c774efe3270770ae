"""A2A: configurations of push notifications over both bindings, and their deliveries."""

import json
import random
import threading
from contextlib import asynccontextmanager

import pytest
import trio

from actgent import JournalFailed, Sender, Webhook, new_webhook_secret
from actgent.interop import A2AProtocol
from actgent.interop.a2a import push_notification_configs, push_notification_outbox
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.record_types import SessionCreatedRecord
from tests.web.conftest import open_receiver, open_served

from .conftest import make_agents
from .test_a2a import call_rest, call_rpc, decide, message, mutate, reason_of, state_of, wait_until

SECRETS = [new_webhook_secret()]
PUSH_PATHS = {
    "CreateTaskPushNotificationConfig": ("POST", ""),
    "GetTaskPushNotificationConfig": ("GET", "/{id}"),
    "ListTaskPushNotificationConfigs": ("GET", ""),
    "DeleteTaskPushNotificationConfig": ("DELETE", "/{id}"),
}


async def call_push_rest(client, method, params):
    """Call a configuration method over HTTP+JSON."""
    if method not in PUSH_PATHS:
        return await call_rest(client, method, params)
    verb, path = PUSH_PATHS[method]
    path = f"/a2a/clerk/v1/tasks/{params['taskId']}/pushNotificationConfigs{path}"
    body = {"json": {name: each for name, each in params.items() if name != "taskId"}}
    response = await client.request(
        verb,
        path.replace("{id}", str(params.get("id"))),
        headers={"a2a-version": "1.0"},
        **(body if verb == "POST" else {}),
    )
    answer = response.json()
    return answer.get("error", answer)


@pytest.fixture(params=[call_rpc, call_push_rest], ids=["json-rpc", "http+json"])
def ask(request):
    return request.param


@asynccontextmanager
async def open_pushing(*, allow=("127.0.0.1",), **options):
    notify = [Webhook(None, secrets=SECRETS, allow=allow, pause=0.01)]
    async with open_served(
        agents=make_agents(), protocols=[A2AProtocol()], notify=notify, **options
    ) as served:
        yield served


def config(receiver, config_id="c1", **more):
    authentication = {"scheme": "Bearer", "credentials": "secret-canary"}
    return {
        "id": config_id,
        "url": receiver.url,
        "token": "token-canary",
        "authentication": authentication,
        **more,
    }


def states_of(receiver):
    return [state_of(json.loads(headers["raw"])["task"]) for headers, _ in receiver.got]


async def test_task_is_sent_when_it_waits_and_at_its_end(ask):
    async with open_pushing() as served, served.client() as client:
        card = (await client.get("/a2a/clerk/.well-known/agent-card.json")).json()
        assert card["capabilities"]["pushNotifications"] is True
        with open_receiver() as receiver:
            params = {
                **message("please pay"),
                "configuration": {"taskPushNotificationConfig": config(receiver)},
            }
            task = (await ask(client, "SendMessage", params))["task"]
            await wait_until(lambda: states_of(receiver) == ["INPUT_REQUIRED"])
            answered = (await ask(client, "SendMessage", decide(task, {"approve": True})))["task"]
            await wait_until(lambda: states_of(receiver) == ["INPUT_REQUIRED", "COMPLETED"])
            headers, body = receiver.got[1]
            listed = {"configs": None}
            with trio.fail_after(30):
                while listed["configs"] != []:  # the task has ended
                    listed = await ask(client, "ListTaskPushNotificationConfigs", {"taskId": task["id"]})
    assert headers["authorization"] == "Bearer secret-canary"
    assert headers["x-a2a-notification-token"] == "token-canary"
    assert headers["content-type"] == "application/json"
    assert body == {"task": answered}


async def test_configurations_are_created_read_and_deleted(ask):
    async with open_pushing() as served, served.client() as client:
        with open_receiver() as receiver:
            task = (await ask(client, "SendMessage", message("please pay")))["task"]
            known = {"taskId": task["id"]}
            created = await ask(
                client, "CreateTaskPushNotificationConfig", {**known, **config(receiver, "c1")}
            )
            assert created == {
                "id": "c1",
                **known,
                "url": receiver.url,
                "authentication": {"scheme": "Bearer"},
            }
            unnamed = await ask(
                client, "CreateTaskPushNotificationConfig", {**known, "url": f"{receiver.url}/2"}
            )
            assert unnamed["id"]
            assert await ask(client, "GetTaskPushNotificationConfig", {**known, "id": "c1"}) == created
            listed = await ask(client, "ListTaskPushNotificationConfigs", known)
            assert listed["configs"] == [created, unnamed]
            for _ in range(2):
                assert await ask(client, "DeleteTaskPushNotificationConfig", {**known, "id": "c1"}) == {}
            error = await ask(client, "GetTaskPushNotificationConfig", {**known, "id": "c1"})
            assert reason_of(error) == "TASK_NOT_FOUND"
            for method in PUSH_PATHS:
                params = {"taskId": "x~y", **config(receiver)}
                assert reason_of(await ask(client, method, params)) == "TASK_NOT_FOUND"
    async with served_without_push() as served, served.client() as client:
        card = (await client.get("/a2a/clerk/.well-known/agent-card.json")).json()
        assert card["capabilities"]["pushNotifications"] is False
        for method in PUSH_PATHS:
            error = await ask(client, method, {"taskId": "x~y", "id": "c1", "url": "https://example.com"})
            assert reason_of(error) == "PUSH_NOTIFICATION_NOT_SUPPORTED"


@asynccontextmanager
async def served_without_push():
    async with open_served(agents=make_agents(), protocols=[A2AProtocol()]) as served:
        yield served


async def test_configurations_of_another_owner_do_not_exist(ask):
    async with open_pushing() as served:
        with open_receiver() as receiver:
            async with served.client() as client:
                task = (await ask(client, "SendMessage", message("please pay")))["task"]
                known = {"taskId": task["id"], "id": "c1"}
                await ask(client, "CreateTaskPushNotificationConfig", {**known, **config(receiver)})
            async with served.client("bob") as client:
                for method in PUSH_PATHS:
                    error = await ask(client, method, {**known, **config(receiver)})
                    assert reason_of(error) == "TASK_NOT_FOUND"
            async with served.client("reader") as client:
                for method in ("CreateTaskPushNotificationConfig", "DeleteTaskPushNotificationConfig"):
                    assert reason_of(await ask(client, method, {**known, **config(receiver)})) == "FORBIDDEN"


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("url", {"url": "http://127.0.0.1:1/hook"}),
        ("url", {"url": "ftp://example.com"}),
        ("url", {"url": "https://a:b@example.com"}),
        ("url", {"url": None}),
        ("token", {"token": "a\r\nb: c"}),
        ("token", {"token": "x" * 5000}),
        ("authentication.scheme", {"authentication": {"credentials": "x"}}),
        ("authentication.scheme", {"authentication": {"scheme": "Bearer x"}}),
        ("authentication.credentials", {"authentication": {"scheme": "Bearer", "credentials": "a\nb"}}),
        ("id", {"id": "a\nb"}),
    ],
)
async def test_invalid_configurations_are_rejected(ask, field, change):
    """The webhook check rejects an internal address unless `allow` lists it."""
    async with open_pushing(allow=()) as served, served.client() as client:
        task = (await ask(client, "SendMessage", message("please pay")))["task"]
        settings = {"id": "c1", "url": "https://example.com/hook", **change}
        error = await ask(client, "CreateTaskPushNotificationConfig", {"taskId": task["id"], **settings})
        assert reason_of(error) == field
        params = {**message("please pay", "m2"), "configuration": {"taskPushNotificationConfig": settings}}
        error = await ask(client, "SendMessage", params)
        assert reason_of(error) == f"configuration.taskPushNotificationConfig.{field}"
        listed = await ask(client, "ListTasks", {})
        assert [state_of(each) for each in listed["tasks"]] == ["INPUT_REQUIRED"]


async def test_number_of_configurations_is_limited(monkeypatch):
    monkeypatch.setattr(push_notification_configs, "MAX_PER_TASK", 2)
    async with open_pushing() as served, served.client() as client:
        with open_receiver() as receiver:
            task = (await call_rpc(client, "SendMessage", message("please pay")))["task"]
            method, results = "CreateTaskPushNotificationConfig", []
            for number in (1, 2, 2, 3):
                settings = {"taskId": task["id"], **config(receiver, f"c{number}")}
                results.append("url" in await call_rpc(client, method, settings))
    assert results == [True, True, True, False]


async def test_deliveries_are_retried_and_survive_a_restart(tmp_path, monkeypatch):
    """Each receiver of a task gets the notification, also if another receiver fails first.

    Configurations are compacted meanwhile.
    """
    monkeypatch.setattr(push_notification_configs, "MAX_RECORDS", 2)
    journal, status = f"sqlite:///{tmp_path}/j.db", [503]
    with open_receiver(lambda *_: status[0]) as first, open_receiver() as second:
        async with open_pushing(journal=journal) as served, served.client() as client:
            task = (await call_rpc(client, "SendMessage", message("please pay")))["task"]
            for config_id, receiver in (("a", second), ("b", first), ("c", second)):
                settings = {"taskId": task["id"], **config(receiver, config_id)}
                await call_rpc(client, "CreateTaskPushNotificationConfig", settings)
            await call_rpc(client, "DeleteTaskPushNotificationConfig", {"taskId": task["id"], "id": "c"})
            await call_rpc(client, "SendMessage", decide(task, {"approve": True}))
            await wait_until(lambda: first.tried)
        status[0] = 200
        async with open_pushing(journal=journal) as served, served.client() as client:
            await wait_until(lambda: states_of(first) == ["COMPLETED"])
            await wait_until(lambda: states_of(second))
            listed = {"configs": None}
            with trio.fail_after(30):
                while listed["configs"] != []:
                    listed = await call_rpc(client, "ListTaskPushNotificationConfigs", {"taskId": task["id"]})
    assert set(states_of(second)) == {"COMPLETED"}
    assert len({headers["webhook-id"] for headers, _ in second.got}) == 1  # retries have the same id


async def test_past_updates_are_not_sent(tmp_path):
    """A configuration applies to later updates, also after a restart, when the journal is scanned again."""
    journal = f"sqlite:///{tmp_path}/j.db"
    with open_receiver() as receiver:
        for _ in range(2):
            async with open_pushing(journal=journal) as served, served.client() as client:
                ended = (await call_rpc(client, "SendMessage", message("hello", contextId="past")))["task"]
                settings = {"taskId": ended["id"], **config(receiver, "past")}
                await call_rpc(client, "CreateTaskPushNotificationConfig", settings)
                params = message("hello", f"m{len(receiver.got) + 2}", contextId="c")
                params["configuration"] = {"taskPushNotificationConfig": config(receiver)}
                sent = (await call_rpc(client, "SendMessage", params))["task"]
                await wait_until(
                    lambda task=sent: receiver.got and receiver.got[-1][1]["task"]["id"] == task["id"]
                )
    assert ended["id"] not in {body["task"]["id"] for _, body in receiver.got}


async def test_erased_session_has_no_configurations(tmp_path):
    journal = f"sqlite:///{tmp_path}/j.db"
    with open_receiver() as receiver:
        async with open_pushing(journal=journal) as served, served.client() as client:
            task = (await call_rpc(client, "SendMessage", message("please pay", contextId="c")))["task"]
            settings = {"taskId": task["id"], **config(receiver)}
            await call_rpc(client, "CreateTaskPushNotificationConfig", settings)
            async with served.client("root") as admin:
                assert (await admin.delete("/v1/sessions/c")).status_code == 204
            again = (await call_rpc(client, "SendMessage", message("please pay", contextId="c")))["task"]
            listed = {"configs": None}
            with trio.fail_after(30):
                while listed["configs"] != []:
                    listed = await call_rpc(
                        client, "ListTaskPushNotificationConfigs", {"taskId": again["id"]}
                    )
    assert receiver.got == []


@pytest.mark.parametrize("change", ["delete", "replace", "erase"])
async def test_removed_configuration_gets_nothing_during_a_delivery(change):
    """A configuration that is removed while an earlier receiver answers slowly gets no notification."""
    is_open = threading.Event()

    def answer_late(*_):
        is_open.wait(20)
        return 200

    with open_receiver(answer_late) as slow, open_receiver() as second, open_receiver() as third:
        async with open_pushing() as served, served.client() as client, served.client("root") as admin:
            task = (await call_rpc(client, "SendMessage", message("please pay", contextId="c")))["task"]
            known = {"taskId": task["id"]}
            for config_id, receiver in (("a", slow), ("b", second)):
                settings = {**known, **config(receiver, config_id)}
                await call_rpc(client, "CreateTaskPushNotificationConfig", settings)
            await call_rpc(client, "SendMessage", decide(task, {"approve": True}))
            await wait_until(lambda: slow.tried)
            if change == "delete":
                await call_rpc(client, "DeleteTaskPushNotificationConfig", {**known, "id": "b"})
            elif change == "replace":
                settings = {**known, **config(third, "b")}
                await call_rpc(client, "CreateTaskPushNotificationConfig", settings)
            else:
                assert (await admin.delete("/v1/sessions/c")).status_code == 204
                await trio.sleep(0.2)  # wait until the outbox has read the erasure
            is_open.set()
            await wait_until(lambda: slow.got)
            if change == "replace":
                await wait_until(lambda: states_of(third) == ["COMPLETED"])
            # A further task of the same receiver ends after all notifications of the first.
            params = message("hello", "m9", contextId="other")
            params["configuration"] = {"taskPushNotificationConfig": config(slow)}
            sent = (await call_rpc(client, "SendMessage", params))["task"]
            await wait_until(lambda: any(body["task"]["id"] == sent["id"] for _, body in slow.got))
            await trio.sleep(0.1)
    assert second.got == []


async def test_later_session_with_the_id_of_an_erased_one_has_no_configurations(monkeypatch):
    """The outbox may miss the erasure of a session, for example if it reads the feed too slowly."""

    async def miss(*_):
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(push_notification_outbox.PushOutbox, "_remove", miss)
    with open_receiver() as receiver, open_receiver() as own:
        async with open_pushing() as served, served.client() as client, served.client("root") as admin:
            asked = message("please pay", contextId="c")
            task = (await call_rpc(client, "SendMessage", asked))["task"]
            settings = {"taskId": task["id"], **config(receiver)}
            await call_rpc(client, "CreateTaskPushNotificationConfig", settings)
            assert (await admin.delete("/v1/sessions/c")).status_code == 204
            again = (await call_rpc(client, "SendMessage", asked))["task"]
            assert again["id"] == task["id"]
            listed = await call_rpc(client, "ListTaskPushNotificationConfigs", {"taskId": task["id"]})
            assert listed["configs"] == []
            settings = {"taskId": task["id"], **config(own, "mine")}
            await call_rpc(client, "CreateTaskPushNotificationConfig", settings)
            await call_rpc(client, "SendMessage", decide(again, {"approve": True}))
            await wait_until(lambda: "COMPLETED" in states_of(own))
    assert receiver.got == []


async def test_journal_that_cannot_remove_a_configuration_does_not_stop_deliveries(monkeypatch, caplog):
    async def fail(*_):
        raise JournalFailed("the disk is gone")

    with open_receiver() as receiver:
        async with open_pushing() as served, served.client() as client:
            for number in range(2):
                params = message("hello", f"m{number}")
                params["configuration"] = {"taskPushNotificationConfig": config(receiver)}
                await call_rpc(client, "SendMessage", params)
                monkeypatch.setattr(push_notification_configs.PushConfigs, "remove", fail)
                await wait_until(lambda count=number: len(receiver.got) > count)
            assert states_of(receiver) == ["COMPLETED", "COMPLETED"]
    assert "cannot be removed from the journal: the disk is gone" in caplog.text


@pytest.mark.parametrize("number", [0, 1], ids=["compaction", "change"])
async def test_configuration_rejected_by_the_journal_is_not_used(monkeypatch, number):
    """Other configurations stay stored, also if the failed write was the compaction."""
    monkeypatch.setattr(push_notification_configs, "MAX_RECORDS", 1)

    def make(config_id):
        return push_notification_configs.PushConfig(
            id=config_id, agent="clerk", session_id="s", message_id="m", created_at=1.0, url="u", after=0
        )

    async with MemoryJournal().running() as journal:
        await journal.acquire()
        await journal.commit(
            Entry(
                session_id="s",
                agent="clerk",
                records=(SessionCreatedRecord(owner=Sender("ada"), agent="clerk", created_at=1.0),),
            ),
            epoch=journal.epoch_of("s"),
        )
        configs = await push_notification_configs.PushConfigs.load(journal)
        stored = [make(f"c{index}") for index in range(2 + number)]
        for config in stored:
            await configs.add(config)

        async def refuse(*_, **__):
            raise JournalFailed("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(journal, "commit", refuse)
            with pytest.raises(JournalFailed):
                await configs.add(make("refused"))
        assert configs.of_session(stored[0].key) == tuple(stored)
        await configs.add(make("last"))
        loaded = await push_notification_configs.PushConfigs.load(journal)
        assert loaded.of_session(stored[0].key) == (*stored, make("last"))


@pytest.mark.parametrize("seed", range(3))
async def test_mutated_configurations_cause_no_server_error(seed):
    chance = random.Random(seed)
    async with open_pushing() as served, served.client() as client:
        with open_receiver() as receiver:
            task = (await call_rpc(client, "SendMessage", message("please pay")))["task"]
            whole = {"taskId": task["id"], **config(receiver)}
            headers = {"a2a-version": "1.0", "content-type": "application/json"}
            for number in range(60):
                method = chance.choice([*PUSH_PATHS, "SendMessage"])
                params = whole
                if method == "SendMessage":
                    params = {
                        **message("hello", f"m{number}"),
                        "configuration": {"taskPushNotificationConfig": config(receiver)},
                    }
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": mutate(chance, params)}
                sent = {"content": json.dumps(body), "headers": headers}
                response = await client.post("/a2a/clerk", **sent)
                assert response.status_code < 500, (body, response.text)
                assert "result" in response.json() or "error" in response.json()
                path = f"/a2a/clerk/v1/tasks/{task['id']}/pushNotificationConfigs"
                sent["content"] = json.dumps(mutate(chance, whole))
                response = await client.post(path, **sent)
                assert response.status_code < 500, (sent["content"], response.text)
