"""actgent.tools.tool_execution: runs the calls of one answer."""

import functools
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from actgent import EnvelopedTool, Labelled
from actgent.approvals import Approve
from actgent.errors import ApprovalRequired, ToolError
from actgent.messages import ToolCall, ToolResult
from actgent.tools import Batch, FunctionTool, Threads, Tool, ToolContext, ToolHooks, ToolRegistry, tool


@tool(thread=False)
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool(parallel=True)
async def nap(seconds: float = 1) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return "slept"


def call(name: str, /, id: str = "c", **arguments: Any) -> ToolCall:  # noqa: A002 - the field's own name
    return ToolCall(name, arguments, id)


def inline(function, name: str = "x", **options: Any) -> FunctionTool:
    return FunctionTool(name, "Test.", function, thread=False, **options)


async def results(*calls: ToolCall, tools: Any, **options: Any) -> tuple[ToolResult, ...]:
    """Run the calls. Check the number and the order of the results."""
    batch = Batch(calls, ToolRegistry(tools), **options)
    await batch.run()
    ended = batch.results()
    assert [result.call_id for result in ended] == [each.id for each in calls]
    return ended


async def result(made: Tool, /, **arguments: Any) -> ToolResult:
    (ended,) = await results(call(made.name, **arguments), tools=[made])
    return ended


# --- one call --------------------------------------------------------------------------------


async def test_successful_call_has_id_name_and_text():
    """The result has the id of the call, the name of the tool, and the text."""
    assert await results(call("add", "c1", a=2, b=3), tools=[add]) == (
        ToolResult(id="c1/result", call_id="c1", tool_name="add", content="5"),
    )


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("arguments", [{"a": 1, "b": 2}, {"a": "1"}, "{bad"])
async def test_native_flag_is_copied(native, arguments):
    """A result has the native flag of its call, on success and on failure."""
    (ended,) = await results(ToolCall("add", arguments, "c", native=native), tools=[add])
    assert ended.native is native


@pytest.mark.parametrize(
    ("tool_call", "reason"),
    [
        (ToolCall("sub", {}), "tool 'sub' not found; existing tools: add"),
        (
            ToolCall("add", "{bad"),
            'Invalid arguments for tool "add": the arguments must be a JSON object (invalid JSON: Expecting property name enclosed in double quotes at character 1)',
        ),
        (
            ToolCall("add", {"a": "five", "b": 1}),
            'Invalid arguments for tool "add": /a: "five" is not of type "integer"',
        ),
        (ToolCall("add", {"a": 1}), 'Invalid arguments for tool "add": "b" is a required property'),
    ],
)
async def test_call_that_cannot_run(tool_call, reason):
    """An unknown tool and invalid arguments are error results that name the cause."""
    (ended,) = await results(tool_call, tools=[add])
    assert (ended.status, ended.error, ended.content) == ("error", reason, "")


async def test_mapped_tool_runs_only_for_its_instruction():
    """A direct call of a mapped tool is an error. The instruction's call runs the tool."""
    batch = Batch(
        [ToolCall("add", {"a": 1, "b": 2}), ToolCall("add", {"a": 1, "b": 2}, mapped=True)],
        ToolRegistry([add], mapped=["add"]),
    )
    await batch.run()
    assert [ended.status for ended in batch.results()] == ["error", "success"]


def fail(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("thread", [True, False])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("no such city"), "no such city"),
        (KeyError("k"), "KeyError: 'k'"),
        (StopIteration(), "RuntimeError: coroutine raised StopIteration"),
        (trio.TooSlowError(), "TooSlowError"),
    ],
)
async def test_exception_becomes_an_error_result(thread, error, text):
    """The exception is converted to text for the model."""
    ended = await result(FunctionTool("x", "Test.", lambda: fail(error), thread=thread))
    assert (ended.status, ended.error) == ("error", text)


async def test_keyboard_interrupt_is_not_converted_to_a_result():
    """Ctrl-C ends the process and is not converted to a tool result."""
    with pytest.raises(KeyboardInterrupt):
        await result(inline(lambda: fail(KeyboardInterrupt())))


@pytest.mark.parametrize("thread", [True, False])
async def test_program_exit_becomes_an_error_result(thread):
    """SystemExit, which argparse raises, ends only the call of the tool."""
    ended = await result(FunctionTool("x", "Test.", lambda: fail(SystemExit(2)), thread=thread))
    assert (ended.status, ended.error) == ("error", "SystemExit: 2")


async def test_group_of_a_tool_with_a_nursery_is_flattened():
    """The model gets the errors without their exception group."""

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(failing, ValueError("a"))
            nursery.start_soon(failing, ToolError("b"))

    async def failing(error: Exception) -> None:
        raise error

    ended = await result(FunctionTool("both", "Both.", both))
    assert set(ended.error.split("; ")) == {"ValueError: a", "b"}


class _Silent:
    def __str__(self):
        raise SystemExit(3)


class _Proxy:
    """An object like a proxy without a target: every access fails, except for `str()`."""

    @property
    def __class__(self):
        raise RuntimeError("no target")

    def __str__(self):
        return "a proxy\x00"


def _made(kind):
    return kind()


async def _wait():
    await trio.lowlevel.checkpoint()


def _cycle():
    made = {}
    made["self"] = made
    return made


NOT_JSON = {
    "object": object(),
    "within data": {"lock": threading.Lock(), "total": 25},
    "cycle": _cycle(),
    "generator": (number for number in range(3)),
    "class": _Silent,
    "set of objects": {object()},
}


@pytest.mark.parametrize("name", NOT_JSON)
@pytest.mark.parametrize("way", ["inline", "thread", "async", "yielded"])
@pytest.mark.parametrize("effect", ["once", "idempotent", "pure"])
async def test_non_json_result_becomes_text(name, way, effect):
    """The tool ran, so its result is a success with `str()` of the value."""
    value, ran = NOT_JSON[name], []

    def make():
        ran.append(1)
        return value

    async def make_async():
        return make()

    async def make_yielded():
        yield make()

    function = {"async": make_async, "yielded": make_yielded}.get(way, make)
    ended = await result(FunctionTool("x", "Test.", function, thread=way != "inline", effect=effect))
    assert (ended.status, ended.content, ended.error, ended.raised) == ("success", str(value), None, "")
    assert ran == [1]


@pytest.mark.parametrize("name", NOT_JSON)
async def test_labels_of_other_results_change_no_text(name, monkeypatch):
    """After a program has labelled a value, the results without a label are the same, also one that contains itself."""
    monkeypatch.setattr(Labelled, "was_made", True)
    ended = await result(FunctionTool("x", "Test.", lambda: NOT_JSON[name], thread=False))
    assert (ended.status, ended.content, ended.error) == ("success", str(NOT_JSON[name]), None)


@pytest.mark.parametrize("way", ["inline", "thread", "enveloped"])
async def test_a_result_without_readable_text_names_its_type(way):
    """An exception of `str()` is not an error of the tool."""
    made = FunctionTool("x", "Test.", functools.partial(_made, _Silent), thread=way == "thread")
    ended = await result(EnvelopedTool(made) if way == "enveloped" else made)
    text = "[the tool ran and returned a value of the type _Silent without readable text: str() raised SystemExit]"
    assert (ended.status, ended.error) == ("success", None)
    assert ended.content == (json.dumps({"success": True, "result": text}) if way == "enveloped" else text)


@pytest.mark.parametrize("thread", [True, False])
async def test_result_with_failing_class_attribute_becomes_text(thread):
    """Control characters in the text are replaced by visible symbols."""
    ended = await result(FunctionTool("x", "Test.", functools.partial(_made, _Proxy), thread=thread))
    assert (ended.status, ended.content) == ("success", "a proxy␀")


async def test_a_coroutine_that_a_tool_forgot_is_an_error():
    """The coroutine has not started, so a success would be wrong."""
    ended = await result(inline(functools.partial(_made, _wait)))
    assert (ended.status, ended.error) == (
        "error",
        "the result cannot be converted to JSON: TypeError: coroutine is not a JSON value: await it in the tool",
    )


async def test_the_text_of_a_result_that_is_not_json_is_shortened_and_not_cached():
    """The text has the same limit as other results. It is not cached because it belongs to one object."""
    made = inline(lambda: ["x" * 500, object()], effect="pure", cache=5)
    (ended,) = await results(call("x"), tools=[made], max_characters=100)
    assert (ended.status, len(ended.content)) == ("success", 100)
    assert len(made.result_cache) == 0


async def test_huge_result_is_cut_with_a_notice():
    """Results and errors have a maximum length. The notice names the full length."""
    ended = await result(inline(lambda: "x" * 200_000))
    assert len(ended.content) == 60_000
    assert "200000 characters" in ended.content
    ended = await result(inline(lambda: fail(ValueError("y" * 200_000))))
    assert len(ended.error) == 60_000
    (ended,) = await results(call("x"), tools=[inline(lambda: "x" * 500)], max_characters=100)
    assert len(ended.content) == 100


async def test_markup_and_templates_are_plain_data():
    """Markup and templates in a result are unchanged text."""
    text = "{{ 7 * 7 }}{% raw %}<script>[bold]%s{0}</tool>"
    assert (await result(inline(lambda: text))).content == text
    assert (await result(inline(lambda: fail(ToolError(text))))).error == text


async def test_record_is_not_changed_by_the_tool():
    """The tool gets a copy of the arguments."""

    def spoil(items: list[Any]) -> int:
        items[0].append(1)
        return len(items)

    wanted = call("spoil", items=[[]])
    await results(wanted, tools=[tool(thread=False)(spoil)])
    assert wanted.arguments == {"items": [[]]}


async def test_context_has_session_owner_and_call():
    """The context has session, owner and call. Each repetition has the same idempotency key."""

    def tell(ctx: ToolContext) -> list[str]:
        return [ctx.session_id, ctx.owner, ctx.call_id, ctx.idempotency_key]

    context = ToolContext(session_id="s", owner="ada")
    for _ in range(2):
        (ended,) = await results(call("tell", "c7"), tools=[tool(thread=False)(tell)], context=context)
        assert ended.content == '["s", "ada", "c7", "s/c7"]'


async def test_access_check_runs_at_each_call():
    """The access check runs at each call. Its text is the error."""
    requests = []

    def check(tool_call: ToolCall, found: Tool) -> str | None:
        requests.append((tool_call.id, found.name))
        return None if tool_call.id == "a" else "not in this mode"

    ended = await results(call("add", "a", a=1, b=2), call("add", "b", a=1, b=2), tools=[add], check=check)
    assert [each.error for each in ended] == [None, "not in this mode"]
    assert requests == [("a", "add"), ("b", "add")]


# --- several calls ---------------------------------------------------------------------------


async def test_concurrent_calls_have_results_in_order(autojump_clock):
    """Three parallel sleeps take as long as the longest. A failed call does not affect other calls."""
    started = trio.current_time()
    ended = await results(
        call("nap", "1", seconds=3),
        call("nap", "2", seconds="x"),
        call("nap", "3", seconds=1),
        call("sub", "4"),
        call("add", "5", a=1, b=1),
        tools=[nap, add],
    )
    assert trio.current_time() - started == 3
    assert [each.status for each in ended] == ["success", "error", "success", "error", "success"]


async def test_exclusive_call_is_a_barrier(autojump_clock):
    """Earlier calls finish before an exclusive call. Later calls are checked after it."""
    log = []

    async def work(name: str, seconds: float) -> None:
        log.append(f"{name}+")
        await trio.sleep(seconds)
        log.append(f"{name}-")

    def check(tool_call: ToolCall, found: Tool) -> None:
        log.append(f"{tool_call.id}?")

    tools = [
        FunctionTool("w", "Work.", work, parallel=True),
        FunctionTool("solo", "Work.", work, exclusive=True),
    ]
    calls = [
        call("w", "a", name="a", seconds=2),
        call("w", "b", name="b", seconds=1),
        call("solo", "s", name="s", seconds=1),
        call("solo", "t", name="t", seconds=1),
        call("w", "c", name="c", seconds=1),
    ]
    await results(*calls, tools=tools, check=check)
    assert log[:4] == ["a?", "b?", "a+", "b+"]
    assert log[4:] == ["b-", "a-", "s?", "s+", "s-", "t?", "t+", "t-", "c?", "c+", "c-"]


@attrs.define
class OrderLog:
    """Tools that log their start and end, for each way to run a tool."""

    entries: list[str] = attrs.field(factory=list)
    active: int = 0
    most_active: int = 0

    def make(self, name: str, way: str, **options: Any) -> FunctionTool:
        async def run_async() -> str:
            self._begin(name)
            await trio.testing.wait_all_tasks_blocked()
            return self._end(name)

        async def run_at_once() -> str:
            self._begin(name)
            return self._end(name)

        def run_sync() -> str:
            self._begin(name)
            return self._end(name)

        function = {"async": run_async, "at_once": run_at_once}.get(way, run_sync)
        return FunctionTool(name, "Note.", function, thread=way == "thread", **options)

    def _begin(self, name: str) -> None:
        self.entries.append(f"{name}+")
        self.active += 1
        self.most_active = max(self.most_active, self.active)

    def _end(self, name: str) -> str:
        self.active -= 1
        self.entries.append(f"{name}-")
        return name

    @property
    def begun(self) -> str:
        return "".join(entry[0] for entry in self.entries if entry[1] == "+")


WAYS = ("async", "at_once", "thread", "inline")


@pytest.mark.parametrize("effect", ["once", "idempotent"])
@pytest.mark.parametrize("way", WAYS)
async def test_calls_with_an_effect_run_sequentially(effect, way):
    """Each call ends before the next call of the answer starts, for each way to run a tool."""
    for _ in range(20):
        log = OrderLog()
        tools = [log.make(name, way, effect=effect) for name in "abcd"]
        await results(*(call(name, name) for name in "dacb"), tools=tools)
        assert log.entries == ["d+", "d-", "a+", "a-", "c+", "c-", "b+", "b-"]


async def test_read_after_write_sees_the_value():
    """Pure calls overlap with each other, and never with a call that has an effect."""
    for ways in itertools.product(WAYS, repeat=2):
        log = OrderLog()
        tools = [log.make("w", ways[0]), *(log.make(name, ways[1], effect="pure") for name in "rst")]
        await results(*(call(name, str(at)) for at, name in enumerate("rswtw")), tools=tools)
        entries = "".join(log.entries)
        assert log.begun == "rswtw"
        assert sorted(log.entries[:4]) == ["r+", "r-", "s+", "s-"]
        assert entries.endswith("w+w-t+t-w+w-")


@pytest.mark.parametrize("ways", list(itertools.product(WAYS, repeat=3)))
async def test_overlapping_calls_start_in_the_order_of_the_answer(ways):
    """Calls start in the order of the answer, although trio starts tasks in random order."""
    for _ in range(10):
        log = OrderLog()
        tools = [log.make(name, way, effect="pure") for name, way in zip("abc", ways, strict=True)]
        await results(*(call(name, str(at)) for at, name in enumerate("abcba")), tools=tools)
        assert log.begun == "abcba"


@pytest.mark.parametrize(
    ("options", "is_parallel", "most_active"),
    [
        ({"effect": "pure"}, False, 3),
        ({"effect": "pure", "parallel": False}, True, 1),
        ({"effect": "pure", "exclusive": True}, True, 1),
        ({"effect": "once"}, False, 1),
        ({"effect": "once"}, True, 3),
        ({"effect": "once", "parallel": True}, False, 3),
        ({"effect": "idempotent", "parallel": False}, True, 1),
    ],
)
async def test_tool_and_agent_settings_decide_overlap(options, is_parallel, most_active):
    """The tool's setting has priority over the agent's setting."""
    log = OrderLog()
    tools = [log.make(name, "async", **options) for name in "abc"]
    await results(*(call(name, name) for name in "abc"), tools=tools, is_parallel=is_parallel)
    assert (log.begun, log.most_active) == ("abc", most_active)


async def test_calls_after_one_that_failed_run_in_order():
    """An error, a rejection, invalid arguments and an unknown tool end only their own call."""
    log = OrderLog()
    tools = [*(log.make(name, "async") for name in "abc"), inline(lambda: fail(ToolError("no")), "bad")]
    calls = [
        call("a", "1"),
        call("bad", "2"),
        call("b", "3", x=1),
        call("gone", "4"),
        call("b", "5"),
        call("c", "6"),
    ]
    ended = await results(*calls, tools=tools, check=lambda call, _: "not now" if call.id == "1" else None)
    assert [each.status for each in ended] == ["error"] * 4 + ["success"] * 2
    assert log.entries == ["b+", "b-", "c+", "c-"]


async def test_calls_of_a_stopped_batch_that_did_not_start_are_cancelled(autojump_clock):
    """The running call is cancelled, and the later calls never start."""
    log = OrderLog()
    slow = FunctionTool("b", "Sleep.", trio.sleep_forever, effect="idempotent")
    tools = [log.make("a", "async"), slow, log.make("c", "async")]
    batch = Batch([call(name, name) for name in "abc"], ToolRegistry(tools))
    with trio.move_on_after(1):
        await batch.run()
    assert log.entries == ["a+", "a-"]
    assert [each.status for each in batch.results()] == ["success", "cancelled", "cancelled"]
    assert batch.results()[2].error == "cancelled before it started"


async def test_empty_batch_has_no_results():
    assert await results(tools=[add]) == ()


@pytest.mark.parametrize(
    ("effect", "status"), [("pure", "cancelled"), ("idempotent", "cancelled"), ("once", "outcome_unknown")]
)
async def test_cancelled_batch_has_a_result_for_each_call(effect, status, autojump_clock):
    """The results distinguish finished, running and waiting calls. Each call has a result."""
    slow = FunctionTool("slow", "Slow.", trio.sleep_forever, effect=effect)
    last = FunctionTool("last", "Last.", trio.sleep_forever, effect=effect, exclusive=True)
    calls = [call("add", "1", a=1, b=1), call("slow", "2"), call("last", "3"), call("add", "4", a=1, b=1)]
    batch = Batch(calls, ToolRegistry([add, slow, last]))
    assert [each.status for each in batch.results()] == ["cancelled"] * 4
    with trio.move_on_after(1) as scope:
        await batch.run()
    assert scope.cancelled_caught
    ended = batch.results()
    assert [each.status for each in ended] == ["success", status, "cancelled", "cancelled"]
    assert all(each.error for each in ended[1:])
    assert batch.results() == ended


@pytest.mark.parametrize("count", [1, 2])
async def test_batch_in_a_cancelled_scope_starts_nothing(count):
    """In a cancelled scope no call starts, for one and for several calls."""
    ran = []
    batch = Batch([call("x")] * count, ToolRegistry([inline(lambda: ran.append(1))]))
    with trio.CancelScope() as scope:
        scope.cancel()
        await batch.run()
    assert [each.status for each in batch.results()] == ["cancelled"] * count
    assert not ran


async def test_cancelled_thread_is_abandoned_and_answered():
    """A sync tool that cannot be stopped has a result at once. Its thread is listed as abandoned."""
    started, go, threads = threading.Event(), threading.Event(), Threads()

    def stubborn() -> None:
        started.set()
        go.wait(60)

    batch = Batch(
        [call("stubborn")],
        ToolRegistry([FunctionTool("stubborn", "Wait.", stubborn)]),
        context=ToolContext(threads=threads),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batch.run)
        await trio.to_thread.run_sync(started.wait, 60)
        nursery.cancel_scope.cancel()
    assert batch.results()[0].status == "outcome_unknown"
    assert threads.abandoned == ("stubborn",)
    go.set()
    await threads.wait_abandoned(5)


# --- time ------------------------------------------------------------------------------------


async def test_call_ends_at_its_timeout(autojump_clock):
    """The timeout is that of the tool, or of the batch, or 60 s. After it the call is an error."""
    own = FunctionTool("own", "Own.", trio.sleep_forever, timeout=5, parallel=True)
    plain = FunctionTool("plain", "Plain.", trio.sleep_forever, parallel=True)
    for options, seconds in [({}, 60), ({"timeout": 7}, 7)]:
        started = trio.current_time()
        ended = await results(call("own"), call("plain"), tools=[own, plain], **options)
        assert trio.current_time() - started == seconds
        assert [each.error for each in ended] == [
            "tool 'own' did not finish within 5 s",
            f"tool 'plain' did not finish within {seconds} s",
        ]
        assert [each.status for each in ended] == ["error", "error"]


async def test_timed_out_thread_is_abandoned():
    """The call of a sync tool ends at its timeout. The thread is listed as abandoned until it ends."""
    go, threads = threading.Event(), Threads()
    slow = FunctionTool("slow", "Slow.", lambda: go.wait(60), timeout=0.01)
    (ended,) = await results(call("slow"), tools=[slow], context=ToolContext(threads=threads))
    assert ended.error == "tool 'slow' did not finish within 0.01 s"
    assert threads.abandoned == ("slow",)
    go.set()
    await threads.wait_abandoned(5)


@attrs.define
class Flaky:
    """A function that fails several times, and then returns the number of calls."""

    failures: int
    error: Exception = attrs.field(factory=lambda: OSError("busy"))
    times: list[float] = attrs.field(factory=list)

    async def __call__(self) -> int:
        await trio.lowlevel.checkpoint()
        self.times.append(trio.current_time())
        if len(self.times) <= self.failures:
            raise self.error
        return len(self.times)


async def flaky(work: Flaky, **options: Any) -> ToolResult:
    return await result(FunctionTool("flaky", "Fail.", work, **{"retry_on": OSError, **options}))


async def test_declared_exception_is_retried_with_growing_delay(autojump_clock):
    """The delay doubles, and the hook gets each failure."""
    seen = []
    hooks = ToolHooks(on_retry=lambda _, error: seen.append(str(error)))
    work = Flaky(3)
    ended = await flaky(work, retries=3, retry_delay=2, hooks=hooks)
    assert ended.content == "4"
    assert [after - before for before, after in zip(work.times, work.times[1:], strict=False)] == [2, 4, 8]
    assert seen == ["busy"] * 3


@pytest.mark.parametrize(
    ("error", "options", "calls"),
    [
        (OSError("busy"), {"retries": 2}, 3),
        (OSError("busy"), {}, 1),
        (ValueError("bad"), {"retries": 2}, 1),
        (ExceptionGroup("g", [OSError("a"), OSError("b")]), {"retries": 2}, 3),
        (ExceptionGroup("g", [OSError("a"), ValueError("b")]), {"retries": 2}, 1),
    ],
)
async def test_only_declared_exceptions_are_retried(error, options, calls, autojump_clock):
    """A call has at most `retries` retries, and only for the declared exceptions."""
    work = Flaky(9, error)
    ended = await flaky(work, **options)
    assert len(work.times) == calls
    assert ended.status == "error"


async def test_bad_arguments_are_not_retried(autojump_clock):
    """Arguments that a class rejects are not retried, whatever exceptions are declared."""
    small = attrs.make_class("Small", {"n": attrs.field(type=int, validator=attrs.validators.lt(5))})
    seen = []

    def take(n: small) -> None: ...

    made = inline(take, retries=3, retry_on=Exception, hooks=ToolHooks(on_retry=lambda *it: seen.append(it)))
    ended = await result(made, n={"n": 5})
    assert ended.error.startswith('Invalid arguments for tool "x": Small: ')
    assert seen == []


async def test_repetitions_stay_within_the_timeout(autojump_clock):
    """The timeout applies to the call with all of its retries."""
    started = trio.current_time()
    ended = await flaky(Flaky(99), retries=50, timeout=10)
    assert trio.current_time() - started == 10
    assert ended.error == "tool 'flaky' did not finish within 10 s"


# --- hooks -----------------------------------------------------------------------------------


async def test_hooks_see_start_and_end():
    """on_start is called, then on_success or on_error with the result. A call that never started calls no hook."""
    log = []
    hooks = ToolHooks(
        on_start=lambda it: log.append(("start", it.id)),
        on_success=lambda _, ended: log.append(("success", ended.content)),
        on_error=lambda _, ended: log.append(("error", ended.error)),
    )
    divide = FunctionTool("divide", "Divide.", lambda a: 1 // a, thread=False, hooks=[hooks])
    await results(call("divide", "1", a=1), call("divide", "2", a=0), call("divide", "3"), tools=[divide])
    assert log == [
        ("start", "1"),
        ("success", "1"),
        ("start", "2"),
        ("error", "ZeroDivisionError: integer division or modulo by zero"),
    ]


async def test_raising_hook_is_logged_and_ignored(caplog):
    """An error of a hook does not change the result. The log names the hook and the tool without contents."""
    log = []

    def bad(*_: object) -> None:
        raise RuntimeError("secret")

    hooks = [ToolHooks(on_start=bad, on_success=bad), ToolHooks(on_start=log.append)]
    ended = await result(inline(lambda: 1, hooks=hooks))
    assert ended.content == "1"
    assert len(log) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the on_start hook of tool 'x' raised RuntimeError",
        "the on_success hook of tool 'x' raised RuntimeError",
    ]


# --- cache -----------------------------------------------------------------------------------


async def test_results_are_cached_by_arguments():
    """Equal arguments in any order are computed once, up to the cache size. Failures are not cached."""
    seen = []

    def work(a: int, b: int) -> int:
        seen.append((a, b))
        return a // b

    made = inline(work, cache=2, effect="pure")
    for a, b in [(1, 1), (1, 1), (2, 1), (1, 0), (1, 0), (3, 1), (1, 1)]:
        await result(made, a=a, b=b)
    await result(made, b=1, a=1)
    assert seen == [(1, 1), (2, 1), (1, 0), (1, 0), (3, 1), (1, 1)]


async def test_truncated_results_are_not_cached():
    """A result that one agent's limit cut is computed again for another agent."""
    made = inline(lambda: "x" * 200, cache=5, effect="pure")
    for limit, length in [(100, 100), (1000, 200), (150, 150)]:
        (ended,) = await results(call("x"), tools=[made], max_characters=limit)
        assert len(ended.content) == length


# --- tools of other kinds --------------------------------------------------------------------


async def test_subclass_of_tool_needs_four_members(autojump_clock):
    """A subclass of Tool needs only name, description, parameters and execute."""

    class Upper(Tool):
        name = "upper"
        description = "Write in capitals."
        parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}  # noqa: RUF012 - as users write it

        async def execute(self, arguments, context):
            await trio.sleep(1)
            return arguments["text"].upper()

    assert (await result(Upper(), text="a")).content == "A"
    assert (
        await result(Upper())
    ).error == 'Invalid arguments for tool "upper": "text" is a required property'


def described(row: dict[str, Any]) -> list[FunctionTool]:
    return [
        FunctionTool(
            function["name"],
            function["description"] or function["name"],
            lambda **arguments: arguments,
            parameters=function["parameters"],
            thread=False,
        )
        for function in row["functions_json_schema"]
    ]


def first_choice(expected: dict[str, Any]) -> dict[str, Any]:
    """Return the first expected value of each argument. "" means that the argument is optional."""
    chosen = {key: values[0] for key, values in expected.items() if values[0] != ""}
    return {key: first_choice(value) if isinstance(value, dict) else value for key, value in chosen.items()}


async def test_published_functions_and_calls_run(recorded_rows):
    """Published functions are accepted as tools, and the expected model calls run."""
    rows = recorded_rows("function_calls.jsonl")
    for row in rows:
        calls = [
            ToolCall(name, first_choice(arguments), f"c{index}")
            for index, expected in enumerate(row["expected"] or ())
            for name, arguments in expected.items()
        ]
        ended = await results(*calls, tools=described(row))
        assert [each.error for each in ended] == [None] * len(calls), row["id"]


WRONG = {
    "string": [7, None],
    "integer": ["seven", 7.5],
    "number": ["seven", [7]],
    "boolean": ["yes", 1],
    "array": [{}, "a, b"],
    "object": [[], "{}"],
}
"""Invalid values of each type."""


def broken(call: ToolCall, parameters: dict[str, Any]) -> Iterator[ToolCall]:
    """Return invalid variants of a valid call, as models write them."""
    arguments = dict(call.arguments)
    for name in (f"{call.name}s", call.name.swapcase()):
        yield ToolCall(name, arguments)
    for extra in ("undeclared", f"{next(iter(parameters['properties']))}_"):
        yield ToolCall(call.name, {**arguments, extra: "x"})
    for name in parameters.get("required", ()):
        yield ToolCall(call.name, {key: value for key, value in arguments.items() if key != name})
    for name in arguments:
        form = parameters["properties"][name]
        for wrong in WRONG[form["type"]]:
            yield ToolCall(call.name, {**arguments, name: wrong})
        if "enum" in form:
            yield ToolCall(call.name, {**arguments, name: "none of these"})


async def test_broken_published_calls_never_run(recorded_rows):
    """A call with a missing, unknown or mistyped argument, a value outside the enum, or a wrong name never runs."""
    count = 0
    for row in recorded_rows("function_calls.jsonl"):
        schemas = {each["name"]: each["parameters"] for each in row["functions_json_schema"]}
        for name, arguments in (pair for each in row["expected"] or () for pair in each.items()):
            wrong = list(broken(ToolCall(name, first_choice(arguments)), schemas[name]))
            ended = await results(*wrong, tools=described(row))
            assert len(wrong) >= 5
            assert {each.status for each in ended} == {"error"}, (row["id"], name)
            assert all("Invalid arguments" in each.error or "not found" in each.error for each in ended)
            count += len(wrong)
    assert count > 106 * 5


# --- calls that wait for an approval ------------------------------------------------------


async def run(calls, tools, **options):
    batch = Batch(calls, ToolRegistry(tools), **options)
    await batch.run()
    return batch, batch.results()


async def test_call_that_needs_an_approval_does_not_run():
    """The other calls run. A call without a decision is reported as withdrawn."""
    ran = []
    guarded = FunctionTool("guarded", "guarded", lambda: ran.append("guarded"), thread=False, approval=True)
    batch, _ = await run([call("guarded"), call("x")], [guarded, inline(lambda: ran.append("x"))])
    assert ran == ["x"]
    assert list(batch.awaiting_approval) == [0]
    assert [result.status for result in batch.results()] == ["cancelled", "success"]
    assert "withdrawn" in batch.results()[0].error


async def test_calls_after_an_exclusive_call_wait():
    """A call that waits for an approval has not finished, so an exclusive call after it does not start."""
    ran = []
    guarded = FunctionTool("guarded", "guarded", lambda: ran.append("guarded"), thread=False, approval=True)
    alone = FunctionTool("alone", "alone", lambda: ran.append("alone"), thread=False, exclusive=True)
    batch, _ = await run([call("guarded"), call("alone")], [guarded, alone])
    assert (ran, list(batch.awaiting_approval)) == ([], [0])
    assert batch.results()[1].error == "cancelled before it started"


async def test_unrunnable_call_needs_no_approval():
    """Calls with invalid arguments and calls that a rule rejects are errors at once."""
    guarded = FunctionTool(
        "guarded",
        "guarded",
        lambda n: n,
        thread=False,
        approval=True,
        parameters={"type": "object", "required": ["n"]},
    )
    batch, results = await run([call("guarded")], [guarded])
    assert (dict(batch.awaiting_approval), results[0].status) == ({}, "error")
    batch, results = await run([call("guarded", n=1)], [guarded], check=lambda *_: "not in this mode")
    assert (dict(batch.awaiting_approval), results[0].error) == ({}, "not in this mode")


async def test_approval_request_from_a_nursery_is_recognized():
    """An approval request together with another error is an error."""

    async def ask():
        raise ApprovalRequired("Which one?")

    async def fail():
        raise ValueError("no")

    @tool
    async def several(also_fail: bool) -> None:
        """Ask from a task."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            if also_fail:
                nursery.start_soon(fail)

    batch, _ = await run([call("several", also_fail=False)], [several])
    assert batch.awaiting_approval[0].question == "Which one?"
    batch, results = await run([call("several", also_fail=True)], [several])
    assert (dict(batch.awaiting_approval), results[0].status) == ({}, "error")


async def test_granted_call_runs_with_its_grant():
    """The tool's context has the approver's decision."""
    seen = []

    @tool(approval=True, thread=False)
    def guarded(context: ToolContext) -> str:
        """Run if it may."""
        seen.append(context.approval)
        return "done"

    batch = Batch([call("guarded", id="c")], ToolRegistry([guarded]), grants={"c": Approve("fine")})
    await batch.run()
    assert (seen, batch.results()[0].content) == ([Approve("fine")], "done")
