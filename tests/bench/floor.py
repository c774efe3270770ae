"""The floor: the agreed workloads with trio, a heap and a dict only.

Each actor is a nursery task, an inbox is a heap of (priority, sequence, message), a history is a list, a model call is one
checkpoint, a tool call is a dict look-up and a call, and a handler is called. There is no validation, tracing or copying.

No workload imports actgent before it needs it. More live objects make Python collect garbage less often, so the floor would be
measured with fewer collections than it causes.
"""

import heapq
import itertools
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import msgpack
import trio
import trio.testing
from agent_folders import measure_loading
from commits import open_table, time_commits
from measure import (
    ANSWER,
    CHUNK,
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
from trio.lowlevel import Abort, checkpoint, current_task, reschedule, wait_task_rescheduled

NORMAL, URGENT = 2, 0


class Inbox:
    """A heap of (priority, sequence, message) with one waiting task."""

    __slots__ = ("heap", "sequence", "waiter")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Any]] = []
        self.sequence = itertools.count()
        self.waiter: trio.lowlevel.Task | None = None

    def put(self, message: object, priority: int = NORMAL) -> None:
        heapq.heappush(self.heap, (priority, next(self.sequence), message))
        if self.waiter is not None:
            reschedule(self.waiter)
            self.waiter = None

    async def get(self) -> Any:
        while not self.heap:
            self.waiter = current_task()
            await wait_task_rescheduled(self._leave)
        return heapq.heappop(self.heap)[2]

    def _leave(self, _: object) -> Abort:
        self.waiter = None
        return Abort.SUCCEEDED


# --- models: one checkpoint a call --------------------------------------------------------


async def instant(history: list[Any]) -> str:
    await checkpoint()
    return ANSWER


async def slow(history: list[Any]) -> str:
    await trio.sleep(0.1)
    return ANSWER


async def endless(history: list[Any]) -> str:
    await trio.sleep_forever()
    return ANSWER


async def adding(history: list[Any]) -> Any:
    await checkpoint()
    role, message = history[-1]
    return f"The sum is {message}" if role == "tool" else ("add", {"a": 2, "b": 3})


def add(a: int, b: int) -> int:
    return a + b


@attrs.define
class Session:
    """An actor of the floor: a task that waits for its inbox, with a history."""

    model: Callable[[list[Any]], Awaitable[Any]]
    handler: Callable[[Any], object]
    tools: dict[str, Callable[..., Any]] = attrs.field(factory=dict)
    inbox: Inbox = attrs.field(factory=Inbox)
    history: list[Any] = attrs.field(factory=list)

    async def run(self) -> None:
        while True:
            self.history.append(("user", await self.inbox.get()))
            await self.turn()

    async def turn(self) -> None:
        answer = await self.model(self.history)
        while isinstance(answer, tuple):
            name, arguments = answer
            self.history.append(("assistant", answer))
            self.history.append(("tool", self.tools[name](**arguments)))
            answer = await self.model(self.history)
        self.history.append(("assistant", answer))
        self.handler(answer)


# --- the workloads ------------------------------------------------------------------------


async def hop(count: int) -> Figures:
    """W1: one actor asks another, one question at a time; then one-way messages."""
    asker, asked = Inbox(), Inbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_answer, asked)
        watch = Stopwatch()
        for number in range(count):
            asked.put((asker, number))
            expect(seen=await asker.get(), wanted=number, what="the answer")
        hop_us = watch.cpu_us(2 * count)
        tell_us = await _tell(2 * count, nursery)
        nursery.cancel_scope.cancel()
    return {"hop_us": hop_us, "tell_us": tell_us}


async def _answer(inbox: Inbox) -> None:
    while True:
        asker, payload = await inbox.get()
        asker.put(payload)


async def _tell(count: int, nursery: trio.Nursery) -> float:
    inbox, countdown = Inbox(), Countdown(count)
    nursery.start_soon(_take, inbox, countdown)
    watch = Stopwatch()
    for number in range(count):
        inbox.put(number)
        if not number % 500:
            await checkpoint()
    await countdown.done.wait()
    return watch.cpu_us(count)


async def _take(inbox: Inbox, countdown: Countdown) -> None:
    while True:
        countdown.tick(await inbox.get())


async def turns(count: int) -> Figures:
    """W2: fresh sessions, 50 at a time, one short turn each."""
    return {"turn_us": await _batches(count, instant, {}, ANSWER)}


async def tool_loop(count: int) -> Figures:
    """W4: new sessions, 50 at a time. The model calls a tool and answers with its result."""
    return {"turn_us": await _batches(count, adding, {"add": add}, "The sum is 5")}


async def _batches(count: int, model: Any, tools: dict[str, Any], wanted: str) -> float:
    answers: list[str] = []
    async with trio.open_nursery() as nursery:
        watch = Stopwatch()
        for first in range(0, count, 50):
            countdown = Countdown(50)

            def handler(answer: str, tick: Callable[[], None] = countdown.tick) -> None:
                answers.append(answer)
                tick()

            sessions = [Session(model, handler, tools) for _ in range(50)]
            for session in sessions:
                nursery.start_soon(session.run)
            for number, session in enumerate(sessions, first):
                session.inbox.put(short(number))
            await countdown.done.wait()
        turn_us = watch.cpu_us(count)
        nursery.cancel_scope.cancel()
    expect(seen=(len(answers), answers[-1]), wanted=(count, wanted), what="answers")
    return turn_us


async def limited(count: int) -> Figures:
    """The floor of the tool loop under limits, which counts nothing."""
    plain_us = (await tool_loop(max(50, count // 50 * 50)))["turn_us"]
    return {"plain_us": plain_us, "limits_us": plain_us, "limits_ratio": 1.0}


async def granted(count: int) -> Figures:
    """LIMITER: the provider's SDK with its own retries, behind a semaphore."""
    import openai
    from shared_rate_limit import open_shared

    gate, sent = trio.Semaphore(15), 0
    async with (
        open_shared() as shared,
        openai.AsyncOpenAI(base_url=shared.provider.base_url, api_key="k", max_retries=1000) as client,
    ):

        async def ask(session: str, _urgent: bool) -> None:
            nonlocal sent
            async with gate:
                sent += 1
                said = {"role": "user", "content": session}
                await client.chat.completions.create(model="m", messages=[said])

        return await shared.measure(ask, count, let_go=lambda: sent)


async def loops(count: int) -> Figures:
    """LOOPS: turns of twelve model calls with eleven tool calls, in one session after the other."""
    calls = 12

    async def giving(history: list[Any]) -> Any:
        await checkpoint()
        return ("add", {"a": 2, "b": 3}) if len(history) < 2 * calls - 1 else "Given."

    answers: list[str] = []
    async with trio.open_nursery() as nursery:
        watch = Stopwatch()
        for number in range(count):
            done = trio.Event()

            def handler(answer: str, done: trio.Event = done) -> None:
                answers.append(answer)
                done.set()

            session = Session(giving, handler, {"add": add})
            nursery.start_soon(session.run)
            session.inbox.put(short(number))
            await done.wait()
        step_us = watch.cpu_us(count * calls)
        nursery.cancel_scope.cancel()
    expect(seen=answers, wanted=["Given."] * count, what="answers")
    return {"step_us": step_us, "steps_ratio": 1, "plan_ratio": 1, "goal_ratio": 1}


async def durable(count: int) -> Figures:
    """W7: two synchronous transactions of one row for each turn, as a message and its answer need."""
    plain_us = (await turns(count))["turn_us"]
    with tempfile.TemporaryDirectory() as folder:
        db, watch = open_table(f"{folder}/floor.db"), Stopwatch()
        times = [await time_commits(db, short(number), ANSWER) for number in range(count // 10)]
        commits_us = watch.cpu_us(count // 10)
        db.close()
    turn_us = plain_us + commits_us
    figures = {"turn_us": turn_us, "cpu_ratio": turn_us / plain_us, "commits_turn": 2}
    single = {
        "single_ms": percentile(times, 0.5),
        "single_ratio": 1,
        "single_us": turn_us,
        "created_ratio": 1,
    }
    return figures | single


async def recover(count: int) -> Figures:
    """RESUME: read and decode the same rows; the size in a table of a conversation of 800 KB."""
    with tempfile.TemporaryDirectory() as folder:
        session_ms = _read_back(f"{folder}/long.db", count) * 1e3
        state_ms = _read_back(f"{folder}/state.db", count) * 1e3
        resume_s = _read_back(f"{folder}/many.db", 100 * 43)
        journal_mb = _fill_table(Path(folder, "large.db"))
    return {"session_ms": session_ms, "state_ms": state_ms, "resume_s": resume_s, "journal_mb": journal_mb}


def _fill_table(path: Path) -> float:
    """Return the megabytes of a table with a conversation of 800 KB."""
    db = open_table(str(path))
    with db:
        db.executemany(
            "INSERT INTO said VALUES (?)", [(short(number).encode() * 25,) for number in range(800)]
        )
    db.close()
    return path.stat().st_size / 1e6


def _read_back(path: str, count: int) -> float:
    """Return the seconds to read and decode the given number of rows."""
    db = open_table(path)
    with db:
        rows = [(msgpack.packb({"id": number, "text": short(number)}),) for number in range(count)]
        db.executemany("INSERT INTO said VALUES (?)", rows)
    watch = Stopwatch()
    read = [msgpack.unpackb(body) for (body,) in db.execute("SELECT body FROM said")]
    seconds = watch.wall_s()
    expect(seen=len(read), wanted=count, what="rows")
    db.close()
    return seconds


async def growing_history(count: int) -> Figures:
    """W3: one session with long, distinct messages and answers."""
    numbers = itertools.count(1_000_000)
    arrived = [trio.Event()]

    async def model(history: list[Any]) -> str:
        await checkpoint()
        return long(next(numbers))

    session = Session(model, lambda _: arrived[0].set())
    marks = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        before = rss()
        for number in range(count):
            marks.append(time.process_time())
            arrived[0] = trio.Event()
            session.inbox.put(long(number))
            await arrived[0].wait()
        marks.append(time.process_time())
        grown = rss() - before
        nursery.cancel_scope.cancel()
    expect(seen=len({message for _, message in session.history}), wanted=2 * count, what="different messages")
    return windows(marks, grown)


async def fan_out(count: int) -> Figures:
    """W5: all sessions at once with a model that takes 100 ms."""
    before, countdown, latencies = rss(), Countdown(count), []
    async with trio.open_nursery() as nursery:
        watch, sessions = Stopwatch(), []
        for _ in range(count):
            session = Session(slow, countdown.tick)
            nursery.start_soon(session.run)
            sessions.append(session)
        for number, session in enumerate(sessions):
            started = time.perf_counter()

            def handler(_: str, started: float = started) -> None:
                latencies.append(time.perf_counter() - started)
                countdown.tick()

            session.handler = handler
            session.inbox.put(short(number))
        await countdown.done.wait()
        wall_s, turn_us = watch.wall_s(), watch.cpu_us(count)
        nursery.cancel_scope.cancel()
    return {
        "wall_s": wall_s,
        "p99_s": percentile(latencies, 0.99),
        "turn_us": turn_us,
        "rss_each": (peak_rss() - before) / count,
    }


async def idle(count: int) -> Figures:
    """W6: memory of an idle actor. In the floor an agent and a session are a parked task each."""
    countdown = Countdown(count)
    async with trio.open_nursery() as nursery:
        before, watch = rss(), Stopwatch()
        sessions = [Session(instant, countdown.tick) for _ in range(count)]
        for session in sessions:
            nursery.start_soon(session.run)
        start_us = watch.cpu_us(count)
        for number, session in enumerate(sessions):
            session.inbox.put(short(number))
        await countdown.done.wait()
        each = (rss() - before) / count
        nursery.cancel_scope.cancel()
    return {"session_bytes": each, "agent_bytes": each, "agent_us": start_us, "used_agent_bytes": each}


async def streaming(count: int) -> Figures:
    """W9: the model yields chunks of 5 characters, and each is passed to the consumer."""
    seen: list[str] = []
    done = trio.Event()

    async def model(history: list[Any]) -> str:
        for _ in range(count):
            await checkpoint()
            seen.append(CHUNK)
        return CHUNK * count

    session = Session(model, lambda _: done.set())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        watch = Stopwatch()
        session.inbox.put(short(0))
        await done.wait()
        chunk_us = watch.cpu_us(count)
        nursery.cancel_scope.cancel()
    expect(seen="".join(seen), wanted=CHUNK * count, what="the streamed text")
    return {"chunk_us": chunk_us}


async def json_streaming(characters: int) -> Figures:
    """JSON: the model yields an answer in JSON in chunks of 4 characters. Each is passed on, and the whole is decoded."""
    text, seen = json.dumps({"content": ("word " * (characters // 5 + 1))[:characters]}), []
    watch = Stopwatch()
    for start in range(0, len(text), 4):
        await checkpoint()
        seen.append(text[start : start + 4])
    value = json.loads("".join(seen))["content"]
    chunk_us = watch.cpu_us(len(seen))
    expect(seen=len(value), wanted=characters, what="characters of the answer")
    return {"chunk_us": chunk_us, "growth": 1.0}


async def tree(count: int) -> Figures:
    """TREE: a turn of a session that is the parent of others. The floor never reads them."""
    done = trio.Event()
    session = Session(instant, lambda _: done.set())
    children = [Session(instant, lambda _: None) for _ in range(count)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        watch = Stopwatch()
        for _ in range(200):
            session.inbox.put(short(0))
            await done.wait()
            done = trio.Event()
        turn_us = watch.cpu_us(200)
        nursery.cancel_scope.cancel()
    expect(seen=(len(children), len(session.history)), wanted=(count, 400), what="sessions and messages")
    return {"turn_us": turn_us, "growth": 1.0}


async def urgent(count: int) -> Figures:
    """URGENT: time from the message to the cancelled stream, with 200 streams and 10,000 queued messages."""
    inbox, latencies = Inbox(), []
    for number in range(10_000):
        inbox.put(short(number))
    async with trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(200)]
        ended = [trio.Event() for _ in scopes]
        for scope, event in zip(scopes, ended, strict=True):
            nursery.start_soon(_stream, scope, event)
        await trio.sleep(0.05)
        for index in range(min(count, 200)):
            started = time.perf_counter()
            inbox.put(short(index), URGENT)
            scopes[index].cancel()
            await ended[index].wait()
            latencies.append((time.perf_counter() - started) * 1e3)
            await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    return {"p99_ms": percentile(latencies, 0.99), "median_ms": percentile(latencies, 0.5)}


async def _stream(scope: trio.CancelScope, ended: trio.Event) -> None:
    with scope:
        try:
            while True:  # noqa: ASYNC110 - the pace of a stream, not a wait
                await trio.sleep(0.02)
        finally:
            ended.set()


async def cancel(count: int) -> Figures:
    """CANCEL: cancel all running sessions at once, and count what remains."""
    before = leftovers()
    async with trio.open_nursery() as nursery:
        for number in range(count):
            session = Session(endless, print)
            nursery.start_soon(session.run)
            session.inbox.put(short(number))
        await trio.testing.wait_all_tasks_blocked()
        watch = Stopwatch()
        nursery.cancel_scope.cancel()
    wall_s = watch.wall_s()
    expect(seen=leftovers(), wanted=before, what="tasks, file descriptors and threads")
    return {"wall_s": wall_s}


# --- FOLDER: files ----------------------------------------------------------------------


async def folder(count: int) -> Figures:
    return measure_loading(_read_files, count)


def _read_files(path: Path) -> int:
    texts = [file.read_text(encoding="utf-8") for file in sorted((path / "instructions").iterdir())]
    return sum(text.startswith("---") for text in texts)


async def waits(size: int) -> Figures:
    """WAITS: see `pending_approvals`."""
    from pending_approvals import wait_in_dict

    return await wait_in_dict(size)


async def asleep(size: int) -> Figures:
    """ASLEEP: sessions on disk take no memory."""
    return {"rss_ratio": 1.0}


async def lasting(size: int) -> Figures:
    """MEMORY: see `recalled_facts`."""
    from recalled_facts import plain_index

    return await plain_index(size)


async def beside(size: int) -> Figures:
    """BACKGROUND: the model called directly."""
    from background_work import direct

    return await direct(size)


async def long_sessions(size: int) -> Figures:
    """LONG: five rows for each turn, read and decoded."""
    with tempfile.TemporaryDirectory() as folder:
        open_s = _read_back(f"{folder}/long.db", 5 * size)
    figures = {"open_s": open_s, "rss_mb": rss() / 1e6}
    views = [
        {f"{view}_{name}": value for name, value in figures.items()} for view in ("sliding", "summarizing")
    ]
    ratios = {"turn_ratio": 1.0, "sliding_beside_ratio": 1.0, "summarizing_beside_ratio": 1.0}
    return figures | views[0] | views[1] | ratios


async def timers(size: int) -> Figures:
    """TIMERS: see `timers`."""
    from timers import time_heap

    return await time_heap(size)


async def traced(size: int) -> Figures:
    """Three nested spans by OpenTelemetry alone: without SDK, sampled, and with a batch exporter."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
    from opentelemetry.trace import NoOpTracerProvider

    providers = {
        "api_us": NoOpTracerProvider(),
        "sampled_us": TracerProvider(sampler=TraceIdRatioBased(0.01)),
        "all_us": TracerProvider(),
    }
    figures = {}
    for name, provider in providers.items():
        if isinstance(provider, TracerProvider):
            provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
        tracer = provider.get_tracer("bench")
        watch = Stopwatch()
        for _ in range(size):
            with (
                tracer.start_as_current_span("one"),
                tracer.start_as_current_span("two"),
                tracer.start_as_current_span("three"),
            ):
                pass
        figures[name] = watch.cpu_us(size)
        if isinstance(provider, TracerProvider):
            provider.shutdown()
    return figures


async def adapted(size: int) -> Figures:
    """Call a function with a list of one message."""

    async def answer(messages: list[dict[str, str]]) -> str:
        return messages[-1]["content"]

    watch = Stopwatch()
    for number in range(size):
        await answer([{"role": "user", "content": short(number)}])
    each = watch.cpu_us(size)
    return {"object_us": each, "function_us": each, "turn_us": each}


async def carry_over(size: int) -> Figures:
    """Call an empty function from a thread through trio and back."""

    def call_all() -> Figures:
        watch = Stopwatch()
        for number in range(size):
            expect(seen=trio.from_thread.run_sync(int, number), wanted=number, what="number that came back")
        return {"sync_us": watch.cpu_us(size), "asyncio_us": watch.cpu_us(size)}

    return await trio.to_thread.run_sync(call_all)
