"""A2A with the unchanged client of `a2a-sdk` over both bindings, and with `a2aops` for the cards.

The client runs on asyncio in a thread.
"""

import asyncio
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import A2AError, TaskNotFoundError

from .conftest import runs

COMPLETED, INPUT_REQUIRED = TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_INPUT_REQUIRED
CANCELED = TaskState.TASK_STATE_CANCELED


def said(text, message_id="m1", **more):
    message = Message(message_id=message_id, role=Role.ROLE_USER, parts=[Part(text=text)], **more)
    return SendMessageRequest(message=message)


async def last_task(client, request):
    """Send a message. Return the task after the last event, and the kinds of events."""
    kinds, task = [], None
    async for event in client.send_message(request):
        kinds.append(event.WhichOneof("payload"))
        if kinds[-1] == "task":
            task = event.task
    return await client.get_task(GetTaskRequest(id=task.id)), kinds


def text_of(task):
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)


@pytest.fixture(params=["JSONRPC", "HTTP+JSON"])
def sdk(served, request):
    """Return a function that runs an async function with an SDK client, on asyncio in a thread."""

    async def work(function, token, *, streaming):
        headers = {"authorization": f"Bearer {served.tokens[token]}"}
        async with httpx.AsyncClient(headers=headers, timeout=30) as http:
            card = await A2ACardResolver(http, f"{served.gateway.url}/a2a/clerk").get_agent_card()
            config = ClientConfig(
                httpx_client=http,
                streaming=streaming,
                supported_protocol_bindings=[request.param],
                use_client_preference=True,
            )
            return await function(ClientFactory(config).create(card))

    async def call(function, token="ada", *, streaming=True):
        with trio.fail_after(60):
            return await trio.to_thread.run_sync(
                lambda: asyncio.run(work(function, token, streaming=streaming))
            )

    return call


async def test_sdk_message_creates_a_completed_task(sdk):
    task, kinds = await sdk(partial(last_task, request=said("hello")), streaming=False)
    assert kinds == ["task"]
    assert (task.status.state, text_of(task)) == (COMPLETED, "you said: hello")


async def test_sdk_message_is_streamed(sdk):
    task, kinds = await sdk(partial(last_task, request=said("please add")))
    assert (kinds[0], kinds[-1]) == ("task", "status_update")
    assert kinds.count("artifact_update") >= 2
    assert (task.status.state, text_of(task)) == (COMPLETED, "The result is in.")


@pytest.mark.parametrize("word", ["approve", "reject"])
async def test_sdk_approval_resumes_a_task(sdk, word):
    async def flow(client):
        task, _ = await last_task(client, said("please pay"))
        assert task.status.state == INPUT_REQUIRED
        assert task.status.message.parts[0].text == "Really pay?"
        again, _ = await last_task(client, said(word, "m2", task_id=task.id, context_id=task.context_id))
        assert again.id == task.id
        return again

    task = await sdk(flow)
    assert (task.status.state, text_of(task)) == (COMPLETED, "The result is in.")
    assert runs["pay"] == (word == "approve")


async def test_sdk_task_is_cancelled_and_subscribed(sdk):
    async def flow(client):
        task, _ = await last_task(client, said("please pay"))
        events = client.subscribe(SubscribeToTaskRequest(id=task.id))
        first = await anext(events)
        assert first.task.status.state == INPUT_REQUIRED
        canceled = await client.cancel_task(CancelTaskRequest(id=task.id))
        return canceled, [event async for event in events][-1]

    canceled, last = await sdk(flow)
    assert canceled.status.state == last.status_update.status.state == CANCELED


async def test_task_is_read_later_and_listed(sdk):
    task, _ = await sdk(partial(last_task, request=said("hello")))

    async def later(client):
        listed = await client.list_tasks(ListTasksRequest(context_id=task.context_id, include_artifacts=True))
        return await client.get_task(GetTaskRequest(id=task.id)), listed.tasks

    read, (listed,) = await sdk(later)
    assert read == task
    assert text_of(listed) == "you said: hello"


async def test_repeated_message_is_the_same_task(sdk):
    tasks = [(await sdk(partial(last_task, request=said("hello"))))[0] for _ in range(2)]
    assert tasks[0] == tasks[1]


async def test_sdk_receives_a_failed_task(sdk):
    task, _ = await sdk(partial(last_task, request=said("please fail")), "chatter")
    assert task.status.state == TaskState.TASK_STATE_FAILED
    assert "secret-canary" not in str(task)


async def test_task_of_another_owner_is_not_found(sdk):
    task, _ = await sdk(partial(last_task, request=said("hello")))
    with pytest.raises(TaskNotFoundError):
        await sdk(lambda client: client.get_task(GetTaskRequest(id=task.id)), "bob")


async def test_unknown_token_is_an_error(sdk, served):
    served.tokens["unknown"] = "act_unknown"
    with pytest.raises((A2AClientError, A2AError)):
        await sdk(lambda client: client.get_task(GetTaskRequest(id="x~y")), "unknown")


async def test_sdk_reads_the_extended_card(sdk):
    card = await sdk(lambda client: client.get_extended_agent_card(GetExtendedAgentCardRequest()))
    assert (card.name, card.capabilities.streaming) == ("clerk", True)
    assert [(skill.id, skill.name) for skill in card.skills] == [("chat", "Chat")]


async def test_card_passes_the_checks_of_a2aops(served):
    command = [
        str(Path(sys.executable).with_name("a2aops")),
        "card",
        "check",
        f"{served.gateway.url}/a2a/clerk",
    ]
    with trio.fail_after(60):
        done = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout.decode()
