"""Scenarios of clients in a cluster while `schedules.py` injects faults.

A story is an async generator in `STORIES`. The part before its `yield` runs concurrently with the faults. The
part after the `yield` checks the result after all faults. A story gets the `World` with two of its clients,
and its own random generator.
"""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx2
import trio

from actgent import (
    ApprovalAlreadyDecided,
    ApprovalNotFound,
    Approve,
    Failure,
    LimitReached,
    Limits,
    NotSuspended,
    Reject,
    Reply,
    SessionClosed,
)
from actgent.client.http.sse import StreamDecoder

from .conversations import read_process
from .test_pools_killed import paid

VISITOR = Path(__file__).with_name("client_process.py")
BUSY = (429, 502, 503, 504)
"""Status codes of a gateway after which a client retries."""
STORIES = {}


def story(told):
    STORIES[told.__name__] = told
    return told


def said(history, kind):
    return [each.text for each in history if each.sender.kind == kind]


async def asked(question):
    """Call `question` until its result is truthy, and return the result."""
    while not (found := await question()):  # noqa: ASYNC110 - no event signals this state
        await trio.sleep(0.2)
    return found


def errors(history):
    """Return the errors of all tool results in order; None for a success."""
    return [result.error for each in history for result in each.tool_results]


@story
async def talk(world, dice):
    """Each message is answered once, in order, for the handler and in the journal, though some messages are sent twice."""
    session, received = await world.open(), []
    session.on_conversation(lambda reply: received.append(reply.text))
    texts = [f"{session.id}-{number}" for number in range(8)]
    for each in texts:
        for _ in range(dice.randint(1, 2)):
            await session.chat(each, message_id=each)
        await trio.sleep(dice.uniform(0, 1))
    yield
    await session.wait_idle()
    history, answers = await session.history(), [f"you said: {each}" for each in texts]
    assert said(history, "user") == texts
    assert said(history, "assistant") == answers
    assert received == answers


@story
async def visitor(world, dice):
    """A killed client sends all messages again after its restart. The session contains each message once."""
    session = await world.open()
    url, options = dice.choice(world.ways)
    command = [sys.executable, VISITOR, url, json.dumps(options), session.id, "8"]
    for is_last in (False, True):
        process = world.process_server.popen(command, stdout=subprocess.PIPE)
        async with trio.open_nursery() as nursery:
            if is_last:
                await nursery.start(read_process, process, lambda *_: None)
            else:
                await trio.sleep(dice.uniform(0.5, 3))
                process.kill()
        await trio.to_thread.run_sync(process.wait)
        process.stdout.close()
    yield
    await session.wait_idle()
    history = await session.history()
    assert said(history, "user") == [f"{session.id}-{number}" for number in range(8)]
    assert said(history, "assistant") == [f"you said: {session.id}-{number}" for number in range(8)]


@story
async def tools(world, dice):
    """An effect of a tool happens at most once.

    An unfinished call has the result "unknown". An idempotent tool always has a result.
    """
    session = await world.open()
    for number in range(3):
        await world.clerk.run(f"note {session.id}-{number}", session=session, message_id=f"n{number}")
        await world.clerk.run(f"look {session.id}-{number}", session=session, message_id=f"l{number}")
        await trio.sleep(dice.uniform(0, 1.5))
    yield
    results = errors(await session.history())
    assert len(results) == 6
    assert results[1::2] == [None] * 3
    for number, error in enumerate(results[::2]):
        assert error is not None or world.effects[f"note {session.id}-{number}"] == 1


@story
async def approval(world, dice):
    """If two approvers decide concurrently, one decision counts, and the session follows that decision."""
    session, counted = await world.open(), []
    await trio.sleep(dice.uniform(0, 4))
    await session.chat(f"deploy {session.id}", message_id="m")
    waits = await asked(session.approvals)

    async def decide(client, decision, by):
        there = await client.agent("clerk").open_session(session.id)
        await trio.sleep(dice.uniform(0, 0.2))
        with suppress(ApprovalAlreadyDecided, NotSuspended, ApprovalNotFound):
            await there.answer(waits[0].id, decision, by=by)
            counted.append(by)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(decide, world.clients[0], Approve(), "ada")
        nursery.start_soon(decide, world.clients[1], Reject("no"), "bob")
    await world.clerk.outcome(session, "m")
    yield
    assert len(counted) == 1, counted
    (error,) = errors(await session.history())
    done = world.effects[f"deploy {session.id}"]
    assert done == 0 if counted == ["bob"] else error is not None or done == 1


@story
async def task(world, dice):
    """A task is reported once with its result. A cancelled task has no result."""
    session = await world.open()
    await trio.sleep(dice.uniform(0, 4))
    task_id = await session.delegate(dice.choice(world.diggers), f"slowly {session.id}")
    is_stopped = False
    if dice.random() < 0.5:
        await trio.sleep(dice.uniform(0, 3.5))
        is_stopped = await session.cancel_task(task_id)

    async def reported():
        return is_stopped or said(await session.history(), "agent")

    await asked(reported)
    yield
    await session.wait_idle()
    reports = said(await session.history(), "agent")
    results = [each for each in reports if f"you said: slowly {session.id}" in each]
    assert len(reports) <= 1 if is_stopped else len(reports) == 1, reports
    assert len(results) == (0 if is_stopped else 1), reports


@story
async def timer(world, dice):
    """A schedule that two clients set with one key fires once."""
    session, text = await world.open(), f"tick {dice.random()}"
    there = await world.clients[1].agent("clerk").open_session(session.id)
    for each in (session, there):
        await each.schedule(text, after=dice.uniform(2, 6), key="k")

    async def fired():
        return not await session.schedules()

    await asked(fired)
    yield
    await session.wait_idle()
    history = await session.history()
    assert len([each for each in history if text in each.text and each.sender.kind != "assistant"]) == 1
    assert len(said(history, "assistant")) == 1


@story
async def mode(world, dice):
    """The last mode that was set stays."""
    session = await world.open()
    for number in range(4):
        await session.set_mode("plan" if number % 2 else "act")
        await trio.sleep(dice.uniform(0, 1.5))
    yield
    assert await session.mode() == "plan"


@story
async def budget(world, dice):
    """The session answers no more messages than its limit grants. A rejected message stays rejected."""
    session, ends = await world.clerk.create_session("ada", limits=Limits(model_calls=3)), []
    for number in range(6):
        try:
            await world.clerk.run(f"{number}", session=session, message_id=f"m{number}")
            ends.append("answered")
        except LimitReached:
            ends.append("failed")
        await trio.sleep(dice.uniform(0, 1))
    yield
    assert ends == sorted(ends), ends
    assert 1 <= ends.count("answered") <= 3, ends
    assert [(await world.end_of(session, f"m{number}"))[0] for number in range(6)] == ends


@story
async def interrupt(world, dice):
    """An interrupted message is answered or fails, and its outcome never changes.

    The same holds for a message whose tool call runs in another pool.
    """
    session, (word, answer) = await world.open(), dice.choice((("", ""), ("digger ", "done: ")))
    answers = [f"{answer}you said: slowly {session.id}-{number}" for number in range(3)]
    for number in range(3):
        await session.chat(f"{word}slowly {session.id}-{number}", message_id=f"m{number}")
        await trio.sleep(dice.uniform(0, 2))
        await session.interrupt(message_id=f"m{number}")
    ends = [await world.end_of(session, f"m{number}") for number in range(3)]
    yield
    assert [await world.end_of(session, f"m{number}") for number in range(3)] == ends
    assert set(ends) <= {("answered", each) for each in answers} | {("failed", "Interrupted")}
    found = said(await session.history(), "assistant")
    assert [found.count(each) for each in answers] == [how == "answered" for how, _ in ends]


@story
async def urgent(world, dice):
    """An urgent message is answered. The message that it interrupts has one outcome."""
    session = await world.open()
    await session.chat("slowly a b c", message_id="m")
    await trio.sleep(dice.uniform(0, 3))
    await session.chat("now", message_id="u", priority="urgent")
    ends = [await world.end_of(session, each) for each in "mu"]
    yield
    assert [await world.end_of(session, each) for each in "mu"] == ends
    assert ends[1] == ("answered", "you said: now")
    answers = said(await session.history(), "assistant")
    assert answers.count("you said: now") == 1
    assert answers.count("you said: slowly a b c") == (ends[0][0] == "answered")


@story
async def tokens(world, dice):
    """The tokens of the last attempt form the final answer."""
    session, grown, whole = await world.open(), [], []
    session.on_token(grown.append)
    session.on_conversation(whole.append)
    for number in range(3):
        await session.chat(f"slowly {number} b c d e f", message_id=f"m{number}")
        await trio.sleep(dice.uniform(0, 2))
    yield
    await session.wait_idle()
    assert [each.text for each in whole] == [f"you said: slowly {number} b c d e f" for number in range(3)]
    for reply in whole:
        mine = [each for each in grown if each.reply_id == reply.id]
        last = max((each.attempt for each in mine), default=0)
        assert "".join(each.text for each in mine if each.attempt == last) in ("", reply.text)


@story
async def fork(world, dice):
    """A forked session and its origin get separate messages."""
    session = await world.open()
    await world.clerk.run("before", session=session, message_id="m0")
    await trio.sleep(dice.uniform(0, 4))
    made = await world.clients[0].fork(session.id, agent="clerk", new_id=f"{session.id}-copy")
    copy = await world.clerk.open_session(made.session_id)
    world.sessions.append(copy)
    await world.clerk.run("here", session=session, message_id="m1")
    await world.clerk.run("there", session=copy, message_id="m2")
    yield
    assert said(await session.history(), "user") == ["before", "here"]
    assert said(await copy.history(), "user") == ["before", "there"]


@story
async def close(world, dice):
    """A closed session stays closed: it cannot be opened again, and its task ends."""
    session = await world.clerk.create_session("ada")
    await session.delegate(dice.choice(world.diggers), f"slowly dig {session.id}")
    await session.chat(dice.choice(("slowly talk", f"digger slowly {session.id}")), message_id="m")
    await trio.sleep(dice.uniform(0, 3))
    await session.aclose()
    yield
    assert await session.status() == "closed"
    with suppress(SessionClosed):
        await world.clerk.open_session(session.id)
        raise AssertionError(f"{session.id} is closed, and was opened")


@story
async def stream(world, dice):
    """A stream delivers each answer exactly once and completely."""
    session, received = await world.open(), []
    texts = [f"{dice.choice(('slowly ', ''))}{session.id} {number} b c" for number in range(3)]
    for number, each in enumerate(texts):
        async with world.clerk.stream(each, session=session, message_id=f"m{number}") as deliveries:
            received += [
                delivery.text async for delivery in deliveries if isinstance(delivery, Reply | Failure)
            ]
        await trio.sleep(dice.uniform(0, 1))
    yield
    assert received == said(await session.history(), "assistant") == [f"you said: {each}" for each in texts]


@story
async def sleep(world, dice):
    """Evicted sessions keep their messages and answers, whichever client loads them again."""
    sessions = [await world.open() for _ in range(10)]
    for number in range(3):
        dice.shuffle(sessions)
        for session in sessions:
            there = await dice.choice(world.clients).agent("clerk").open_session(session.id)
            await there.chat(f"{session.id}-{number}", message_id=f"m{number}")
            await trio.sleep(dice.uniform(0, 0.3))
    yield
    for session in sessions:
        await session.wait_idle()
        texts = [f"{session.id}-{number}" for number in range(3)]
        assert said(await session.history(), "user") == texts
        assert said(await session.history(), "assistant") == [f"you said: {each}" for each in texts]


@story
async def sleeper(world, dice):
    """An approval, a schedule and a queued message each continue exactly once, without an open session object."""
    session = await world.open()
    await session.chat(f"deploy {session.id}", message_id="m1")
    waits = await asked(session.approvals)
    await session.schedule(f"tick {session.id}", after=dice.uniform(1, 5), key="k")
    await session.chat("behind", message_id="m2")
    await trio.sleep(dice.uniform(0, 6))
    there = await world.clients[1].agent("clerk").open_session(session.id)
    await there.answer(waits[0].id, Reject("no"))

    async def fired():
        return not await session.schedules()

    await asked(fired)
    yield
    await session.wait_idle()
    history = await session.history()
    (error,) = errors(history)
    assert error is not None
    answers = said(history, "assistant")
    assert answers.count("you said: behind") == 1
    assert len([each for each in answers if f"tick {session.id}" in each]) == 1
    assert len([each for each in answers if each.startswith("done: ")]) == 1


@story
async def pool(world, dice):
    """Each request to another pool is answered once with the answer of that pool."""
    session = await world.open()
    texts = [f"{dice.choice(('slowly ', ''))}{session.id}-{number}" for number in range(3)]
    for number, each in enumerate(texts):
        await session.chat(f"digger {each}", message_id=f"m{number}")
        await trio.sleep(dice.uniform(0, 1.5))
    yield
    await session.wait_idle()
    history = await session.history()
    assert errors(history) == [None] * 3
    assert [each for each in said(history, "assistant") if each] == [
        f"done: you said: {each}" for each in texts
    ]


@story
async def grant(world, dice):
    """The unused part of a grant to another pool returns to the session.

    The calls do not exceed the budget and do not exceed the paid calls.
    """
    session, ends = await world.clerk.create_session("ada", limits=Limits(model_calls=9)), []
    for number in range(5):
        await session.chat(f"digger {session.id}-{number}", message_id=f"m{number}")
        ends.append(await world.end_of(session, f"m{number}"))
        await trio.sleep(dice.uniform(0, 1))
    yield
    assert [await world.end_of(session, f"m{number}") for number in range(5)] == ends
    expected = [("answered", f"done: you said: {session.id}-{number}") for number in range(5)]
    assert ends[0] == expected[0], ends
    assert len([each for each in ends if each in expected]) <= 3, ends
    assert {text for how, text in ends if how == "failed"} == {"LimitReached"}
    calls = sum(count for what, count in world.calls.items() if f"{session.id}-" in what)
    assert calls <= await paid(world.cluster, session.id, agent="clerk") <= 9


@story
async def post(world, dice):
    """For a plain HTTP client, a repeated POST with one key has one effect.

    The event stream resumes after the last event number.
    """
    url, options = world.ways[-1]
    head = {"authorization": f"Bearer {options['token']}"}
    async with httpx2.AsyncClient(base_url=f"{url}/v1", headers=head, timeout=30) as http:
        made = await post_again(http, dice, "/sessions", f"s{dice.random()}", {"agent": "clerk"})
        place, received = f"/sessions/{made['id']}", {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect_events, http, f"{place}/events", received)
            for number in range(6):
                body = {"input": f"{made['id']}-{number}"}
                told = await post_again(http, dice, f"{place}/messages", f"m{number}", body)
                assert told["message_id"] == f"m{number}"
                await trio.sleep(dice.uniform(0, 1))
            while names(received).count("reply") < 6:  # noqa: ASYNC110 - a callback changes this state
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
    yield
    replies = [each.data["text"] for each in received.values() if each.name == "reply"]
    assert replies == [f"you said: {made['id']}-{number}" for number in range(6)]
    ends = [
        (each.data["message_id"], each.data["failed"]) for each in received.values() if each.name == "ended"
    ]
    assert [each for each in ends if each[1] != "refused"] == [(f"m{number}", None) for number in range(6)], (
        ends
    )
    world.sessions.append(await world.clerk.open_session(made["id"]))


async def post_again(http, dice, place, key, body):
    """Post until the gateway accepts the request, and in half of the cases once more. Return the first response.

    Assert that both responses have the same ids.
    """
    answers = []
    while len(answers) < dice.randint(1, 2):
        with suppress(httpx2.TransportError):
            answer = await http.post(place, json=body, headers={"idempotency-key": key})
            if answer.is_success:
                answers.append(answer.json())
                continue
            assert answer.status_code in BUSY, answer.text
        await trio.sleep(0.2)
    kept = [{name: each.get(name) for name in ("id", "message_id")} for each in answers]
    assert kept[0] == kept[-1]
    return answers[0]


async def collect_events(http, place, heard):
    """Collect all events of a session by number over any number of connections.

    Assert that no number repeats.
    """
    while True:
        with suppress(httpx2.TransportError):
            expected = {"accept": "text/event-stream", "last-event-id": str(max(heard, default=0))}
            async with http.stream("GET", place, headers=expected) as answer:
                if not answer.is_success:
                    assert answer.status_code in BUSY, (
                        answer.status_code,
                        await answer.aread(),
                        answer.headers,
                    )
                decoder = StreamDecoder()
                async for piece in answer.aiter_bytes():
                    for event in decoder.feed(piece):
                        if event.number is not None:
                            assert event.number > max(heard, default=0), (event, heard)
                            heard[event.number] = event
        await trio.sleep(0.2)


def names(heard):
    return [each.name for each in heard.values()]
