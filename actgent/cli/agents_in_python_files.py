"""Agents in Python files: defined at the top level, or made inside the program's `main()`.

A program that passes `main` to `trio.run` is executed up to the first call that starts a conversation with an agent,
such as `create_session`. The program is held at that call: it stays there with all resources that it has opened, and the
command uses the agent.
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
from actgent.errors import ActgentError, ConfigurationError, did_you_mean_or_list

from .terminal_io import one_line

Main = Callable[[], Awaitable[object]]
"""The async function that a program passed to `trio.run`, with its arguments bound."""
_CONVERSATION_METHODS = ("create_session", "ensure_session", "open_session", "run", "stream")
"""Methods of `Agent` that start a conversation; a held program stops at the first such call."""
_held: ContextVar["_HeldProgram | None"] = ContextVar("held", default=None)
"""The held program that the current task belongs to; None in all other tasks."""


@attrs.define
class _LoadedFile:
    """Result of executing a Python file: its global values and main functions."""

    values: dict[str, object] = attrs.field(factory=dict)
    """Global values of the file, by name."""
    mains: list[Main] = attrs.field(factory=list)
    """Functions that the file passed to `trio.run`, which were not run."""


@asynccontextmanager
async def open_program(target: str) -> AsyncGenerator[tuple[Agent, bool], None]:
    """Yield the agent of `FILE.py` or `FILE.py:NAME`, and True if the file's main function runs the agent.

    A main function that runs the agent waits from its first call to the agent on. The end of the `async with` block cancels it.

    Raises:
        ConfigurationError: The file or the agent is missing, or the file cannot be run.
    """
    path, _, name = target.partition(":")
    loaded = _load_file(path)
    if not loaded.mains or _agents_in(loaded):
        yield _choose(loaded, path, name), False
        return
    async with _hold_program(loaded.mains[0], path, name) as agent:
        yield agent, True


def load_agent(target: str) -> Agent:
    """Return the agent that a Python file defines at its top level: `FILE.py`, or `FILE.py:NAME` if it defines several.

    Raises:
        ConfigurationError: The file or the agent is missing, the choice is ambiguous, or the file cannot be run.
    """
    path, _, name = target.partition(":")
    return _choose(_load_file(path), path, name)


def load_values(path: str) -> dict[str, object]:
    """Execute a Python file and return its global values by name. Functions passed to `trio.run` are not run.

    Raises:
        ConfigurationError: The file is missing, or cannot be run.
    """
    return _load_file(path).values


def load_agents(target: str) -> list[Agent]:
    """Return all agents that a Python file defines at its top level, alone or in lists; `FILE.py:NAME` selects one.

    Raises:
        ConfigurationError: The file is missing, defines no agent, or cannot be run.
    """
    path, _, name = target.partition(":")
    if name:
        return [load_agent(target)]
    values = _load_file(path).values.values()
    listed = [item for value in values if isinstance(value, list | tuple) for item in value]
    found = {id(each): each for each in (*values, *listed) if isinstance(each, Agent)}
    if not found:
        raise _no_agent_error(path)
    return list(found.values())


def _choose(loaded: _LoadedFile, path: str, name: str) -> Agent:
    found = _agents_in(loaded)
    if name in found:
        return found[name]
    if not found:
        raise _no_agent_error(path)
    if name or len({id(agent) for agent in found.values()}) != 1:
        meant = (
            did_you_mean_or_list(name, found) if name else f"at its top level it defines {', '.join(found)}"
        )
        raise ConfigurationError(f"{path} defines several agents: choose one with {path}:NAME; {meant}")
    return next(iter(found.values()))


def _no_agent_error(path: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} defines no agent at its top level: write `agent = BareAgent(...)` outside functions"
    )


def file_not_found(path: str, hint: str = "") -> ConfigurationError:
    """Return the error for a path at which no agent file or folder exists. `hint` is appended to its message."""
    return ConfigurationError(
        f"no such file or folder: {path}; expected a Python file that defines an agent, or an agent folder "
        f"(`actgent new NAME` creates one){hint}"
    )


def _agents_in(loaded: _LoadedFile) -> dict[str, Agent]:
    return {key: value for key, value in loaded.values.items() if isinstance(value, Agent)}


# --- running a file ----------------------------------------------------------------------


def _load_file(path: str) -> _LoadedFile:
    """Execute a Python file as a module. If it then defines no agent, execute it as a program (`__name__ == "__main__"`)."""
    if not Path(path).is_file():
        raise file_not_found(path)
    if Path(path).suffix not in (".py", ""):
        raise ConfigurationError(f"{path} is not a Python file: pass a .py file or an agent folder")
    loaded = _run_file(path, "<run_path>")
    if loaded.mains or any(_is_agent(value) for value in loaded.values.values()):
        return loaded
    if "__main__" in Path(path).read_text(encoding="utf-8", errors="replace"):
        as_program = _run_file(path, "__main__")
        return as_program if as_program.mains else loaded
    return loaded


def _is_agent(value: object) -> bool:
    return isinstance(value, Agent) or (
        isinstance(value, list | tuple) and any(isinstance(each, Agent) for each in value)
    )


def _run_file(path: str, name: str) -> _LoadedFile:
    loaded = _LoadedFile()
    sys.path.insert(0, str(Path(path).resolve().parent))  # as `python FILE.py` does
    try:
        with _intercept_main_functions(loaded.mains):
            loaded.values = runpy.run_path(path, run_name=name)
    except ActgentError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
        if not loaded.mains:  # after a skipped `trio.run` the file may fail because its result is missing
            _raise_load_error(path, error)
    return loaded


def _raise_load_error(path: str, error: BaseException) -> NoReturn:
    line = _error_line(error, path)
    where = f" in line {line}" if line else ""
    raise ConfigurationError(
        f"{path} cannot be run: {type(error).__name__}{where}: {one_line(error)}"
    ) from error


@contextmanager
def _intercept_main_functions(mains: list[Main]) -> Iterator[None]:
    """Patch `trio.run` during the `with` block: append its functions to `mains` instead of running them.

    Trio runs cannot be nested, and the command already runs in trio.
    """

    def note(async_fn: Callable[..., Awaitable[object]], *args: Any, **_: Any) -> None:
        mains.append(functools.partial(async_fn, *args))

    def refuse(main: Any, **_: Any) -> NoReturn:
        main.close()
        raise ConfigurationError(
            "the program runs on asyncio, but this command needs trio: define the agent at the top level of a file, "
            "and pass this file"
        )

    real, trio.run = trio.run, note  # type: ignore[assignment]
    real_asyncio, asyncio.run = asyncio.run, refuse
    try:
        yield
    finally:
        trio.run, asyncio.run = real, real_asyncio


def _error_line(error: BaseException, path: str) -> int | None:
    """Return the number of the line of a file at which an exception was raised; None if the traceback lacks the file."""
    if isinstance(error, SyntaxError):
        return error.lineno
    steps = traceback.extract_tb(error.__traceback__)
    return next((step.lineno for step in reversed(steps) if step.filename == path), None)


# --- a program that is held ----------------------------------------------------------------


@attrs.define(eq=False)
class _HeldProgram:
    """A program that runs until its first conversation with an agent, and is then stopped."""

    agent_name: str
    """Name of the agent to wait for; empty accepts the first agent."""
    agent: Agent | None = None
    """Agent with which the program has started a conversation, and which the command uses; None before that."""
    error: BaseException | None = None
    """Exception with which the program failed before its first conversation; None if it did not fail."""
    arrived: trio.Event = attrs.field(factory=trio.Event)
    """Event that is set when the program is stopped at a conversation, or has ended."""

    async def block_if_wanted(self, agent: Agent) -> None:
        """If the command looks for this agent, give the agent to the command, and block the user's program forever. Otherwise return."""
        if self.agent_name in ("", agent.name):
            self.agent = self.agent or agent
            self.arrived.set()
            await trio.sleep_forever()


@asynccontextmanager
async def _hold_program(main: Main, path: str, name: str) -> AsyncGenerator[Agent, None]:
    """Run a program until it starts a conversation with the agent of this name, and yield the agent.

    An empty `name` accepts any agent. The program is cancelled when the `async with` block exits.

    Raises:
        ConfigurationError: The program failed or ended before a conversation with the agent.
    """
    held, raised = _HeldProgram(name), None
    async with trio.open_nursery() as nursery:
        with _hold_conversations():
            nursery.start_soon(_run_main, main, held)
            await held.arrived.wait()
            if held.agent is not None:
                try:
                    yield held.agent
                except BaseException as error:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
                    raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised
    if held.error is not None:
        _raise_load_error(path, held.error)
    if held.agent is None:
        called = f" called {name!r}" if name else ""
        raise ConfigurationError(
            f"{path} ended without starting a conversation with an agent{called}: let it call, e.g., "
            "`async with agent: await agent.create_session(...)`, or define the agent at its top level"
        )


async def _run_main(main: Main, held: _HeldProgram) -> None:
    _held.set(held)
    try:
        await main()
    except Exception as error:  # noqa: BLE001 - raised by the user's program; `_hold_program` reports it
        held.error = None if held.agent is not None else _first_leaf(error)
    finally:
        held.arrived.set()


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def _hold_conversations() -> Iterator[None]:
    """Patch the conversation methods of `Agent` during the `with` block, so that a `_HeldProgram` blocks when it calls one.

    Calls from other tasks are not affected.
    """
    real = {name: getattr(Agent, name) for name in _CONVERSATION_METHODS}
    for name, method in real.items():
        setattr(Agent, name, _wrap_conversation_method(method))
    try:
        yield
    finally:
        for name, method in real.items():
            setattr(Agent, name, method)


def _wrap_conversation_method(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def held_method(agent: Agent, *args: Any, **options: Any) -> Any:
        held = _held.get()
        if held is None:
            return method(agent, *args, **options)
        if method.__name__ == "stream":
            return _stream_when_released(held, agent, method, *args, **options)
        return _call_when_released(held, agent, method, *args, **options)

    return held_method


async def _call_when_released(
    held: _HeldProgram, agent: Agent, method: Callable[..., Any], *args: Any, **options: Any
) -> Any:
    await held.block_if_wanted(agent)
    return await method(agent, *args, **options)


@asynccontextmanager
async def _stream_when_released(
    held: _HeldProgram, agent: Agent, method: Callable[..., Any], *args: Any, **options: Any
) -> AsyncGenerator[Any, None]:
    await held.block_if_wanted(agent)
    async with method(agent, *args, **options) as deliveries:
        yield deliveries
