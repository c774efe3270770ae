"""The same workloads with actgent, written against the public API only."""

import asyncio
import itertools
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
import trio.testing
from agent_folders import measure_loading
from commits import open_table, time_blocking_commits, time_commits
from growth import measure_streams, measure_tree
from idle_sessions import compare_crowds
from long_sessions import measure_long_sessions
from loops import measure_loops
from measure import (
    ANSWER,
    CHUNK,
    SYSTEM,
    Countdown,
    Figures,
    Stopwatch,
    expect,
    leftovers,
    long,
    peak_rss,
    percentile,
    rss,
    short,
    windows,
)
from model_adapters import measure_adapted
from pending_approvals import wait_for_people
from shared_rate_limit import LIMITS, open_shared
from timers import time_sessions
from traced import measure_telemetry
from trio.lowlevel import checkpoint

from actgent import (
    LLM,
    BareAgent,
    Limits,
    OpenAI,
    Priority,
    RateLimiter,
    ScriptedLLM,
    Session,
    Text,
    ToolCall,
    open_portal,
    open_runtime,
    tool,
)
from actgent.actors.actor import Actor
from actgent.actors.actor_ref import ActorRef
from actgent.actors.actor_system import open_system
from actgent.definitions.agent_folder import read_folder
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    AgentMessageRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    Record,
    SessionCreatedRecord,
    StateChangeRecord,
)
from actgent.llm.model_interface import ModelRequest, ModelResponse, OnText
from actgent.messages import ChatMessage, Message, Sender

SAID = ModelResponse(parts=(Text(ANSWER),))
WANTS_SUM = ModelResponse(parts=(ToolCall("add", {"a": 2, "b": 3}, id="call_1"),), stop="tool_calls")

# --- models: one checkpoint a call --------------------------------------------------------


class Instant(LLM):
    """A model that answers immediately."""

    name = "bench:instant"

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await checkpoint()
        return SAID


class Slow(LLM):
    """A model that answers after 100 ms."""

    name = "bench:slow"

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await trio.sleep(0.1)
        return SAID


class Endless(LLM):
    """A model that never answers and counts its pending calls."""

    name = "bench:endless"

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await trio.sleep_forever()
        return SAID


class Adding(LLM):
    """A model that requests a sum and then answers with it."""

    name = "bench:adding"

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await checkpoint()
        last = chat.messages[-1]
        if last.role != "tool":
            return WANTS_SUM
        return ModelResponse(parts=(Text(f"The sum is {last.parts[0].text}"),))


class Growing(LLM):
    """A model with a new answer each time, which checks that it received the whole history."""

    name = "bench:growing"

    def __init__(self) -> None:
        self.calls = 0
        self.last: ModelRequest | None = None

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await checkpoint()
        self.calls += 1
        self.last = chat
        expect(seen=len(chat.messages), wanted=2 * self.calls - 1, what="messages that the model saw")
        return ModelResponse(parts=(Text(long(1_000_000 + self.calls)),))


class Verbose(LLM):
    """A model that answers with a thousand characters."""

    name = "bench:verbose"

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await checkpoint()
        return ModelResponse(parts=(Text(short(len(chat.messages)) * 25),))


class Chunked(LLM):
    """A model that streams `count` chunks."""

    name = "bench:chunked"

    def __init__(self, count: int) -> None:
        self.count = count

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        for _ in range(self.count):
            await checkpoint()
            if on_text is not None:
                await on_text(CHUNK, 0)
        return ModelResponse(parts=(Text(CHUNK * self.count),))


class Streams(LLM):
    """A model that streams without end to normal messages, answers URGENT ones, and records when a stream was cancelled."""

    name = "bench:streams"

    def __init__(self) -> None:
        self.stopped: Callable[[float], None] = lambda _: None

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        if "urgent" in chat.messages[-1].parts[0].text:
            await checkpoint()
            return SAID
        try:
            while True:
                await trio.sleep(0.02)
                if on_text is not None:
                    await on_text(CHUNK, 0)
        finally:
            self.stopped(time.perf_counter())


@tool(thread=False)
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def make_agent(llm: LLM, *, sessions: int = 100, **options: Any) -> BareAgent:
    """Return an agent with a prompt of one sentence and room for `sessions` concurrent sessions."""
    options = {"inbox_capacity": max(1000, 2 * sessions)} | options
    return BareAgent("bench", role=SYSTEM, llm=llm, max_concurrent_sessions=sessions, **options)


# --- the workloads ------------------------------------------------------------------------


class Echo(Actor):
    """An actor that answers with its message."""

    async def receive(self, payload: Any) -> object:
        return payload


class Asker(Actor):
    """An actor that asks another one sequentially, and answers with the CPU time of a message."""

    async def receive(self, payload: Any) -> object:
        other, count = payload
        watch = Stopwatch()
        for number in range(count):
            expect(seen=await other.ask(number, deadline=30), wanted=number, what="the answer")
        return watch.cpu_us(2 * count)


class Counter(Actor):
    """An actor that counts its messages."""

    def __init__(self, countdown: Countdown) -> None:
        self.countdown = countdown

    async def receive(self, payload: Any) -> object:
        return self.countdown.tick()


async def hop(count: int) -> Figures:
    async with open_system() as system:
        echo, asker = await system.spawn(Echo), await system.spawn(Asker)
        hop_us = await asker.ask((echo, count), deadline=600)
        countdown = Countdown(2 * count)
        tell_us = await _tell(await system.spawn(lambda: Counter(countdown)), countdown, 2 * count)
    return {"hop_us": hop_us, "tell_us": tell_us}


async def _tell(ref: ActorRef, countdown: Countdown, count: int) -> float:
    watch = Stopwatch()
    for number in range(count):
        await ref.tell(number)
    await countdown.done.wait()
    return watch.cpu_us(count)


async def turns(count: int) -> Figures:
    return {"turn_us": await _batches(count, make_agent(Instant()), ANSWER)}


async def tool_loop(count: int) -> Figures:
    return {"turn_us": await _batches(count, make_agent(Adding(), tools=[add]), "The sum is 5")}


async def limited(count: int) -> Figures:
    """Run the tool loop with all limits and without, alternating; the best of each counts."""
    limits = Limits(model_calls=10, tool_calls=10, tokens=100_000, seconds=60)
    agents = {
        "plain_us": lambda: make_agent(Adding(), tools=[add]),
        "limits_us": lambda: make_agent(Adding(), tools=[add], limits=limits),
    }
    best = dict.fromkeys(agents, math.inf)
    for _ in range(5):
        for name, make in agents.items():
            best[name] = min(best[name], await _batches(max(50, count // 250 * 50), make(), "The sum is 5"))
    return best | {"limits_ratio": best["limits_us"] / best["plain_us"]}


async def _batches(count: int, agent: BareAgent, wanted: str) -> float:
    answers: list[str] = []
    async with agent:
        watch = Stopwatch()
        for first in range(0, count, 50):
            countdown = Countdown(50)

            def handler(reply: Any, tick: Callable[[], None] = countdown.tick) -> None:
                answers.append(reply.text)
                tick()

            sessions = [await agent.create_session("ada") for _ in range(50)]
            for number, session in enumerate(sessions, first):
                session.on_conversation(handler)
                await session.chat(short(number))
            await countdown.done.wait()
        await sessions[-1].wait_idle()
        turn_us = watch.cpu_us(count)
    expect(seen=(len(answers), answers[-1]), wanted=(count, wanted), what="answers")
    return turn_us


async def durable(count: int) -> Figures:
    """Run turns without and with a journal, alternating, because the speed of the machine drifts within a run."""
    with tempfile.TemporaryDirectory() as folder:
        slices = [await _durable_slice(count // 5, f"sqlite:///{folder}/crowd{n}.db") for n in range(5)]
        single = await _durable_single(count // 10, folder)
        single |= await _relaxed_single(count // 10, f"sqlite:///{folder}/relaxed.db")
    crowd = {name: percentile([each[name] for each in slices], 0.5) for name in slices[0]}
    return crowd | single


async def _durable_slice(count: int, url: str) -> Figures:
    plain_us = (await turns(count))["turn_us"]
    crowd = await _durable_crowd(count, url)
    return crowd | {"cpu_ratio": crowd["turn_us"] / plain_us}


async def _durable_crowd(count: int, url: str, *, sessions: int = 100) -> Figures:
    """Run many sessions at once. Each sends its next message when the last one is answered."""
    each = max(1, count // sessions)
    async with open_journal(url) as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(make_agent(Instant()))
        opened = [await agent.create_session("ada") for _ in range(sessions)]
        commits, watch = journal.statistics.commits, Stopwatch()
        async with trio.open_nursery() as nursery:
            for session in opened:
                nursery.start_soon(_converse, session, each)
        turn_us = watch.cpu_us(each * sessions)
        commits = journal.statistics.commits - commits
    expect(seen=sum(len(session.history) for session in opened), wanted=2 * each * sessions, what="messages")
    return {"turn_us": turn_us, "commits_turn": commits / (each * sessions)}


async def _converse(session: Session, count: int) -> None:
    arrived = [trio.Event()]
    session.on_conversation(lambda _: arrived[0].set())
    for number in range(count):
        await session.chat(short(number))
        await arrived[0].wait()
        arrived[0] = trio.Event()


async def _durable_single(count: int, folder: str) -> Figures:
    """Measure one session alone, from a message to its committed answer, alternating with two raw commits.

    The raw commits are those of a trio program that writes from a thread. `blocking_ratio` compares the turn with commits that
    block the event loop. `created_ratio` compares a turn in a new session with three commits.
    """
    times, raw, blocking, created, db = [], [], [], [], open_table(f"{folder}/raw.db")
    cpu = 0.0
    async with open_runtime(journal=f"sqlite:///{folder}/single.db") as runtime:
        agent = await runtime.start(make_agent(Instant()))
        session = await agent.create_session("ada")
        for number in range(count):
            watch = Stopwatch()
            await _say(session, number)
            cpu += watch.cpu_us(count)
            times.append(watch.wall_s() * 1e3)
            raw.append(await time_commits(db, short(number), ANSWER))
            blocking.append(time_blocking_commits(db, short(number), ANSWER))
            watch = Stopwatch()
            await _say(await agent.create_session("ada"), number)
            new = watch.wall_s() * 1e3
            created.append(new / await time_commits(db, short(number), short(number), ANSWER))
    db.close()
    single_ms = percentile(times, 0.5)
    return {
        "single_ms": single_ms,
        "single_ratio": single_ms / percentile(raw, 0.5),
        "single_us": cpu,
        "created_ratio": percentile(created, 0.5),
        "blocking_ratio": single_ms / percentile(blocking, 0.5),
    }


async def _say(session: Session, number: int) -> None:
    """Send one message and wait for its answer."""
    await session.chat(short(number))
    await session.wait_idle()


async def _relaxed_single(count: int, url: str) -> Figures:
    """Measure from a message to its answer without a wait for the commit."""
    times = []
    async with open_runtime(journal=url, durability="relaxed") as runtime:
        agent = await runtime.start(make_agent(Instant()))
        session, arrived = await agent.create_session("ada"), [trio.Event()]
        session.on_conversation(lambda _: arrived[0].set())
        for number in range(count):
            started = time.perf_counter()
            await session.chat(short(number))
            await arrived[0].wait()
            times.append((time.perf_counter() - started) * 1e3)
            arrived[0] = trio.Event()
    return {"relaxed_ms": percentile(times, 0.5)}


async def recover(count: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        return {
            "session_ms": await _recover_session(count, f"sqlite:///{folder}/long.db"),
            "state_ms": await _recover_state(count, f"sqlite:///{folder}/state.db"),
            "resume_s": await _resume_sessions(100, f"sqlite:///{folder}/many.db"),
            "journal_mb": await _fill_journal(400, Path(folder) / "large.db"),
        }


async def _recover_session(records: int, url: str) -> float:
    """Return the milliseconds to open a session with the given number of records, four for each turn."""
    async with open_journal(url) as journal:
        epoch = await journal.acquire()
        journal.enqueue_write(_entry(SessionCreatedRecord(owner=Sender("ada"), created_at=0.0)), epoch=epoch)
        for number in range(records // 4):
            journal.enqueue_write(_entry(*_turn_records(number)), epoch=epoch)
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(make_agent(Instant()))
        watch = Stopwatch()
        session = await agent.open_session("s")
        took = watch.wall_s() * 1e3
        expect(seen=len(session.history), wanted=records // 2, what="messages of the recovered session")
    return took


async def _recover_state(changes: int, url: str) -> float:
    """Return the milliseconds to open a session in whose state a list grew by the given number of changes."""
    async with open_journal(url) as journal:
        epoch = await journal.acquire()
        journal.enqueue_write(_entry(SessionCreatedRecord(owner=Sender("ada"), created_at=0.0)), epoch=epoch)
        for number in range(changes):
            grown = StateChangeRecord(changes={"log": short(number)}, reduced={"log": "append"}, action="log")
            journal.enqueue_write(_entry(grown), epoch=epoch)
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(make_agent(Instant()))
        watch = Stopwatch()
        session = await agent.open_session("s")
        took = watch.wall_s() * 1e3
        expect(seen=len(session.state["log"]), wanted=changes, what="values in the recovered state")
    return took


def _turn_records(number: int) -> tuple[Record, ...]:
    asked = Message(session_id="s", sender=Sender("ada"), parts=(Text(short(number)),))
    message = Message(session_id="s", sender=Sender("bench", "agent"), parts=SAID.parts)
    return (
        MessageAcceptedRecord(message=asked),
        MessageAppendedRecord(message_id=asked.id),
        AgentMessageRecord(message=message, stop="end", calls=1),
        MessageEndRecord(message_id=asked.id),
    )


def _entry(*records: Record) -> Entry:
    return Entry(session_id="s", agent="bench", records=records)


async def _resume_sessions(count: int, url: str) -> float:
    """Return the seconds from opening the journal to the answers of sessions that were interrupted in their eleventh turn."""
    countdown = Countdown(count)
    with trio.CancelScope() as scope:
        async with open_runtime(journal=url) as runtime:
            model = Instant()
            agent = await runtime.start(make_agent(model, limits=Limits(model_timeout=math.inf)))
            sessions = [await agent.create_session("ada") for _ in range(count)]
            async with trio.open_nursery() as nursery:
                for session in sessions:
                    nursery.start_soon(_converse, session, 10)
            model.complete = Endless().complete  # type: ignore[method-assign] - from now on
            for session in sessions:
                await session.chat(short(10))
            scope.cancel()
            await checkpoint()
    watch = Stopwatch()
    async with open_runtime(journal=url) as runtime:
        agent = make_agent(Instant())
        agent.on_session(lambda session: session.on_conversation(countdown.tick))
        await runtime.start(agent)
        await countdown.done.wait()
        return watch.wall_s()


async def _fill_journal(turns: int, path: Path) -> float:
    """Return the megabytes on disk of a conversation of 800 KB, 2 KB for each turn."""
    async with open_runtime(journal=f"sqlite:///{path}") as runtime:
        agent = await runtime.start(make_agent(Verbose()))
        session = await agent.create_session("ada")
        for number in range(turns):
            await session.chat(short(number) * 25)
            await session.wait_idle()
        expect(
            seen=sum(len(message.text) for message in session.history), wanted=2000 * turns, what="characters"
        )
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")) / 1e6


async def growing_history(count: int) -> Figures:
    arrived, marks, model = [trio.Event()], [], Growing()
    async with make_agent(model) as agent:
        session = await agent.create_session("ada")
        session.on_conversation(lambda _: arrived[0].set())
        before = rss()
        for number in range(count):
            marks.append(time.process_time())
            arrived[0] = trio.Event()
            await session.chat(long(number))
            await arrived[0].wait()
        marks.append(time.process_time())
        grown = rss() - before
    texts = {part.text for message in model.last.messages for part in message.parts}
    expect(seen=len(texts), wanted=2 * count - 1, what="different messages")
    return windows(marks, grown)


async def fan_out(count: int) -> Figures:
    before, countdown, latencies = rss(), Countdown(count), []
    async with make_agent(Slow(), sessions=count) as agent:
        watch = Stopwatch()
        sessions = [await agent.create_session("ada") for _ in range(count)]
        for number, session in enumerate(sessions):
            started = time.perf_counter()

            def handler(_: object, started: float = started) -> None:
                latencies.append(time.perf_counter() - started)
                countdown.tick()

            session.on_conversation(handler)
            await session.chat(short(number))
        await countdown.done.wait()
        wall_s, turn_us = watch.wall_s(), watch.cpu_us(count)
    return {
        "wall_s": wall_s,
        "p99_s": percentile(latencies, 0.99),
        "turn_us": turn_us,
        "rss_each": (peak_rss() - before) / count,
    }


async def idle(count: int) -> Figures:
    model = Instant()
    async with make_agent(model, sessions=count) as agent:
        countdown, before = Countdown(count), rss()
        sessions = [await agent.create_session("ada") for _ in range(count)]
        for number, session in enumerate(sessions):
            session.on_conversation(countdown.tick)
            await session.chat(short(number))
        await countdown.done.wait()
        await sessions[-1].wait_idle()
        session_bytes = (rss() - before) / count
    return {"session_bytes": session_bytes, **await _idle_agents(count // 5, model)}


async def _idle_agents(count: int, model: LLM) -> Figures:
    """Return memory and CPU of a started agent, and the memory of an agent that is idle after its first session ended."""
    async with open_runtime() as runtime:
        before, watch = rss(), Stopwatch()
        agents = [
            await runtime.start(BareAgent(name=f"agent-{number}", role=SYSTEM, llm=model, tools=[add]))
            for number in range(count)
        ]
        agent_us = watch.cpu_us(count)
        agent_bytes = (rss() - before) / count
        for number, agent in enumerate(agents, 1):
            await agent.run(short(0))
            if number % 20 == 0:
                await trio.sleep(10)  # the tasks of idle agents end, and the next agents use their memory
        return {
            "agent_bytes": agent_bytes,
            "agent_us": agent_us,
            "used_agent_bytes": (rss() - before) / count,
        }


async def streaming(count: int) -> Figures:
    seen: list[str] = []
    async with make_agent(Chunked(count)) as agent:
        session, done = await agent.create_session("ada"), trio.Event()
        session.on_token(lambda token: seen.append(token.text))
        session.on_conversation(lambda _: done.set())
        watch = Stopwatch()
        await session.chat(short(0))
        await done.wait()
        chunk_us = watch.cpu_us(count)
    expect(seen="".join(seen), wanted=CHUNK * count, what="the streamed text")
    return {"chunk_us": chunk_us}


async def json_streaming(characters: int) -> Figures:
    return await measure_streams(characters)


async def tree(count: int) -> Figures:
    return await measure_tree(count)


async def urgent(count: int) -> Figures:
    model, latencies = Streams(), []
    with trio.CancelScope() as scope:
        async with make_agent(model, sessions=200, inbox_capacity=12_000) as agent:
            sessions = [await agent.create_session("ada") for _ in range(200)]
            for number, session in itertools.product(range(51), sessions):
                await session.chat(short(number))
            for session in sessions:
                session.on_exception(lambda _: None)
            await trio.sleep(0.05)
            for session in sessions[:count]:
                latencies.append(await _interrupt(session, model) * 1e3)
                await trio.sleep(0.005)
            scope.cancel()
            await checkpoint()
    return {"p99_ms": percentile(latencies, 0.99), "median_ms": percentile(latencies, 0.5)}


async def _interrupt(session: Session, model: Streams) -> float:
    """Return the seconds from an URGENT message to the end of the stream of its session."""
    ended, times = trio.Event(), []

    def stopped(moment: float) -> None:
        times.append(moment)
        ended.set()

    model.stopped = stopped
    started = time.perf_counter()
    await session.chat("urgent", priority=Priority.URGENT)
    await ended.wait()
    return times[0] - started


async def cancel(count: int) -> Figures:
    before = leftovers()
    with trio.CancelScope() as scope:
        async with make_agent(Endless(), sessions=count) as agent:
            for number in range(count):
                session = await agent.create_session("ada")
                await session.chat(short(number))
            await trio.testing.wait_all_tasks_blocked()
            watch = Stopwatch()
            scope.cancel()
            await checkpoint()
    wall_s = watch.wall_s()
    expect(seen=leftovers(), wanted=before, what="tasks, file descriptors and threads")
    return {"wall_s": wall_s}


# --- LOOPS: steps of the autonomous loops ------------------------------------------------


async def granted(count: int) -> Figures:
    rate_limiter = RateLimiter(requests_per_minute=LIMITS.requests, tokens_per_minute=LIMITS.tokens)
    async with open_shared() as shared:
        llm = OpenAI("m", base_url=shared.provider.base_url, api_key="k", rate_limiter=rate_limiter)

        async def ask(session: str, urgent: bool) -> None:
            message = ChatMessage("user", (Text(session),))
            priority = Priority.URGENT if urgent else Priority.NORMAL
            await llm.complete(ModelRequest(messages=(message,), session=session, priority=priority))

        figures = await shared.measure(ask, count, let_go=lambda: rate_limiter.statistics().admitted)
        await llm.aclose()
    return figures


async def lasting(size: int) -> Figures:
    """MEMORY: see `long_term_memory`."""
    from long_term_memory import remember_and_recall

    return await remember_and_recall(size)


async def beside(size: int) -> Figures:
    """BACKGROUND: see `background_work`."""
    from background_work import measure_beside

    return await measure_beside(size)


async def asleep(size: int) -> Figures:
    return await compare_crowds(size)


async def long_sessions(size: int) -> Figures:
    return await measure_long_sessions(size)


async def loops(count: int) -> Figures:
    return await measure_loops(count)


# --- FOLDER: files ----------------------------------------------------------------------


async def folder(count: int) -> Figures:
    return measure_loading(lambda path: len(read_folder(path).instructions), count)


async def waits(size: int) -> Figures:
    """WAITS: see `pending_approvals`."""
    return await wait_for_people(size)


async def timers(size: int) -> Figures:
    """TIMERS: see `timers`."""
    return await time_sessions(size)


async def traced(size: int) -> Figures:
    """Run turns with telemetry; see `measure_telemetry`."""
    return await measure_telemetry(size)


async def adapted(size: int) -> Figures:
    """Run turns with models without the base class; see `measure_adapted`."""
    return await measure_adapted(size)


async def carry_over(size: int) -> Figures:
    """Return the CPU of a turn through a portal beyond a turn on trio, from synchronous code and from asyncio."""
    async with BareAgent("direct", llm=ScriptedLLM([ANSWER], repeat=True)) as agent:
        await agent.run(short(0))
        watch = Stopwatch()
        for number in range(size):
            await agent.run(short(number))
        direct = watch.cpu_us(size)
    sync = await trio.to_thread.run_sync(_carry_sync, size)
    cooperative = await trio.to_thread.run_sync(lambda: asyncio.run(_carry_in_asyncio(size)))
    return {"sync_us": max(0, sync - direct), "asyncio_us": max(0, cooperative - direct), "direct_us": direct}


def _carry_sync(size: int) -> float:
    with open_portal() as portal:
        agent = portal.start(BareAgent("sync", llm=ScriptedLLM([ANSWER], repeat=True)))
        expect(seen=agent.run(short(0)).text, wanted=ANSWER, what="answer")
        watch = Stopwatch()
        for number in range(size):
            agent.run(short(number))
        return watch.cpu_us(size)


async def _carry_in_asyncio(size: int) -> float:
    async with open_portal() as portal:
        agent = await portal.start(BareAgent("asyncio", llm=ScriptedLLM([ANSWER], repeat=True)))
        expect(seen=(await agent.run(short(0))).text, wanted=ANSWER, what="answer")
        watch = Stopwatch()
        for number in range(size):
            await agent.run(short(number))
        return watch.cpu_us(size)
