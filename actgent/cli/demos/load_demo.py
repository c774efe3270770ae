"""The third act of the demo: many sessions at once, and what they cost."""

import math
import os
import re
import resource
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path

import attrs
import trio
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from actgent.agents.agent import Agent
from actgent.agents.presets import BareAgent
from actgent.agents.session import Session
from actgent.cli.signals import Shutdown
from actgent.cli.terminal import Terminal
from actgent.errors import ActgentError
from actgent.errors.printable import counted
from actgent.llm.base import LLM, Answer, Chat, OnText
from actgent.llm.scripted import ScriptedLLM
from actgent.messages import NO_USAGE, Text, ToolCall, ToolResult, Usage
from actgent.runtime.runtime import open_runtime

from .offline import TOOLS

TURNS = 2
"""Questions that each session asks."""
ENGINE_SESSIONS = 200
"""Sessions in which the engine is measured by itself; it takes a moment."""
_FRAME = 0.1


_asked: ContextVar[list[float]] = ContextVar("asked")
"""The seconds of each model call of a turn; a turn runs with the context variables of who asked."""


class Timed(LLM):
    """A model whose calls are timed for the turn that they belong to."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.name = llm.name
        self.dialect = llm.dialect  # type: ignore[misc] # an instance stands for its inner model

    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        began = trio.current_time()
        try:
            return await self.llm.complete(chat, on_text=on_text)
        finally:
            _asked.get([]).append(trio.current_time() - began)

    def price_of(self, usage: Usage) -> float | None:
        return self.llm.price_of(usage)


@attrs.frozen
class EngineCost:
    """What turns take where the model is a function in this process: no SDK, no HTTP."""

    turns: int
    seconds: float
    cpu: float


@attrs.define
class Tally:
    """What has come of the crowd so far."""

    seconds: list[float] = attrs.field(factory=list)
    """Of each answered turn, from the question to the answer."""
    beyond: list[float] = attrs.field(factory=list)
    """Of these, those in which no model was asked."""
    right: int = 0
    """Answers that hold the product that was asked for."""
    tool_calls: int = 0
    usage: Usage = NO_USAGE
    failures: list[ActgentError] = attrs.field(factory=list)

    @property
    def turns(self) -> int:
        return len(self.seconds) + len(self.failures)


async def crowd(
    models: Sequence[LLM], terminal: Terminal, shutdown: Shutdown, *, sessions: int, agents: int
) -> bool:
    """Run the sessions, show how far they are, and the table in the end; False if a turn failed."""
    tally, memory = Tally(), MemoryUse()
    cpu = time.process_time()
    async with _progress(terminal, tally, total=sessions * TURNS):
        elapsed = await _run_all(models, tally, shutdown, sessions=sessions, agents=agents, memory=memory)
    cpu = time.process_time() - cpu
    engine = await _measure_engine(shutdown, sessions=min(sessions, ENGINE_SESSIONS), agents=agents)
    rows = [*_rows(tally, elapsed), *_cost_rows(tally, cpu, engine), *memory.rows(sessions)]
    _show(terminal, tally, rows, title=f"{counted(sessions, 'session')} on {counted(agents, 'agent')}")
    return not tally.failures


async def _run_all(
    models: Sequence[LLM],
    tally: Tally,
    shutdown: Shutdown,
    *,
    sessions: int,
    agents: int,
    memory: "MemoryUse | None" = None,
) -> float:
    """Have all sessions ask at once; returns the seconds until all are answered."""
    timed = [Timed(model) for model in models]
    staff = [
        _employee(n, timed[n % len(timed)], sessions=math.ceil(sessions / agents)) for n in range(agents)
    ]
    async with open_runtime() as runtime:
        for agent in staff:
            await runtime.start(agent)
        before, began = resident_bytes(), trio.current_time()
        async with trio.open_nursery() as nursery:
            for n in range(sessions):
                nursery.start_soon(_visit, staff[n % agents], n, tally, shutdown)
        elapsed = trio.current_time() - began
        if memory is not None:  # while all sessions are still open
            memory.now = resident_bytes()
            memory.grown = memory.now - before
    return elapsed


async def _measure_engine(shutdown: Shutdown, *, sessions: int, agents: int) -> EngineCost:
    """The same turns with a model that is a function, once for practice and once for the figures."""
    tally, seconds, cpu = Tally(), 0.0, 0.0
    for _ in range(2):
        tally, cpu = Tally(), time.process_time()
        seconds = await _run_all(
            [ScriptedLLM(_in_memory, keep=0)], tally, shutdown, sessions=sessions, agents=agents
        )
        cpu = time.process_time() - cpu
    return EngineCost(len(tally.seconds), seconds, cpu)


def _in_memory(chat: Chat) -> str | ToolCall:
    """Call the tool with the factors of the question, and say its result."""
    part = chat.messages[-1].parts[0]
    if isinstance(part, ToolResult):
        return part.text
    a, b = re.findall(r"\d+", part.text if isinstance(part, Text) else "")
    return ToolCall("multiply", {"a": int(a), "b": int(b)})


def _employee(number: int, model: LLM, *, sessions: int) -> Agent:
    name = f"calculator {number + 1}"
    return BareAgent(
        name,
        llm=model,
        role="a calculator that uses its tool",
        tools=TOOLS,
        sessions=sessions,
        inbox=sessions,
    )


async def _visit(agent: Agent, number: int, tally: Tally, shutdown: Shutdown) -> None:
    """One session: a few questions, each of which takes a tool call and two model calls."""
    session = await agent.create_session(f"visitor {number}")
    for turn in range(TURNS):
        if not shutdown.is_asked:
            await _ask(agent, session, (number + 2, turn + 11), tally)
    tally.usage += session.usage
    tally.tool_calls += sum(len(message.tool_calls) for message in session.history)


async def _ask(agent: Agent, session: Session, factors: tuple[int, int], tally: Tally) -> None:
    a, b = factors
    asked: list[float] = []
    _asked.set(asked)
    began = trio.current_time()
    try:
        reply = await agent.run(f"What is {a} * {b}?", session=session)
    except ActgentError as error:
        tally.failures.append(error)
        return
    tally.seconds.append(trio.current_time() - began)
    tally.beyond.append(max(tally.seconds[-1] - sum(asked), 0.0))
    tally.right += str(a * b) in reply.text.replace(",", "")


# --- what is shown -----------------------------------------------------------------------


@asynccontextmanager
async def _progress(terminal: Terminal, tally: Tally, *, total: int) -> AsyncGenerator[None, None]:
    """A bar for those who look; a pipe gets none."""
    columns = (TextColumn("turns"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    if not terminal.is_live:
        yield
        return
    with Progress(*columns, console=terminal.console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("turns", total=total)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_redraw, bar, task, tally)
            yield
            nursery.cancel_scope.cancel()


async def _redraw(bar: Progress, task: TaskID, tally: Tally) -> None:
    while True:
        bar.update(task, completed=tally.turns, refresh=True)
        await trio.sleep(_FRAME)


def _show(terminal: Terminal, tally: Tally, rows: Sequence[tuple[str, str]], *, title: str) -> None:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows:
        table.add_row(name, value)
    terminal.line(title)
    terminal.console.print(table)
    if tally.failures:
        terminal.complain(f"turns failed: {len(tally.failures)}; the first: {tally.failures[0]}")


def _rows(tally: Tally, elapsed: float) -> list[tuple[str, str]]:
    turns = len(tally.seconds)
    usage = tally.usage
    return [
        ("turns answered", f"{turns:,}"),
        ("of them with the right result", f"{tally.right:,}"),
        ("turns failed", f"{len(tally.failures):,}"),
        ("tool calls", f"{tally.tool_calls:,}"),
        ("time", f"{elapsed:.1f} s"),
        ("turns per second", f"{turns / elapsed:,.0f}"),
        ("latency of a turn, p50", _milliseconds(percentile(tally.seconds, 50))),
        ("latency of a turn, p99", _milliseconds(percentile(tally.seconds, 99))),
        ("beyond its model calls, p50", _milliseconds(percentile(tally.beyond, 50))),
        ("beyond its model calls, p99", _milliseconds(percentile(tally.beyond, 99))),
        ("tokens in", f"{usage.input_tokens:,}"),
        ("tokens out", f"{usage.output_tokens:,}"),
    ]


def _cost_rows(tally: Tally, cpu: float, engine: EngineCost) -> list[tuple[str, str]]:
    """Return what a turn of two model calls and a tool call costs this process, and how much of it is the engine."""
    turns = max(len(tally.seconds) + len(tally.failures), 1)
    if not engine.turns:
        return [("CPU of a turn, with SDK and HTTP", _milliseconds(cpu / turns))]
    return [
        ("CPU of a turn, with SDK and HTTP", _milliseconds(cpu / turns)),
        ("CPU of a turn, the engine alone", _milliseconds(engine.cpu / engine.turns)),
        ("turns per second, the engine alone", f"{engine.turns / engine.seconds:,.0f}"),
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms" if seconds < 0.1 else f"{seconds * 1000:,.0f} ms"  # noqa: PLR2004 - as people read


@attrs.define
class MemoryUse:
    """Bytes of the process."""

    now: int = 0
    grown: int = 0
    """Of these, what came with the sessions."""

    def rows(self, sessions: int) -> list[tuple[str, str]]:
        """Two rows of the table."""
        return [
            ("memory of the process", f"{self.now / 1e6:,.0f} MB"),
            ("of it grown with the sessions", f"{self.grown / sessions / 1e3:,.0f} KB each"),
        ]


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of them do not exceed (nearest rank); 0 without values."""
    if not values:
        return 0.0
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


def resident_bytes() -> int:
    """The memory that the process has now; where the system does not tell, the most that it had."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
