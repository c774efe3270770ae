"""Python in a sandbox, by Monty: an interpreter of its own in a process of its own, which knows no files, network or system.

Source: https://github.com/pydantic/monty. The agent's other tools are functions in the code, so that a model does in one
step what would take it twenty calls; each of those calls is one of the tool itself (`ToolContext.tools`). Code that runs
again sees the same time and random numbers, and takes the results that are there.
"""

import datetime as dt
import importlib.util
import os
import re
import signal
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import attrs
import outcome
import trio

from actgent.approvals import Ask
from actgent.errors import ConfigurationError, ParseError, ToolError
from actgent.errors.printable import counted
from actgent.support.strict_json import loads
from actgent.tools.base import AskFor, CallsTools, Effect, Tool, ToolContext
from actgent.tools.outputs.results import to_text

from .sandboxed import SandboxBounds

THREADS = 8
"""Runs whose code works at once, each in a process and in a thread that waits for it; others wait."""
MOST_CALLS = 1000
"""Calls of tools, and other questions of the code to the world outside, in one run."""
T = TypeVar("T")
_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("actgent sandboxed Python")
_NO_NAME = re.compile(r"\W")
_DESCRIPTION = (
    "Run Python code in a sandbox. It has the usual built-ins and json, re, math, datetime, random and few other modules, "
    "no files, network or packages. Your other tools are functions in it, called by name without await; a result that is JSON "
    "is decoded. You get what it prints, and the value of its last expression."
)


def python_tool(
    name: str = "run_python",
    *,
    tools: Sequence[str] | None = None,
    seconds: float = 10.0,
    memory: int = 64_000_000,
    output: int = 50_000,
    timeout: float = 300.0,
    approval: bool | Ask | AskFor = False,
) -> Tool:
    """Make a tool that runs Python code in a sandbox, with the agent's other tools as functions.

    It needs the extra: `pip install 'actgent[sandbox]'`.

    Args:
        name: What the model calls it by.
        tools: Which of the agent's tools are functions; None: all.
        seconds: How long the code itself may run, without what it calls.
        memory: Bytes of memory that the code may take.
        output: Characters of output: what the code prints, with the value of its last expression or its error.
        timeout: How long a call may take with all that it calls; not while a person decides.
        approval: True: a person approves each run, besides those calls that need it themselves.

    Raises:
        ConfigurationError: the extra is not installed.
    """
    checked = SandboxBounds(seconds=seconds, memory=memory, output=output)
    tool = PythonTool(name, tools, _Bounds(checked.seconds, checked.memory, checked.output))
    tool.timeout = timeout
    tool.approval = approval
    return tool


@attrs.frozen
class _Bounds:
    """Bounds of one run of code; `SandboxBounds` checks the numbers."""

    seconds: float
    memory: int
    output: int


class PythonTool(Tool):
    """Runs Python code in a sandbox."""

    calls_tools = True
    alone = True
    outside = True  # it may print what strangers wrote
    effect: Effect = "idempotent"  # a repetition takes the results of the calls that were made
    description = _DESCRIPTION
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string", "minLength": 1}},
        "required": ["code"],
        "additionalProperties": False,
    }

    def __init__(self, name: str, tools: Sequence[str] | None, bounds: _Bounds) -> None:
        _sdk()
        if isinstance(tools, str):
            raise ConfigurationError(f"tools= is a list of names: tools=[{tools!r}]")
        self.name = name
        self._tools = None if tools is None else frozenset(tools)
        self._bounds = bounds

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        others = context.tools
        began = time.time() if others is None else others.begun_at()
        async with _open_worker(self._bounds, began, seed=context.effect_key) as worker:
            functions = _Functions(others, self._functions(others), context)
            return await worker.run(arguments["code"], functions)

    def _functions(self, others: CallsTools | None) -> Mapping[str, str]:
        """Names of tools by names that Python takes."""
        names = () if others is None else others.names()
        chosen = [name for name in names if self._tools is None or name in self._tools]
        return {_NO_NAME.sub("_", name): name for name in reversed(chosen)}


# --- calls of tools from the code --------------------------------------------------------------


@attrs.define(eq=False)
class _Functions:
    """The tools that are functions in the code."""

    others: CallsTools | None
    names: Mapping[str, str]
    context: ToolContext

    async def answer(self, snapshot: Any) -> Mapping[str, Any]:
        """Return what a call of the code comes to: a value, or an exception to be raised there."""
        await trio.lowlevel.checkpoint()
        known = self.names.get(snapshot.function_name)
        if self.others is None or known is None:
            return {"exception": NameError(f"name {snapshot.function_name!r} is not defined")}
        try:
            arguments = _arguments(self.others.parameters(known), snapshot.args, snapshot.kwargs)
        except (TypeError, ToolError) as error:
            return {"exception": TypeError(f"{known}(): {error}")}
        self.context.progress(text=f"calls {known}")
        result = await self.others.call(known, arguments)
        if result.error is not None:
            return {"exception": RuntimeError(f"{known}: {result.error}")}
        return {"return_value": _value(result.content)}


def _arguments(parameters: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call as a tool gets them.

    Raises:
        TypeError: they are too many, or one is given twice.
        ToolError: one is no plain data.
    """
    if len(given) > len(parameters):
        raise TypeError(f"it takes {counted(len(parameters), 'argument')}, not {len(given)}")
    placed = dict(zip(parameters, given, strict=False))
    if twice := sorted(placed.keys() & named.keys()):
        raise TypeError(f"it was given {twice[0]!r} twice")
    plain: dict[str, Any] = loads(to_text({**placed, **named}))
    return plain


def _value(content: str) -> Any:
    """A result as Python has it: JSON decoded, other text as it is."""
    try:
        return loads(content)
    except ParseError:
        return content


# --- the interpreter ---------------------------------------------------------------------------


@asynccontextmanager
async def _open_worker(bounds: _Bounds, began: float, *, seed: str) -> AsyncGenerator["_Worker"]:
    """Start an interpreter in a process of its own, which is gone at the end of the block."""
    monty = _sdk()
    pool = monty.Monty(min_processes=1, max_processes=1, checkout_timeout=30)
    session = pool.checkout(
        limits={
            "max_feed_duration_secs": bounds.seconds,
            "max_memory": bounds.memory,
            "max_suspensions": MOST_CALLS,
        },
        os_policy={
            "datetime": dt.datetime.fromtimestamp(began, dt.UTC),
            "sleep": "zero",
            "random_start": {"seed": seed},
        },
    )
    async with _threads():
        await _in_thread(lambda: _enter(pool, session))
    try:
        yield _Worker(monty, session, session.worker_pid, bounds.output)
    finally:
        with trio.CancelScope(shield=True):
            await _in_thread(lambda: _leave(pool, session))


async def _in_thread(fn: Callable[[], T]) -> T:
    """Call what waits for the interpreter in a thread that nobody else of the program waits for."""
    return await trio.to_thread.run_sync(fn, limiter=trio.CapacityLimiter(1))


def _threads() -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        _limiter.set(limiter := trio.CapacityLimiter(THREADS))
        return limiter


def _enter(pool: Any, session: Any) -> None:
    pool.__enter__()
    try:
        session.__enter__()
    except BaseException:
        pool.__exit__(None, None, None)
        raise


def _leave(pool: Any, session: Any) -> None:
    try:
        with suppress(Exception):  # its process may have been killed
            session.__exit__(None, None, None)
    finally:
        pool.__exit__(None, None, None)


@attrs.define(eq=False)
class _Worker:
    """An interpreter at work."""

    monty: Any
    session: Any
    process: int | None
    """The id of its process; the session tells it only while the code waits."""
    most: int
    """Characters of output that are kept."""
    printed: list[str] = attrs.field(factory=list)
    size: int = 0

    async def run(self, code: str, functions: _Functions) -> str:
        """Run code to its end, and return what it says.

        Raises:
            ToolError: it cannot be read, or it raised; with what it had printed.
        """
        monty = self.monty
        try:
            state = await self._step(lambda: self.session.feed_start(code, print_callback=self._print))
            while not isinstance(state, monty.MontyComplete):
                state = await self._answer(state, functions)
        except (monty.MontySyntaxError, monty.MontyRuntimeError) as error:
            raise ToolError("\n".join([*self._said(), self._cut(error.display("traceback"))])) from None
        except monty.MontyError as error:
            raise ToolError(f"the code ended with its interpreter: {str(error)[:500]}") from None
        value = [] if state.output is None else [self._cut(_shown(state.output))]
        return "\n".join([*self._said(), *value]) or "(no output)"

    async def _answer(self, state: Any, functions: _Functions) -> Any:
        if isinstance(state, self.monty.NameLookupSnapshot):
            return await self._step(state.resume)
        if not isinstance(state, self.monty.FunctionSnapshot):
            raise ToolError("the code waits for what no function of it can bring")
        if state.is_os_function:
            return await self._step(state.resume_not_handled)
        answer = await functions.answer(state)
        return await self._step(lambda: state.resume(answer))

    async def _step(self, fn: Callable[[], T]) -> T:
        """Let the code run until it needs something; a cancelled one is killed, and then no thread is left."""
        is_over = False

        async def watch() -> None:
            try:
                await trio.sleep_forever()
            finally:
                if not is_over:
                    self._kill()

        async with _threads(), trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            with trio.CancelScope(shield=True):
                result = await outcome.acapture(_in_thread, fn)
            is_over = True
            nursery.cancel_scope.cancel()
        return result.unwrap()

    def _kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)

    def _print(self, _: str, text: str) -> None:
        """Keep what the code prints, in a thread; text beyond the bound is dropped, and the code continues."""
        if text and self.size < self.most:
            self.printed.append(text[: self.most - self.size])
        self.size += len(text)

    def _cut(self, text: str) -> str:
        """Return what the bound leaves of a value or a traceback: both ends, as the end of a traceback is its error."""
        most = max(self.most - self.size, 200)
        if len(text) <= most:
            return text
        half = most // 2
        return f"{text[:half]}\n[cut: {len(text) - 2 * half:,} of {len(text):,} characters]\n{text[-half:]}"

    def _said(self) -> list[str]:
        text = "".join(self.printed).rstrip("\n")
        if self.size > self.most:
            text += f"\n[cut: the first {self.most:,} of {self.size:,} characters that it printed]"
        return [text] if text else []


def _shown(value: Any) -> str:
    try:
        return to_text(value)
    except ToolError:
        return repr(value)


def _sdk() -> Any:
    """Import the sandbox.

    Raises:
        ConfigurationError: it is not installed.
    """
    if importlib.util.find_spec("pydantic_monty") is None:
        raise ConfigurationError("Python in a sandbox needs the extra: pip install 'actgent[sandbox]'")
    import pydantic_monty  # noqa: PLC0415 - an optional dependency

    return pydantic_monty
