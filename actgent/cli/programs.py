"""Agents that Python files define: at their top level, or in the course of their `main()`.

A program that makes its agent inside of `main()` runs as it would by itself, up to the moment in which it begins to talk
with an agent. There it is held, with all that it has opened, and the conversation takes place instead of its own.
"""

import asyncio
import functools
import runpy
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.errors import ActgentError, ConfigurationError, nearest

from .terminal import one_line

Main = Callable[[], Awaitable[object]]
"""What a program has given to `trio.run`."""
_TALKS = ("create_session", "ensure_session", "open_session", "run", "stream")
"""What of an agent begins a conversation."""
_held: ContextVar["_Hold | None"] = ContextVar("held", default=None)
"""Set in the tasks of a program that is held at its first conversation."""


@attrs.define
class Loaded:
    """What running a file has brought up."""

    values: dict[str, object] = attrs.field(factory=dict)
    mains: list[Main] = attrs.field(factory=list)


@asynccontextmanager
async def open_program(place: str) -> AsyncGenerator[tuple[Agent, bool], None]:
    """The agent of `FILE.py` or `FILE.py:NAME`, and whether its program runs it already, to the end of the block.

    Raises:
        ConfigurationError: there is no such file or agent, or the file cannot be run.
    """
    path, _, name = place.partition(":")
    loaded = _load(path)
    if not loaded.mains or _agents_in(loaded):
        yield _choose(loaded, path, name), False
        return
    async with _hold(loaded.mains[0], path, name) as agent:
        yield agent, True


def load_agent(place: str) -> Agent:
    """The agent that a Python file defines at its top level: `FILE.py`, or `FILE.py:NAME` where there are several.

    Raises:
        ConfigurationError: there is no such file or agent, or the file cannot be run.
    """
    path, _, name = place.partition(":")
    return _choose(_load(path), path, name)


def load_values(path: str) -> dict[str, object]:
    """Return what a Python file defines at its top level; what it gives to `trio.run` does not run.

    Raises:
        ConfigurationError: there is no such file, or it cannot be run.
    """
    return _load(path).values


def load_agents(place: str) -> list[Agent]:
    """All agents that a Python file defines, by themselves or in lists; `FILE.py:NAME` is one of them.

    Raises:
        ConfigurationError: there is no such file, no agent in it, or the file cannot be run.
    """
    path, _, name = place.partition(":")
    if name:
        return [load_agent(place)]
    values = _load(path).values.values()
    listed = [item for value in values if isinstance(value, list | tuple) for item in value]
    found = {id(each): each for each in (*values, *listed) if isinstance(each, Agent)}
    if not found:
        raise _no_agent(path)
    return list(found.values())


def _choose(loaded: Loaded, path: str, name: str) -> Agent:
    found = _agents_in(loaded)
    if name in found:
        return found[name]
    if not found:
        raise _no_agent(path)
    if name or len({id(agent) for agent in found.values()}) != 1:
        meant = nearest(name, found) if name else f"at its top level it defines {', '.join(found)}"
        raise ConfigurationError(f"say which agent of {path} you mean, as {path}:NAME; {meant}")
    return next(iter(found.values()))


def _no_agent(path: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} defines no agent at its top level: write `agent = BareAgent(...)` there, outside of functions"
    )


def no_file(path: str, hint: str = "") -> ConfigurationError:
    """What is raised where nothing stands at the path of an agent."""
    return ConfigurationError(
        f"no such file or folder: {path}; name a Python file that makes an agent, or an agent's folder "
        f"(`actgent new NAME` makes one){hint}"
    )


def _agents_in(loaded: Loaded) -> dict[str, Agent]:
    return {key: value for key, value in loaded.values.items() if isinstance(value, Agent)}


# --- running a file ----------------------------------------------------------------------


def _load(path: str) -> Loaded:
    """Run a file as a module; as a program, if it only then starts anything."""
    if not Path(path).is_file():
        raise no_file(path)
    if Path(path).suffix not in (".py", ""):
        raise ConfigurationError(f"{path} is no Python file: name one, or an agent's folder")
    loaded = _run(path, "<run_path>")
    if loaded.mains or any(_is_agent(value) for value in loaded.values.values()):
        return loaded
    if "__main__" in Path(path).read_text(encoding="utf-8", errors="replace"):
        as_program = _run(path, "__main__")
        return as_program if as_program.mains else loaded
    return loaded


def _is_agent(value: object) -> bool:
    return isinstance(value, Agent) or (
        isinstance(value, list | tuple) and any(isinstance(each, Agent) for each in value)
    )


def _run(path: str, name: str) -> Loaded:
    loaded = Loaded()
    sys.path.insert(0, str(Path(path).resolve().parent))  # as `python FILE.py` does
    try:
        with _catching_main(loaded.mains):
            loaded.values = runpy.run_path(path, run_name=name)
    except ActgentError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the file's own
        if not loaded.mains:  # else it stumbles over the result of a `trio.run` that has not run
            _refuse(path, error)
    return loaded


def _refuse(path: str, error: BaseException) -> NoReturn:
    line = _line_of(error, path)
    where = f" in line {line}" if line else ""
    raise ConfigurationError(
        f"{path} cannot be run: {type(error).__name__}{where}: {one_line(error)}"
    ) from error


@contextmanager
def _catching_main(mains: list[Main]) -> Iterator[None]:
    """Note what a program gives to `trio.run`, which cannot run inside of ours."""

    def note(async_fn: Callable[..., Awaitable[object]], *args: Any, **_: Any) -> None:
        mains.append(functools.partial(async_fn, *args))

    def refuse(main: Any, **_: Any) -> NoReturn:
        main.close()
        raise ConfigurationError(
            "the program runs on asyncio, and a conversation here on trio: define its agent at the top level of a file, "
            "and name that file"
        )

    real, trio.run = trio.run, note  # type: ignore[assignment]
    real_asyncio, asyncio.run = asyncio.run, refuse
    try:
        yield
    finally:
        trio.run, asyncio.run = real, real_asyncio


def _line_of(error: BaseException, path: str) -> int | None:
    """Where in the file it went wrong."""
    if isinstance(error, SyntaxError):
        return error.lineno
    steps = traceback.extract_tb(error.__traceback__)
    return next((step.lineno for step in reversed(steps) if step.filename == path), None)


# --- a program that is held ----------------------------------------------------------------


@attrs.define(eq=False)
class _Hold:
    """A program on its way to its first conversation."""

    wanted: str
    """The name of the agent to talk to; empty is whichever comes first."""
    agent: Agent | None = None
    error: BaseException | None = None
    arrived: trio.Event = attrs.field(factory=trio.Event)

    async def meet(self, agent: Agent) -> None:
        """Hold the program here, if this is the agent."""
        if self.wanted in ("", agent.name):
            self.agent = self.agent or agent
            self.arrived.set()
            await trio.sleep_forever()


@asynccontextmanager
async def _hold(main: Main, path: str, name: str) -> AsyncGenerator[Agent, None]:
    hold, raised = _Hold(name), None
    async with trio.open_nursery() as nursery:
        with _talks_held():
            nursery.start_soon(_run_main, main, hold)
            await hold.arrived.wait()
            if hold.agent is not None:
                try:
                    yield hold.agent
                except BaseException as error:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
                    raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised
    if hold.error is not None:
        _refuse(path, hold.error)
    if hold.agent is None:
        called = f" called {name!r}" if name else ""
        raise ConfigurationError(
            f"{path} ran to its end without a conversation with an agent{called}: let it open one, e.g. "
            "`async with agent: await agent.create_session(...)`, or define the agent at its top level"
        )


async def _run_main(main: Main, hold: _Hold) -> None:
    _held.set(hold)
    try:
        await main()
    except Exception as error:  # noqa: BLE001 - the program's own, told by whoever waits for its agent
        hold.error = None if hold.agent is not None else _first(error)
    finally:
        hold.arrived.set()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def _talks_held() -> Iterator[None]:
    """Have tasks of a held program wait where they would talk to an agent; others are not concerned."""
    real = {name: getattr(Agent, name) for name in _TALKS}
    for name, method in real.items():
        setattr(Agent, name, _meeting(method))
    try:
        yield
    finally:
        for name, method in real.items():
            setattr(Agent, name, method)


def _meeting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def held(agent: Agent, *args: Any, **options: Any) -> Any:
        hold = _held.get()
        if hold is None:
            return method(agent, *args, **options)
        if method.__name__ == "stream":
            return _stream_held(hold, agent, method, *args, **options)
        return _call_held(hold, agent, method, *args, **options)

    return held


async def _call_held(
    hold: _Hold, agent: Agent, method: Callable[..., Any], *args: Any, **options: Any
) -> Any:
    await hold.meet(agent)
    return await method(agent, *args, **options)


@asynccontextmanager
async def _stream_held(
    hold: _Hold, agent: Agent, method: Callable[..., Any], *args: Any, **options: Any
) -> AsyncGenerator[Any, None]:
    await hold.meet(agent)
    async with method(agent, *args, **options) as deliveries:
        yield deliveries
