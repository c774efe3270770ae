"""What clients live through in a cluster that `schedules.py` has disasters befall.

A story is an async generator in `STORIES`: what it does up to its `yield` is done beside the deeds, what stands behind it is what
is to be so when all is over. It gets the `World`, with two of its clients, and dice of its own.
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

from .conversations import hear_process
from .test_pools_killed import paid

VISITOR = Path(__file__).with_name("client_process.py")
BUSY = (429, 502, 503, 504)
"""What a gateway says to whoever is to come again."""
STORIES = {}


def story(told):
    STORIES[told.__name__] = told
    return told


def said(history, kind):
    return [each.text for each in history if each.sender.kind == kind]


async def asked(question):
    """Ask until there is an answer that says something; that."""
    while not (found := await question()):  # noqa: ASYNC110 - it is asked
        await trio.sleep(0.2)
    return found


def errors(history):
    """What went wrong with tools, None where nothing did."""
    return [result.error for each in history for result in each.tool_results]


@story
async def talk(world, dice):
    """Each message is answered once, in order, for who hears and in the journal, though it is said twice."""
    session, heard = await world.open(), []
    session.on_conversation(lambda reply: heard.append(reply.text))
    words = [f"{session.id}-{number}" for number in range(8)]
    for each in words:
        for _ in range(dice.randint(1, 2)):
            await session.chat(each, message_id=each)
        await trio.sleep(dice.uniform(0, 1))
    yield
    await session.wait_idle()
    history, answers = await session.history(), [f"you said: {each}" for each in words]
    assert said(history, "user") == words
    assert said(history, "assistant") == answers
    assert heard == answers


@story
async def visitor(world, dice):
    """A client that is killed says all of it again when it comes back, and each message is in the session once."""
    session = await world.open()
    url, options = dice.choice(world.ways)
    command = [sys.executable, VISITOR, url, json.dumps(options), session.id, "8"]
    for is_last in (False, True):
        process = world.lives.popen(command, stdout=subprocess.PIPE)
        async with trio.open_nursery() as nursery:
            if is_last:
                await nursery.start(hear_process, process, lambda *_: None)
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
    """What is done once is done at most once, and if not is said to be unknown; what may be repeated has a result."""
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
    """Of two people who decide at once one is told that it counts, and that is what is done."""
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
    """A task is reported once, with its result, or, where it was stopped, without."""
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
    """What two set with one key fires once."""
    session, words = await world.open(), f"tick {dice.random()}"
    there = await world.clients[1].agent("clerk").open_session(session.id)
    for each in (session, there):
        await each.schedule(words, after=dice.uniform(2, 6), key="k")

    async def fired():
        return not await session.schedules()

    await asked(fired)
    yield
    await session.wait_idle()
    history = await session.history()
    assert len([each for each in history if words in each.text and each.sender.kind != "assistant"]) == 1
    assert len(said(history, "assistant")) == 1


@story
async def mode(world, dice):
    """A mode holds."""
    session = await world.open()
    for number in range(4):
        await session.set_mode("plan" if number % 2 else "act")
        await trio.sleep(dice.uniform(0, 1.5))
    yield
    assert await session.mode() == "plan"


@story
async def budget(world, dice):
    """No more is answered than was granted, and what was refused stays so."""
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
    """What is stopped was answered or failed, the one or the other for ever; so is what another pool does for it."""
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
    """What is urgent is answered, and what it comes between has one end."""
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
    """What grows is the answer in the end."""
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
    """A copy goes its own way."""
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
    """A tree that is closed has ended: it is not opened again, and its task comes to nothing."""
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
    """Who reads an answer along hears it once, to its end."""
    session, heard = await world.open(), []
    words = [f"{dice.choice(('slowly ', ''))}{session.id} {number} b c" for number in range(3)]
    for number, each in enumerate(words):
        async with world.clerk.stream(each, session=session, message_id=f"m{number}") as deliveries:
            heard += [told.text async for told in deliveries if isinstance(told, Reply | Failure)]
        await trio.sleep(dice.uniform(0, 1))
    yield
    assert heard == said(await session.history(), "assistant") == [f"you said: {each}" for each in words]


@story
async def sleep(world, dice):
    """Sessions of which few stay in memory are as they were, whoever wakes them."""
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
        words = [f"{session.id}-{number}" for number in range(3)]
        assert said(await session.history(), "user") == words
        assert said(await session.history(), "assistant") == [f"you said: {each}" for each in words]


@story
async def sleeper(world, dice):
    """What wakes a session by itself does it once, and in its order, though nobody holds the session."""
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
    """What another pool is asked is answered once, as it was there."""
    session = await world.open()
    words = [f"{dice.choice(('slowly ', ''))}{session.id}-{number}" for number in range(3)]
    for number, each in enumerate(words):
        await session.chat(f"digger {each}", message_id=f"m{number}")
        await trio.sleep(dice.uniform(0, 1.5))
    yield
    await session.wait_idle()
    history = await session.history()
    assert errors(history) == [None] * 3
    assert [each for each in said(history, "assistant") if each] == [
        f"done: you said: {each}" for each in words
    ]


@story
async def grant(world, dice):
    """What a pool is granted comes back as far as it was not taken, and no more is taken than there was, nor than was paid."""
    session, ends = await world.clerk.create_session("ada", limits=Limits(model_calls=9)), []
    for number in range(5):
        await session.chat(f"digger {session.id}-{number}", message_id=f"m{number}")
        ends.append(await world.end_of(session, f"m{number}"))
        await trio.sleep(dice.uniform(0, 1))
    yield
    assert [await world.end_of(session, f"m{number}") for number in range(5)] == ends
    wanted = [("answered", f"done: you said: {session.id}-{number}") for number in range(5)]
    assert ends[0] == wanted[0], ends
    assert len([each for each in ends if each in wanted]) <= 3, ends
    assert {words for how, words in ends if how == "failed"} == {"LimitReached"}
    calls = sum(count for what, count in world.calls.items() if f"{session.id}-" in what)
    assert calls <= await paid(world.cluster, session.id, agent="clerk") <= 9


@story
async def post(world, dice):
    """Who has no client of ours: what is posted again with its key is done once, and events go on behind the last number."""
    url, options = world.ways[-1]
    head = {"authorization": f"Bearer {options['token']}"}
    async with httpx2.AsyncClient(base_url=f"{url}/v1", headers=head, timeout=30) as http:
        made = await post_again(http, dice, "/sessions", f"s{dice.random()}", {"agent": "clerk"})
        place, heard = f"/sessions/{made['id']}", {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear_events, http, f"{place}/events", heard)
            for number in range(6):
                body = {"input": f"{made['id']}-{number}"}
                told = await post_again(http, dice, f"{place}/messages", f"m{number}", body)
                assert told["message_id"] == f"m{number}"
                await trio.sleep(dice.uniform(0, 1))
            while names(heard).count("reply") < 6:  # noqa: ASYNC110 - a stream tells it
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
    yield
    replies = [each.data["text"] for each in heard.values() if each.name == "reply"]
    assert replies == [f"you said: {made['id']}-{number}" for number in range(6)]
    ends = [(each.data["message_id"], each.data["failed"]) for each in heard.values() if each.name == "ended"]
    assert [each for each in ends if each[1] != "refused"] == [(f"m{number}", None) for number in range(6)], (
        ends
    )
    world.sessions.append(await world.clerk.open_session(made["id"]))


async def post_again(http, dice, place, key, body):
    """Post until it is taken, and perhaps once more, which says the same."""
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


async def hear_events(http, place, heard):
    """Keep all events of a session by their numbers, over any number of connections; none may come twice."""
    while True:
        with suppress(httpx2.TransportError):
            wanted = {"accept": "text/event-stream", "last-event-id": str(max(heard, default=0))}
            async with http.stream("GET", place, headers=wanted) as answer:
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
