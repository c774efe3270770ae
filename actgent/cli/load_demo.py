"""The third act of the demo: many sessions at once, and what they cost."""

import math
import os
import resource
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from actgent.agents.agent import Agent
from actgent.agents.presets import BareAgent
from actgent.agents.session import Session
from actgent.errors import ActgentError
from actgent.llm.base import LLM
from actgent.messages import NO_USAGE, Usage
from actgent.runtime.runtime import open_runtime

from .offline import TOOLS
from .signals import Shutdown
from .terminal import Terminal

TURNS = 2
"""Questions that each session asks."""
_FRAME = 0.1


@attrs.define
class Tally:
    """What has come of the crowd so far."""

    seconds: list[float] = attrs.field(factory=list)
    """Of each answered turn, from the question to the answer."""
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
    staff = [
        _employee(n, models[n % len(models)], sessions=math.ceil(sessions / agents)) for n in range(agents)
    ]
    tally = Tally()
    async with open_runtime() as runtime:
        for agent in staff:
            await runtime.start(agent)
        memory, began = resident_bytes(), trio.current_time()
        async with _progress(terminal, tally, total=sessions * TURNS), trio.open_nursery() as nursery:
            for n in range(sessions):
                nursery.start_soon(_visit, staff[n % agents], n, tally, shutdown)
        elapsed = trio.current_time() - began
        grown = resident_bytes() - memory  # while all sessions are still open
    _show(terminal, tally, elapsed, sessions=sessions, agents=agents, memory=memory + grown, grown=grown)
    return not tally.failures


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
    began = trio.current_time()
    try:
        reply = await agent.run(f"What is {a} * {b}?", session=session)
    except ActgentError as error:
        tally.failures.append(error)
        return
    tally.seconds.append(trio.current_time() - began)
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


def _show(
    terminal: Terminal, tally: Tally, elapsed: float, *, sessions: int, agents: int, memory: int, grown: int
) -> None:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in _rows(tally, elapsed, memory=memory, grown=grown / sessions):
        table.add_row(name, value)
    terminal.line(f"{sessions:,} sessions on {agents:,} agents")
    terminal.console.print(table)
    if tally.failures:
        terminal.complain(f"turns failed: {len(tally.failures)}; the first: {tally.failures[0]}")


def _rows(tally: Tally, elapsed: float, *, memory: int, grown: float) -> list[tuple[str, str]]:
    turns = len(tally.seconds)
    usage = tally.usage
    return [
        ("turns answered", f"{turns:,}"),
        ("of them with the right result", f"{tally.right:,}"),
        ("turns failed", f"{len(tally.failures):,}"),
        ("tool calls", f"{tally.tool_calls:,}"),
        ("time", f"{elapsed:.1f} s"),
        ("turns per second", f"{turns / elapsed:,.0f}"),
        ("latency of a turn, p50", f"{percentile(tally.seconds, 50) * 1000:,.0f} ms"),
        ("latency of a turn, p99", f"{percentile(tally.seconds, 99) * 1000:,.0f} ms"),
        ("tokens in", f"{usage.input_tokens:,}"),
        ("tokens out", f"{usage.output_tokens:,}"),
        ("memory of the process", f"{memory / 1e6:,.0f} MB"),
        ("of it grown with the sessions", f"{grown / 1e3:,.0f} KB each"),
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
