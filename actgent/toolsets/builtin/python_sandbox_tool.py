"""Tool that runs Python code in Monty, an interpreter in a separate process without files, network or system access.

Source: https://github.com/pydantic/monty. The code can call the agent's other tools as functions, so that a model
replaces twenty calls by one. Each function call is a call of the tool (`ToolContext.tools`). Code that runs again gets the same
time and random numbers, and the recorded results of its calls.
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

from actgent.approvals import ApprovalRequest
from actgent.errors import ConfigurationError, ToolError
from actgent.errors.text_escaping import counted
from actgent.support.strict_json import loads, loads_or_text
from actgent.tools.outputs.result_text import to_text
from actgent.tools.tool_interface import ApprovalRule, Effect, NestedToolCalls, Tool, ToolContext

from .sandbox import SandboxBounds

MAX_CONCURRENT_RUNS = 8
"""Maximum number of concurrent runs, each with a process and a waiting thread; others wait."""
MAX_CALLS = 1000
"""Maximum number of tool calls and other suspensions of the code in one run."""
T = TypeVar("T")
_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("actgent sandboxed Python")
_NO_NAME = re.compile(r"\W")
_DESCRIPTION = (
    "Run Python code in a sandbox. It has the usual built-ins and json, re, math, datetime, random and few other modules, "
    "no files, network or packages. Your other tools are functions in it, called by name without await; a JSON result "
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
    approval: bool | ApprovalRequest | ApprovalRule = False,
) -> Tool:
    """Make a tool that runs Python code in a sandbox, with the agent's other tools as functions.

    Requires the extra: `pip install 'actgent[sandbox]'`.

    Args:
        name: Name by which the model calls the tool.
        tools: Names of the agent's tools that are available as functions; None for all.
        seconds: Time limit of the code in seconds, without the tools it calls.
        memory: Maximum memory of the code in bytes.
        output: Maximum number of characters of output: printed text plus the value of the last expression or the
            error.
        timeout: Time limit in seconds of a call of this tool, with all tool calls that the code makes; paused while an
            approval is pending.
        approval: True if each run needs an approval, in addition to the approvals of the tools it calls.

    Raises:
        ConfigurationError: The extra is not installed.
    """
    checked = SandboxBounds(seconds=seconds, memory=memory, output=output)
    tool = PythonTool(name, tools, _Limits(checked.seconds, checked.memory, checked.output))
    tool.timeout = timeout
    tool.approval = approval
    return tool


@attrs.frozen
class _Limits:
    """Limits of one run: seconds of code, bytes of memory, characters of output. `SandboxBounds` validates the numbers."""

    seconds: float
    memory: int
    output: int


class PythonTool(Tool):
    """Tool that runs Python code in a sandbox."""

    calls_tools = True
    exclusive = True
    outside = True  # the code may print untrusted text
    effect: Effect = "idempotent"  # a repetition uses the recorded results of its calls
    sinks = ()  # each nested call is checked
    keeps_references = True
    description = _DESCRIPTION
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string", "minLength": 1}},
        "required": ["code"],
        "additionalProperties": False,
    }

    def __init__(self, name: str, tools: Sequence[str] | None, bounds: _Limits) -> None:
        _sdk()
        if isinstance(tools, str):
            raise ConfigurationError(f"tools= must be a list of names: tools=[{tools!r}]")
        self.name = name
        self._tools = None if tools is None else frozenset(tools)
        self._bounds = bounds

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        others = context.tools
        start_time = time.time() if others is None else others.first_started_at()
        async with _open_worker(self._bounds, start_time, seed=context.idempotency_key) as worker:
            functions = _Functions(others, self._functions(others), context)
            return await worker.run(arguments["code"], functions)

    def _functions(self, others: NestedToolCalls | None) -> Mapping[str, str]:
        """Return the names of the tools that the code may call, each under the name of its Python function.

        In function names, characters that Python does not allow become `_`. `others` are the agent's tools; None gives no functions.
        """
        names = () if others is None else others.names()
        chosen = [name for name in names if self._tools is None or name in self._tools]
        return {_NO_NAME.sub("_", name): name for name in reversed(chosen)}


# --- calls of tools from the code --------------------------------------------------------------


@attrs.define(eq=False)
class _Functions:
    """The agent's tools that the sandboxed code can call as functions."""

    others: NestedToolCalls | None
    names: Mapping[str, str]
    context: ToolContext

    async def answer(self, snapshot: Any) -> Mapping[str, Any]:
        """Run the tool that the suspended code calls.

        Return the tool's result or an exception in the form in which the interpreter resumes the code.
        """
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
        return {"return_value": loads_or_text(result.content)}


def _arguments(
    parameters: Sequence[str], positional: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Convert positional and keyword arguments of a call in the code to arguments of a tool by parameter name.

    Raises:
        TypeError: The call has too many arguments, or two values for one parameter.
        ToolError: An argument is not JSON data.
    """
    if len(positional) > len(parameters):
        raise TypeError(f"it takes {counted(len(parameters), 'argument')}, not {len(positional)}")
    placed = dict(zip(parameters, positional, strict=False))
    if twice := sorted(placed.keys() & named.keys()):
        raise TypeError(f"it got two values for {twice[0]!r}")
    plain: dict[str, Any] = loads(to_text({**placed, **named}))
    return plain


# --- the interpreter ---------------------------------------------------------------------------


@asynccontextmanager
async def _open_worker(bounds: _Limits, start_time: float, *, seed: str) -> AsyncGenerator["_Worker"]:
    """Async context manager: run an interpreter in a separate process until the block exits.

    `start_time` is the time that the code sees, as Unix time in seconds. `seed` is the seed of its random numbers.
    """
    monty = _sdk()
    pool = monty.Monty(min_processes=1, max_processes=1, checkout_timeout=30)
    session = pool.checkout(
        limits={
            "max_feed_duration_secs": bounds.seconds,
            "max_memory": bounds.memory,
            "max_suspensions": MAX_CALLS,
        },
        os_policy={
            "datetime": dt.datetime.fromtimestamp(start_time, dt.UTC),
            "sleep": "zero",
            "random_start": {"seed": seed},
        },
    )
    async with _threads():
        await _in_thread(lambda: _open_pool(pool, session))
    try:
        yield _Worker(monty, session, session.worker_pid, bounds.output)
    finally:
        with trio.CancelScope(shield=True):
            await _in_thread(lambda: _close_pool(pool, session))


async def _in_thread(fn: Callable[[], T]) -> T:
    """Run a function that waits for the interpreter in a new thread, which does not count against the program's thread limits."""
    return await trio.to_thread.run_sync(fn, limiter=trio.CapacityLimiter(1))


def _threads() -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        _limiter.set(limiter := trio.CapacityLimiter(MAX_CONCURRENT_RUNS))
        return limiter


def _open_pool(pool: Any, session: Any) -> None:
    pool.__enter__()
    try:
        session.__enter__()
    except BaseException:
        pool.__exit__(None, None, None)
        raise


def _close_pool(pool: Any, session: Any) -> None:
    try:
        with suppress(Exception):  # the process may have been killed
            session.__exit__(None, None, None)
    finally:
        pool.__exit__(None, None, None)


@attrs.define(eq=False)
class _Worker:
    """A running interpreter process."""

    monty: Any
    """The `pydantic_monty` module."""
    session: Any
    """Monty session that executes the code."""
    process: int | None
    """Process id; read at the start because the session reports it only while the code is suspended."""
    output_limit: int
    """Maximum number of characters of output."""
    printed: list[str] = attrs.field(factory=list)
    """Pieces of printed text, up to the output limit."""
    size: int = 0
    """Number of printed characters, including dropped ones."""

    async def run(self, code: str, functions: _Functions) -> str:
        """Run code to its end. Return the printed text and the value of the last expression. If both are empty, return a note.

        Raises:
            ToolError: The code is invalid or raised an exception; the text includes the output.
        """
        monty = self.monty
        try:
            state = await self._step(lambda: self.session.feed_start(code, print_callback=self._print))
            while not isinstance(state, monty.MontyComplete):
                state = await self._answer(state, functions)
        except (monty.MontySyntaxError, monty.MontyRuntimeError) as error:
            raise ToolError(
                "\n".join([*self._printed_lines(), self._truncate_middle(error.display("traceback"))])
            ) from None
        except monty.MontyError as error:
            raise ToolError(f"the interpreter of the code failed: {str(error)[:500]}") from None
        value = [] if state.output is None else [self._truncate_middle(_format_value(state.output))]
        return "\n".join([*self._printed_lines(), *value]) or "(no output)"

    async def _answer(self, state: Any, functions: _Functions) -> Any:
        """Resume suspended Python code with the answer that it waits for, for example the result of a tool call.

        Return the state in which the code suspends again or ends.
        """
        if isinstance(state, self.monty.NameLookupSnapshot):
            return await self._step(state.resume)
        if not isinstance(state, self.monty.FunctionSnapshot):
            raise ToolError("the code awaits an operation that the sandbox does not support")
        if state.is_os_function:
            return await self._step(state.resume_not_handled)
        answer = await functions.answer(state)
        return await self._step(lambda: state.resume(answer))

    async def _step(self, fn: Callable[[], T]) -> T:
        """Call `fn`, which starts or resumes the Python code, in a thread. Return the state in which the code suspends or ends.

        If cancelled, kill the interpreter process, so that the thread ends.
        """
        has_returned = False

        async def watch() -> None:
            try:
                await trio.sleep_forever()
            finally:
                if not has_returned:
                    self._kill()

        async with _threads(), trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            with trio.CancelScope(shield=True):
                result = await outcome.acapture(_in_thread, fn)
            has_returned = True
            nursery.cancel_scope.cancel()
        return result.unwrap()

    def _kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)

    def _print(self, _: str, text: str) -> None:
        """Store text that the code has printed. Text above the output limit is dropped. Runs in a thread."""
        if text and self.size < self.output_limit:
            self.printed.append(text[: self.output_limit - self.size])
        self.size += len(text)

    def _truncate_middle(self, text: str) -> str:
        """Replace the middle of a text that exceeds the output limit by a note. A traceback keeps its end, which names the error."""
        output_limit = max(self.output_limit - self.size, 200)
        if len(text) <= output_limit:
            return text
        half = output_limit // 2
        return f"{text[:half]}\n[cut: {len(text) - 2 * half:,} of {len(text):,} characters]\n{text[-half:]}"

    def _printed_lines(self) -> list[str]:
        text = "".join(self.printed).rstrip("\n")
        if self.size > self.output_limit:
            text += f"\n[cut: the first {self.output_limit:,} of {self.size:,} characters that it printed]"
        return [text] if text else []


def _format_value(value: Any) -> str:
    try:
        return to_text(value)
    except ToolError:
        return repr(value)


def _sdk() -> Any:
    """Import and return the package `pydantic_monty`, the sandboxed interpreter.

    Raises:
        ConfigurationError: The extra is not installed.
    """
    if importlib.util.find_spec("pydantic_monty") is None:
        raise ConfigurationError("Python in a sandbox needs the extra: pip install 'actgent[sandbox]'")
    import pydantic_monty  # noqa: PLC0415 - an optional dependency

    return pydantic_monty
