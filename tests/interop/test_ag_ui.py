"""AG-UI: order of events, approvals, repeated runs, owners and errors."""

import trio

from actgent import BareAgent, ScriptedLLM
from actgent.interop import PROTOCOLS
from tests.web.conftest import open_served

from .conftest import runs
from .sse import events_of

ORDER = {"TEXT_MESSAGE_CONTENT": "TEXT_MESSAGE_START", "TEXT_MESSAGE_END": "TEXT_MESSAGE_START"}


def asked(text, run_id="r1", thread_id="t1", **more):
    message = {"id": "m", "role": "user", "content": text}
    return {"threadId": thread_id, "runId": run_id, "messages": [message], **more}


async def run(client, body, status=200):
    response = await client.post("/agui/clerk", json=body)
    assert response.status_code == status, response.text
    return events_of(response.text) if status == 200 else response.json()


def check_order(events):
    """Check that texts and calls begin before they end, and that the run ends last without open items."""
    is_open = {}
    assert events[0]["type"] == "RUN_STARTED"
    assert events[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR")
    for event in events[1:-1]:
        key = event.get("messageId") if event["type"].startswith("TEXT") else event.get("toolCallId")
        if event["type"].endswith("_START"):
            assert key not in is_open
            is_open[key] = True
        elif event["type"].endswith("_END"):
            assert is_open[key]
            is_open[key] = False
        elif event["type"] in ("TEXT_MESSAGE_CONTENT", "TOOL_CALL_ARGS"):
            assert is_open[key]
            assert event["delta"]
    assert not any(is_open.values())


def text_of(events):
    return "".join(each["delta"] for each in events if each["type"] == "TEXT_MESSAGE_CONTENT")


async def test_text_is_streamed_in_order(served):
    async with served.client() as client:
        events = await run(client, asked("hello"))
    check_order(events)
    assert text_of(events) == "you said: hello"
    assert events[-1]["outcome"] == {"type": "success"}
    assert all(isinstance(each["timestamp"], int) for each in events)


async def test_parallel_tool_calls_have_arguments_and_results(served):
    async with served.client() as client:
        events = await run(client, asked("please add"))
    check_order(events)
    started = [each["toolCallId"] for each in events if each["type"] == "TOOL_CALL_START"]
    results = {each["toolCallId"]: each["content"] for each in events if each["type"] == "TOOL_CALL_RESULT"}
    assert len(started) == 2
    assert [results[each] for each in started] == ["3", "4"]
    assert text_of(events) == "I add. The result is in."


async def test_approval_ends_the_run_and_a_resumed_run_continues_it(served):
    async with served.client() as client:
        first = await run(client, asked("please pay"))
        check_order(first)
        (interrupt,) = first[-1]["outcome"]["interrupts"]
        assert interrupt["message"] == "Really pay?"
        assert runs["pay"] == 0
        decided = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
        resumed = {"threadId": "t1", "runId": "r2", "messages": [], "resume": [decided]}
        for _ in range(2):  # the second request repeats the first one
            second = await run(client, resumed)
            check_order(second)
            assert text_of(second) == "The result is in."
            assert runs["pay"] == 1


async def test_rejected_interrupt_does_not_run_the_tool(served):
    async with served.client() as client:
        first = await run(client, asked("please pay"))
        (interrupt,) = first[-1]["outcome"]["interrupts"]
        decided = {"interruptId": interrupt["id"], "status": "cancelled"}
        second = await run(client, {"threadId": "t1", "runId": "r2", "resume": [decided]})
    assert second[-1]["outcome"] == {"type": "success"}
    assert runs["pay"] == 0


async def test_resume_requires_the_scope_approve(served):
    async with served.client() as client:
        first = await run(client, asked("please pay"))
    (interrupt,) = first[-1]["outcome"]["interrupts"]
    decided = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
    async with served.client("chatter") as client:
        await run(client, {"threadId": "t1", "runId": "r2", "resume": [decided]}, status=403)
    assert runs["pay"] == 0


async def test_unknown_interrupt_is_not_found(served):
    async with served.client() as client:
        await run(client, asked("hello"))
        decided = {"interruptId": "unknown", "status": "resolved"}
        await run(client, {"threadId": "t1", "runId": "r2", "resume": [decided]}, status=404)


async def test_repeated_run_gives_the_same_events_and_one_turn(served):
    async with served.client() as client:
        runs_seen = [await run(client, asked("please add")) for _ in range(2)]
        page = (await client.get("/v1/sessions/t1/messages?roles=user")).json()
    kinds = [
        [each["type"] for each in events if each["type"] != "TEXT_MESSAGE_CONTENT"] for events in runs_seen
    ]
    assert kinds[0] == kinds[1]
    assert text_of(runs_seen[0]) == text_of(runs_seen[1])
    assert page["total"] == len(page["items"]) or len(page["items"]) == 1
    assert len(page["items"]) == 1


async def test_many_equal_requests_at_once_are_one_turn(served):
    texts = []

    async def ask(client):
        texts.append(text_of(await run(client, asked("hello"))))

    async with served.client() as client:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(ask, client)
        page = (await client.get("/v1/sessions/t1/messages?roles=assistant")).json()
    assert texts == ["you said: hello"] * 20
    assert len(page["items"]) == 1


async def test_run_id_with_another_message_is_rejected(served):
    async with served.client() as client:
        await run(client, asked("hello"))
        await run(client, asked("something else"), status=422)


async def test_thread_of_another_owner_is_not_found(served):
    async with served.client() as client:
        await run(client, asked("hello"))
    async with served.client("bob") as client:
        problem = await run(client, asked("hello", run_id="r9"), status=404)
    assert "ada" not in str(problem)


async def test_failed_turn_is_a_run_error_without_its_text(served):
    async with served.client("chatter") as client:
        events = await run(client, asked("please fail"))
    check_order(events)
    assert events[-1]["type"] == "RUN_ERROR"
    assert "secret-canary" not in str(events)


async def test_error_text_of_a_tool_needs_the_scope_journal(served):
    async with served.client("chatter") as client:
        events = await run(client, asked("please break"))
    (result,) = [each for each in events if each["type"] == "TOOL_CALL_RESULT"]
    assert "RuntimeError" in result["content"]
    assert "secret-canary" not in str(events)


async def test_ids_with_other_characters_are_accepted(served):
    async with served.client() as client:
        events = await run(client, asked("hello", run_id="lauf/ä 1", thread_id="faden/ö 1"))
    assert events[0]["threadId"] == "faden/ö 1"
    assert text_of(events) == "you said: hello"


async def test_wrong_ag_ui_requests_are_reported(served):
    wrong = (
        {"runId": "r", "messages": [{"role": "user", "content": "x"}]},
        {"threadId": "t", "messages": [{"role": "user", "content": "x"}]},
        {"threadId": "t", "runId": "r", "messages": []},
        {"threadId": "t", "runId": "r", "messages": [{"role": "assistant", "content": "x"}]},
        {"threadId": "t", "runId": "r", "messages": [{"role": "user", "content": [{"type": "x"}]}]},
        {"threadId": "t", "runId": "r", "resume": [{}]},
        {
            "threadId": "t",
            "runId": "r",
            "messages": [{"role": "user", "content": "x"}],
            "tools": [{"name": "add", "description": "The agent has one of this name."}],
        },
    )
    async with served.client() as client:
        for body in wrong:
            problem = await run(client, body, status=422)
            assert problem["detail"]
        response = await client.post("/agui/nobody", json=asked("x"))
        assert response.status_code == 404


async def test_repeated_run_of_a_guarded_message_is_the_same_run():
    """The journal has the message after its rewrite by the guard of inputs."""
    agent = BareAgent("clerk", llm=ScriptedLLM(["once"]))
    agent.guard(lambda message: message.text.replace("secret", "***"), on="input")
    async with open_served(agents=[agent], protocols=PROTOCOLS) as served, served.client() as client:
        for _ in range(2):
            assert text_of(await run(client, asked("the secret"))) == "once"
