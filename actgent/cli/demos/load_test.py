"""Load test of the demo: many concurrent sessions, with throughput, latency, CPU time and memory."""

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
from actgent.agents.bare_agent import BareAgent
from actgent.agents.session import Session
from actgent.cli.signal_handling import Shutdown
from actgent.cli.terminal_io import Terminal
from actgent.errors import ActgentError
from actgent.errors.text_escaping import counted
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse, OnText
from actgent.llm.scripted_model import ScriptedLLM
from actgent.messages import NO_USAGE, Text, ToolCall, ToolResult, Usage
from actgent.runtime.runtime import open_runtime

from .scripted_models import TOOLS

TURNS_PER_SESSION = 2
"""Number of messages in each session."""
ENGINE_SESSIONS = 200
"""Maximum number of sessions in the measurement without SDK and HTTP."""
_REDRAW_SECONDS = 0.1
"""Time in seconds between two updates of the progress bar."""


_call_seconds: ContextVar[list[float]] = ContextVar("call_seconds")
"""Durations in seconds of the current turn's model calls. Turns inherit the context variables of the sender."""


class TimedModel(LLM):
    """Model wrapper that appends the duration of each model call, in seconds, to a list of the current turn."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.name = llm.name
        self.dialect = llm.dialect  # type: ignore[misc] # the wrapper reports the dialect of its inner model

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        began = trio.current_time()
        try:
            return await self.llm.complete(chat, on_text=on_text)
        finally:
            _call_seconds.get([]).append(trio.current_time() - began)

    def price_of(self, usage: Usage) -> float | None:
        return self.llm.price_of(usage)


@attrs.frozen
class EngineFigures:
    """Results of the load test with a Python function as model, without SDK and HTTP."""

    turns: int
    """Number of answered turns."""
    seconds: float
    """Elapsed time in seconds."""
    cpu: float
    """CPU time of the process in seconds."""


@attrs.define
class LoadResults:
    """Counters of a running load test."""

    seconds: list[float] = attrs.field(factory=list)
    """Duration in seconds of each answered turn."""
    engine_seconds: list[float] = attrs.field(factory=list)
    """Duration in seconds of each answered turn, minus the durations of its model calls."""
    correct: int = 0
    """Number of correct answers. Each message asks for the product of two numbers."""
    tool_calls: int = 0
    usage: Usage = NO_USAGE
    failures: list[ActgentError] = attrs.field(factory=list)
    """Errors of failed turns."""

    @property
    def turns(self) -> int:
        """Number of finished turns, including failed ones."""
        return len(self.seconds) + len(self.failures)


async def run_load_test(
    models: Sequence[LLM], terminal: Terminal, shutdown: Shutdown, *, sessions: int, agents: int
) -> bool:
    """Run all sessions of the load test, and print the progress and a table of results. Return False if a turn failed.

    Args:
        models: Models that are assigned to the agents in rotation.
        terminal: Output of the command.
        shutdown: State of received signals; after the first signal no new turn starts.
        sessions: Number of concurrent sessions.
        agents: Number of agents that share the sessions.
    """
    results, memory = LoadResults(), MemoryFigures()
    cpu = time.process_time()
    async with _progress(terminal, results, total=sessions * TURNS_PER_SESSION):
        elapsed = await _run_all(models, results, shutdown, sessions=sessions, agents=agents, memory=memory)
    cpu = time.process_time() - cpu
    engine = await _measure_engine(shutdown, sessions=min(sessions, ENGINE_SESSIONS), agents=agents)
    rows = [*_rows(results, elapsed), *_cost_rows(results, cpu, engine), *memory.rows(sessions)]
    _show(terminal, results, rows, title=f"{counted(sessions, 'session')} on {counted(agents, 'agent')}")
    return not results.failures


async def _run_all(
    models: Sequence[LLM],
    results: LoadResults,
    shutdown: Shutdown,
    *,
    sessions: int,
    agents: int,
    memory: "MemoryFigures | None" = None,
) -> float:
    """Run all sessions concurrently, and return the elapsed time in seconds.

    The results are added to `results`, and the memory use to `memory` unless it is None.
    """
    timed = [TimedModel(model) for model in models]
    agents_run = [
        _make_agent(n, timed[n % len(timed)], sessions=math.ceil(sessions / agents)) for n in range(agents)
    ]
    async with open_runtime() as runtime:
        for agent in agents_run:
            await runtime.start(agent)
        before, began = resident_bytes(), trio.current_time()
        async with trio.open_nursery() as nursery:
            for n in range(sessions):
                nursery.start_soon(_run_session, agents_run[n % agents], n, results, shutdown)
        elapsed = trio.current_time() - began
        if memory is not None:  # measured while all sessions are open
            memory.total_bytes = resident_bytes()
            memory.session_bytes = memory.total_bytes - before
    return elapsed


async def _measure_engine(shutdown: Shutdown, *, sessions: int, agents: int) -> EngineFigures:
    """Measure the time of turns with a Python function as model, without SDK and HTTP.

    The first of two runs is a warm-up.
    """
    results, seconds, cpu = LoadResults(), 0.0, 0.0
    for _ in range(2):
        results, cpu = LoadResults(), time.process_time()
        seconds = await _run_all(
            [ScriptedLLM(_scripted_reply, keep=0)], results, shutdown, sessions=sessions, agents=agents
        )
        cpu = time.process_time() - cpu
    return EngineFigures(len(results.seconds), seconds, cpu)


def _scripted_reply(chat: ModelRequest) -> str | ToolCall:
    """Return a call of `multiply` with the two factors in the question, or the tool's result as text."""
    part = chat.messages[-1].parts[0]
    if isinstance(part, ToolResult):
        return part.text
    a, b = re.findall(r"\d+", part.text if isinstance(part, Text) else "")
    return ToolCall("multiply", {"a": int(a), "b": int(b)})


def _make_agent(number: int, model: LLM, *, sessions: int) -> Agent:
    name = f"calculator {number + 1}"
    return BareAgent(
        name,
        llm=model,
        role="a calculator that uses its tool",
        tools=TOOLS,
        max_concurrent_sessions=sessions,
        inbox_capacity=sessions,
    )


async def _run_session(agent: Agent, number: int, results: LoadResults, shutdown: Shutdown) -> None:
    """Run one session of the load test. Each of its messages leads to one tool call and two model calls."""
    session = await agent.create_session(f"visitor {number}")
    for turn in range(TURNS_PER_SESSION):
        if not shutdown.is_requested:
            await _ask(agent, session, (number + 2, turn + 11), results)
    results.usage += session.usage
    results.tool_calls += sum(len(message.tool_calls) for message in session.history)


async def _ask(agent: Agent, session: Session, factors: tuple[int, int], results: LoadResults) -> None:
    a, b = factors
    call_seconds: list[float] = []
    _call_seconds.set(call_seconds)
    began = trio.current_time()
    try:
        reply = await agent.run(f"What is {a} * {b}?", session=session)
    except ActgentError as error:
        results.failures.append(error)
        return
    results.seconds.append(trio.current_time() - began)
    results.engine_seconds.append(max(results.seconds[-1] - sum(call_seconds), 0.0))
    results.correct += str(a * b) in reply.text.replace(",", "")


# --- output ------------------------------------------------------------------------------


@asynccontextmanager
async def _progress(terminal: Terminal, results: LoadResults, *, total: int) -> AsyncGenerator[None, None]:
    """Show a progress bar during the `async with` block, unless standard output is a pipe."""
    columns = (TextColumn("turns"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    if not terminal.is_live:
        yield
        return
    with Progress(*columns, console=terminal.console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("turns", total=total)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_redraw, bar, task, results)
            yield
            nursery.cancel_scope.cancel()


async def _redraw(bar: Progress, task: TaskID, results: LoadResults) -> None:
    while True:
        bar.update(task, completed=results.turns, refresh=True)
        await trio.sleep(_REDRAW_SECONDS)


def _show(terminal: Terminal, results: LoadResults, rows: Sequence[tuple[str, str]], *, title: str) -> None:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows:
        table.add_row(name, value)
    terminal.line(title)
    terminal.console.print(table)
    if results.failures:
        terminal.report_error(f"turns failed: {len(results.failures)}; the first: {results.failures[0]}")


def _rows(results: LoadResults, elapsed: float) -> list[tuple[str, str]]:
    turns = len(results.seconds)
    usage = results.usage
    return [
        ("turns answered", f"{turns:,}"),
        ("turns with the correct result", f"{results.correct:,}"),
        ("turns failed", f"{len(results.failures):,}"),
        ("tool calls", f"{results.tool_calls:,}"),
        ("time", f"{elapsed:.1f} s"),
        ("turns per second", f"{turns / elapsed:,.0f}"),
        ("latency of a turn, p50", _milliseconds(percentile(results.seconds, 50))),
        ("latency of a turn, p99", _milliseconds(percentile(results.seconds, 99))),
        ("latency without model calls, p50", _milliseconds(percentile(results.engine_seconds, 50))),
        ("latency without model calls, p99", _milliseconds(percentile(results.engine_seconds, 99))),
        ("tokens in", f"{usage.input_tokens:,}"),
        ("tokens out", f"{usage.output_tokens:,}"),
    ]


def _cost_rows(results: LoadResults, cpu: float, engine: EngineFigures) -> list[tuple[str, str]]:
    """Return rows of the results table with the CPU time of one turn, with and without SDK and HTTP."""
    turns = max(len(results.seconds) + len(results.failures), 1)
    if not engine.turns:
        return [("CPU of a turn, with SDK and HTTP", _milliseconds(cpu / turns))]
    return [
        ("CPU of a turn, with SDK and HTTP", _milliseconds(cpu / turns)),
        ("CPU of a turn, the engine alone", _milliseconds(engine.cpu / engine.turns)),
        ("turns per second, the engine alone", f"{engine.turns / engine.seconds:,.0f}"),
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms" if seconds < 0.1 else f"{seconds * 1000:,.0f} ms"  # noqa: PLR2004 - below 0.1 s one decimal is shown


@attrs.define
class MemoryFigures:
    """Memory use of this process in bytes."""

    total_bytes: int = 0
    """Resident memory while all sessions are open."""
    session_bytes: int = 0
    """Growth of the resident memory since before the sessions were created."""

    def rows(self, sessions: int) -> list[tuple[str, str]]:
        """Return the rows of the results table about memory. `sessions` is the number of sessions."""
        return [
            ("memory of the process", f"{self.total_bytes / 1e6:,.0f} MB"),
            ("memory added per session", f"{self.session_bytes / sessions / 1e3:,.0f} KB"),
        ]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of the values; 0 if `values` is empty."""
    if not values:
        return 0.0
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; on systems without /proc, the maximum so far."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
