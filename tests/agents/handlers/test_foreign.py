"""Errors of tools, models, handlers and hooks affect only their own call."""

import asyncio

import attrs
import pytest
import trio
import trio.testing

from actgent import (
    LLM,
    BareAgent,
    HandlerFailed,
    Limits,
    ModelError,
    ScriptedLLM,
    SummarizingMemory,
    ToolCall,
    Toolset,
    UserCodeExit,
    open_runtime,
    tool,
)
from actgent.actors.supervision import Supervision
from actgent.agents.session import internal_context
from actgent.approvals import Approve
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.llm.model_interface import ModelResponse
from actgent.memory.short_term_memory import ShortTermMemory, ShortTermView
from actgent.messages import Text
from actgent.protocols.bare_text_protocol import Bare
from actgent.sessions.restore.snapshotter import SessionSnapshotter
from actgent.testing import check_transcript
from actgent.tools.tool_interface import ToolHooks


class Exit(BaseException):
    """Something that is no `Exception`."""


def fail(error):
    raise error


async def child_fails(error=None):
    """Wait in a nursery whose child fails in its clean-up."""

    async def child():
        try:
            await trio.sleep_forever()
        finally:
            raise error or OSError("socket already closed")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
        await trio.sleep_forever()


async def all_fail():
    """Wait in a nursery that raises only errors."""
    try:
        await child_fails()
    finally:
        raise ExceptionGroup("all", [OSError("a"), ExceptionGroup("b", [ValueError("c")])])


async def fails_at_last():
    """The same without a nursery."""
    try:
        await trio.sleep_forever()
    finally:
        await child_fails(SystemExit(3))


async def cleans_up_long():
    """A clean-up that takes two seconds, and fails."""
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
        raise OSError("socket already closed")


WAYS = [child_fails, all_fail, fails_at_last, cleans_up_long]


class Wayward(LLM):
    """A model that waits as `way` does in sessions whose first message is `model`; it calls tools of that name in others."""

    name = "wayward"

    def __init__(self, way):
        self.way = way
        self.chats = []

    async def complete(self, chat, *, on_text=None):
        await trio.lowlevel.checkpoint()
        self.chats.append(chat)
        assert check_transcript(chat) == []
        text = chat.messages[-1].parts[-1]
        match getattr(text, "text", "result"):
            case "model":
                await self.way()
            case "tool":
                return ModelResponse(parts=(ToolCall("wait", {}),), stop="tool_calls")
            case "crash":
                return ModelResponse(parts=(ToolCall("quick", {}),), stop="tool_calls")
            case "both":
                calls = (ToolCall("wait", {}), ToolCall("wait", {"n": 2}), ToolCall("quick", {}))
                return ModelResponse(parts=calls, stop="tool_calls")
        return ModelResponse(parts=(Text("fine"),))


def make(way, **options):
    @tool
    async def wait(n: int = 1) -> str:
        """Wait."""
        await way()
        return "waited"

    @tool(thread=False)
    def quick() -> str:
        """Be quick."""
        return "quick"

    return BareAgent("a", llm=Wayward(way), tools=[wait, quick], parallel_tools=True, **options)


@attrs.define
class Heard:
    """The values that a session's handlers receive."""

    results: list = attrs.field(factory=list)
    failures: list = attrs.field(factory=list)
    replies: list = attrs.field(factory=list)

    @classmethod
    def of(cls, session):
        received = cls()
        session.on_tool_result(lambda result: received.results.append(result.status))
        session.on_exception(lambda failure: received.failures.append(failure.kind))
        session.on_conversation(lambda reply: received.replies.append(reply.text))
        return received


# --- a clean-up that fails while we cancel --------------------------------------------------


@pytest.mark.parametrize("at", ["tool", "both", "model"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["interrupt", "twice", "aclose", "aclose after", "urgent", "run cancelled"])
async def test_turn_with_a_failing_clean_up_ends(autojump_clock, caplog, way, at, how):
    """The stopping caller returns, the session answers again, and other sessions are not affected."""
    async with open_runtime() as runtime, trio.open_nursery() as nursery:
        agent = await runtime.start(make(way))
        session, other = await agent.create_session("ada"), await agent.create_session("eve")
        received, theirs = Heard.of(session), Heard.of(other)
        with trio.fail_after(20):
            if how == "run cancelled":
                with trio.move_on_after(1):
                    await agent.run(at, session=session)
            else:
                await session.chat(at)
                await other.chat("hello")
                await trio.sleep(1)
            match how:
                case "interrupt":
                    await session.interrupt()
                case "twice":
                    nursery.start_soon(session.interrupt)
                    await trio.sleep(1)
                    await session.interrupt()
                case "aclose":
                    await session.aclose()
                case "aclose after":
                    nursery.start_soon(session.interrupt)
                    await trio.sleep(1)
                    await session.aclose()
                case "urgent":
                    await session.chat("at once", priority="urgent")
            await session.wait_idle()
            if "aclose" in how:
                assert session.status == "closed"
            else:
                assert (await agent.run("again", session=session)).text == "fine"
        assert received.failures == ["interrupted"]
        unknown = {"tool": ["outcome_unknown"], "both": ["outcome_unknown"] * 2 + ["success"], "model": []}[
            at
        ]
        assert received.results == unknown
        assert theirs.failures == []
        assert how == "run cancelled" or theirs.replies == ["fine"]
    assert "restarts" not in caplog.text


@pytest.mark.parametrize("way", WAYS)
async def test_timeout_is_reported_before_a_failing_clean_up(autojump_clock, way):
    """Timeouts of model and tool are reported as timeouts, and not as errors of the clean-up."""
    async with make(way, limits=Limits(model_timeout=5, tool_timeout=3)) as agent:
        session = await agent.create_session("ada")
        failures, results = [], []
        session.on_exception(failures.append)
        session.on_tool_result(results.append)
        await session.chat("model")
        await session.chat("tool")
        with trio.fail_after(30):
            await session.wait_idle()
        assert [type(failure.error).__name__ for failure in failures] == ["ModelTimeout"]
        assert [(result.status, result.error) for result in results] == [
            ("error", "tool 'wait' did not finish within 3 s")
        ]


@pytest.mark.parametrize("way", WAYS)
async def test_six_failing_clean_ups_do_not_end_the_runtime(autojump_clock, way):
    """No agent fails because of them."""
    async with open_runtime() as runtime:
        agent = await runtime.start(make(way))
        bystander = await runtime.start(BareAgent("b", llm=ScriptedLLM(["ok"], repeat=True)))
        for _ in range(8):
            session = await agent.create_session("ada", "tool")
            await trio.sleep(0.1)
            with trio.fail_after(5):
                await session.interrupt()
            assert (await bystander.run("hello")).text == "ok"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", ["tool", "both", "model"])
@pytest.mark.parametrize("interrupted", [False, True])
async def test_stopped_turn_with_a_failing_clean_up_resumes(autojump_clock, way, at, interrupted):
    """Each call has one result, in the record and after a restart, with any error of the clean-up."""
    async with MemoryJournal().running() as journal:
        agent = make(way, grace=0)
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(agent)
            session = await agent.create_session("ada", at, session_id="s")
            await trio.sleep(1)
            if interrupted:
                await session.interrupt()
        async with open_runtime(journal=journal) as runtime:
            agent = make(trio.lowlevel.checkpoint)
            await runtime.start(agent)
            session = await agent.open_session("s")
            await session.wait_idle()
            assert (await agent.run("again", session=session)).text == "fine"
            answered = [call.call_id for message in session.history for call in message.tool_results]
            asked = [call.id for message in session.history for call in message.tool_calls]
            assert answered == asked
            assert len(asked) == {"tool": 1, "both": 3, "model": 0}[at]


class BreakingView(ShortTermView):
    """A memory that fails at the results of a turn, so that its agent does."""

    def add(self, message, *, answered=False):
        if any(
            result.tool_name == "quick" and len(message.tool_results) == 1 for result in message.tool_results
        ):
            raise RuntimeError("a mistake in the memory")
        super().add(message, answered=answered)


class Breaking(ShortTermMemory):
    def open_view(self):
        view = super().open_view()
        view.__class__ = BreakingView
        return view


@pytest.mark.parametrize("journal", [None, "memory:"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", ["tool", "both", "model"])
async def test_failed_agent_restarts_despite_failing_clean_ups(autojump_clock, journal, way, at):
    """The agent restarts once. Interrupted turns end as failures, and the session answers again."""
    async with open_runtime(journal=journal, supervision=Supervision(max_restarts=1)) as runtime:
        agent = await runtime.start(make(way, memory=Breaking()))
        session, other = await agent.create_session("ada", at), await agent.create_session("eve")
        received = Heard.of(session)
        await trio.sleep(1)
        await other.chat("crash")
        await trio.sleep(5)
        assert received.failures == ["internal"]
        assert (
            received.results
            == {"tool": ["outcome_unknown"], "both": ["outcome_unknown"] * 2 + ["success"], "model": []}[at]
        )
        assert (await agent.run("again", session=session)).text == "fine"


@pytest.mark.parametrize("way", WAYS)
async def test_timeout_of_a_handler_is_reported_despite_a_failing_clean_up(autojump_clock, way):
    async with BareAgent("a", llm=ScriptedLLM(["one", "two"]), handler_timeout=2) as agent:
        session = await agent.create_session("ada", "hello")
        failures = []
        session.on_conversation(lambda reply: way() if reply.text == "one" else None)
        session.on_exception(failures.append)
        with trio.fail_after(10):
            await session.wait_idle()
        (failure,) = failures
        assert "took longer than 2 s" in str(failure.error)
        assert (await agent.run("hello", session=session)).text == "two"


async def test_failing_handler_clean_up_does_not_delay_the_end(autojump_clock):
    """The block exits in time, and raises nothing."""
    with trio.fail_after(20):
        async with BareAgent("a", llm=ScriptedLLM(["one"]), grace=1) as agent:
            session = await agent.create_session("ada", "hello")
            session.on_conversation(lambda _: child_fails())
            await trio.sleep(1)


# --- what is no Exception -------------------------------------------------------------------

EXITS = [
    SystemExit(2),
    asyncio.CancelledError(),
    GeneratorExit(),
    Exit("x"),
    BaseExceptionGroup("g", [Exit()]),
]


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ["thread", "inline", "async", "nursery", "hook", "retried"])
async def test_error_of_a_tool_ends_only_its_call(error, kind):
    """The error is the result, and the model continues with it."""
    raising = lambda *_: fail(error)  # noqa: E731

    async def later():
        await trio.lowlevel.checkpoint()
        raise error

    async def nested():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)

    options = {
        "inline": {"thread": False},
        "hook": {"hooks": ToolHooks(on_start=raising, on_success=raising), "thread": False},
        "retried": {"retries": 2, "retry_on": Exception, "retry_delay": 0, "thread": False},
    }.get(kind, {})
    function = {"async": later, "nursery": nested, "hook": lambda: "done"}.get(kind, lambda: fail(error))
    made = tool(name="x", description="Test.", **options)(function)
    llm = ScriptedLLM([ToolCall("x", {}), "fine"])
    async with BareAgent("a", llm=llm, tools=[made]) as agent:
        session = await agent.create_session("ada", "go")
        results = []
        session.on_tool_result(results.append)
        await session.wait_idle()
        assert session.history[-1].text == "fine"
        (result,) = results
        if kind == "hook":
            assert result.status == "success"
        else:
            assert result.status == "error"
            assert type(error).__name__.removesuffix("Group").replace("BaseException", "Exit") in result.error


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
async def test_exit_exceptions_of_user_code_end_only_their_call(autojump_clock, error):
    """Models, protocols, handlers, hooks, rules and reducers raise them.

    The result is a failure of the turn or of the handler.
    """

    class Odd(Bare):
        def read(self, answer, view):
            raise error

    async def raising(*_):
        await trio.lowlevel.checkpoint()
        raise error

    def raising_now(*_):
        raise error

    @tool(thread=False)
    def put() -> str:
        """Put."""
        return "put"

    def agent(name, answers=("fine",), **options):
        return BareAgent(name, llm=ScriptedLLM(list(answers), repeat=True), **options)

    async with open_runtime() as runtime:
        by_model = await runtime.start(agent("m", [error, "fine"]))
        by_protocol = await runtime.start(agent("p", protocol=Odd()))
        by_rule = await runtime.start(agent("r", [ToolCall("put", {})], tools=[put], approval=raising_now))
        others = await runtime.start(agent("h"))
        others.on_query(raising)
        others.on_message(raising_now)
        for each, kinds in ((by_model, ["model"]), (by_protocol, ["internal"]), (by_rule, ["internal"])):
            session = await each.create_session("ada", "hello")
            received = Heard.of(session)
            await session.wait_idle()
            assert received.failures == kinds
        session = await others.create_session("ada", "hello")
        received = Heard.of(session)
        session.on_conversation(raising)
        session.on_conversation(raising_now)
        await session.wait_idle()
        assert received.replies == ["fine"]
        assert set(received.failures) == {"handler"}
        assert len(received.failures) == 5  # the query hook, the message hook twice, and two handlers
        with pytest.raises(Exception, match="was raised"):
            session.state.dispatch(raising_now)
        others.on_session(raising)
        with pytest.raises(Exception, match="was raised"):
            await others.create_session("eve")


class Unreadable(Exception):
    """An object whose text raises."""

    def __str__(self):
        raise SystemExit(4)

    __repr__ = __str__


FOREIGN = [*EXITS, Unreadable()]


@pytest.mark.parametrize("error", FOREIGN, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("at", ["fields", "items", "output"])
async def test_unserializable_result_becomes_text(error, at):
    """Methods of the result may raise any error, because the tool ran.

    An error of `process_output` is the error of the call.
    """

    class Odd:
        def __getattr__(self, name):
            fail(error)

    class Mapping(dict):
        def items(self):
            fail(error)

    value = {"fields": Odd(), "items": Mapping(a=1), "output": "fine"}[at]
    output = (lambda _: fail(error)) if at == "output" else None
    made = tool(name="x", description="Test.", thread=False, process_output=output)(lambda: value)
    async with BareAgent("a", llm=ScriptedLLM([ToolCall("x", {}), "fine"]), tools=[made]) as agent:
        session = await agent.create_session("ada", "go")
        received = Heard.of(session)
        await session.wait_idle()
        status = "error" if at == "output" else "success"
        assert (received.results, received.failures, received.replies) == ([status], [], ["fine"])


@pytest.mark.parametrize("error", FOREIGN, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("llm", ["raises", "odd"])
async def test_a_failing_summary_keeps_the_session_running(autojump_clock, caplog, error, llm):
    """Summaries are made during turns, in the runtime's nursery."""

    class Odd(LLM):
        name = "odd"

        async def complete(self, chat, *, on_text=None):
            await trio.lowlevel.checkpoint()

    writer = ScriptedLLM([error], repeat=True) if llm == "raises" else Odd()
    memory = SummarizingMemory(llm=writer, keep=4, trigger=100)
    async with BareAgent("a", llm=ScriptedLLM(["fine"], repeat=True), memory=memory) as agent:
        session = await agent.create_session("ada")
        for _ in range(6):
            assert (await agent.run("a long question " * 20, session=session)).text == "fine"
            await trio.sleep(1)
    assert "no summary" in caplog.text
    assert "restarts" not in caplog.text


@pytest.mark.parametrize("error", FOREIGN, ids=lambda error: type(error).__name__)
async def test_a_failing_snapshot_keeps_the_session_running(error, caplog):
    """Snapshots build a separate memory view of the user's class during turns."""

    class Broken(ShortTermMemory):
        def open_view(self):
            fail(error)

    async with (
        MemoryJournal().running() as journal,
        open_runtime(journal=journal) as runtime,
        trio.open_nursery() as nursery,
    ):
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["fine"])))
        session = await agent.create_session("ada", "hello")
        await session.wait_idle()
        log = internal_context(session).log
        SessionSnapshotter(
            journal, "a", Broken(), lambda *work: nursery.start_soon(*work) or True
        ).snapshot_in_background(log)
    assert "the snapshot of session" in caplog.text


@pytest.mark.parametrize("error", FOREIGN, ids=lambda error: type(error).__name__)
async def test_failing_toolset_fails_only_the_start_of_its_agent(autojump_clock, error):
    """A failed connect is retried; an invalid derived toolset raises at the start."""

    class Group(Toolset):
        name = "t"

        async def run(self, publish):
            publish([tool(name="y", description="Test.")(lambda: 1)])
            await trio.sleep_forever()

    class Lost(Toolset):
        name = "l"

        async def run(self, publish):
            await trio.lowlevel.checkpoint()
            raise error

    async with open_runtime() as runtime:
        with pytest.raises(type(error) if isinstance(error, Exception) else UserCodeExit):
            await runtime.start(
                BareAgent("a", llm=ScriptedLLM([]), tools=[Group().filtered(lambda _: fail(error))])
            )
        agent = await runtime.start(BareAgent("b", llm=ScriptedLLM(["fine"]), tools=[Lost()]))
        await trio.sleep(3)
        assert (await agent.run("hello")).text == "fine"


@pytest.mark.parametrize("error", FOREIGN, ids=lambda error: type(error).__name__)
async def test_failed_rewrite_of_a_message_raises(error):
    """The caller that creates the session gets it, and may retry."""
    async with BareAgent("a", llm=ScriptedLLM([error, "fine"])) as agent:
        with pytest.raises(ModelError if isinstance(error, Exception) else UserCodeExit):
            await agent.create_session("ada", "hello", enhance_prompt=True)
        assert (await agent.run("hello")).text == "fine"


async def test_unprintable_error_of_a_guard_is_contained():
    """The caller gets a readable error; a stream reader that does not look gets none."""
    async with BareAgent("a", llm=ScriptedLLM([Unreadable(), "fine"])) as agent:
        async with agent.stream("hello"):
            await trio.testing.wait_all_tasks_blocked()
        guard = agent.guard(lambda _: fail(Unreadable()), on="input")
        with pytest.raises(HandlerFailed, match="its text is not readable"):
            await agent.run("hello")
        agent.remove_hook(guard)
        assert (await agent.run("hello")).text == "fine"


def nested(error, depth=3000):
    """Wrap an error into groups, deeper than functions may call each other."""
    for _ in range(depth):
        error = BaseExceptionGroup("nested", [error])
    return error


class Uncaused(Exception):
    """An error whose cause raises when it is read."""

    @property
    def __cause__(self):
        raise ValueError("no cause")


class Closed(ExceptionGroup):
    """A group whose members raise when they are read."""

    @property
    def exceptions(self):
        raise ValueError("no members")


class Untraced(Exception):
    """An error whose traceback cannot be set."""

    def with_traceback(self, trace):
        raise ValueError("no traceback")


class Falsy(Exception):
    """An error that has no truth, as one of a validation without findings."""

    def __bool__(self):
        raise ValueError("no truth")


def closed():
    return Closed("closed", [ValueError("x")])


HARD = [lambda: nested(ValueError("deep")), lambda: nested(SystemExit(4)), Uncaused, closed, Untraced, Falsy]
HARD_NAMES = ["deep", "exit", "cause", "closed", "untraced", "falsy"]


@pytest.mark.parametrize("make", HARD, ids=HARD_NAMES)
@pytest.mark.parametrize("kind", ["conversation", "exception"])
async def test_a_handler_error_with_a_failing_str_is_contained(autojump_clock, caplog, kind, make):
    """Errors of failure handlers, which are only logged, are contained as well."""

    def fails(_):
        raise make()

    async with BareAgent("a", llm=ScriptedLLM([RuntimeError("no"), "fine", "fine"])) as agent:
        session = await agent.create_session("ada")
        getattr(session, f"on_{kind}")(fails)
        with trio.fail_after(5):
            for text in ("first", "second"):
                await session.chat(text)
                await session.wait_idle()
        assert (await agent.run("hello")).text == "fine"
    assert not any("failed and restarts" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("make", HARD, ids=HARD_NAMES)
async def test_sync_tool_with_an_unprintable_error_has_a_result(make):
    """The error of its thread is not inspected on its way."""

    @tool
    def x() -> str:
        """Test."""
        raise make()

    async with BareAgent("a", llm=ScriptedLLM([ToolCall("x", {}), "fine"]), tools=[x]) as agent:
        with trio.fail_after(10):
            assert (await agent.run("hello")).text == "fine"


@pytest.mark.parametrize("make", HARD, ids=HARD_NAMES)
async def test_an_error_with_a_failing_str_fails_only_its_call(autojump_clock, make):
    """It may be nested deeper than the recursion limit, and its attributes may raise."""

    class Odd(Bare):
        def read(self, answer, view):
            raise make()

    @tool
    async def x() -> str:
        """Test."""
        raise make()

    async with open_runtime() as runtime:
        told = await runtime.start(BareAgent("t", llm=ScriptedLLM([ToolCall("x", {}), "fine"]), tools=[x]))
        odd = await runtime.start(BareAgent("o", llm=ScriptedLLM(["fine"]), protocol=Odd()))
        with trio.fail_after(5):
            assert (await told.run("hello")).text == "fine"
            with pytest.raises(type(make()) if isinstance(make(), Exception) else UserCodeExit):
                await odd.run("hello")


async def test_a_keyboard_interrupt_ends_the_program():
    """The program raises the KeyboardInterrupt itself, also out of a nursery of a tool."""

    async def ctrl_c():
        raise KeyboardInterrupt

    async def nested():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctrl_c)
            await trio.sleep_forever()

    made = tool(name="x", description="Test.")(nested)
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012 - of the runtime's nurseries
        async with BareAgent("a", llm=ScriptedLLM([ToolCall("x", {})]), tools=[made]) as agent:
            await agent.create_session("ada", "go")
            await trio.sleep_forever()
    assert caught.group_contains(KeyboardInterrupt)


async def test_approved_call_may_fail_in_its_cleanup(autojump_clock):
    """A suspended turn is as robust as any other turn."""

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        await child_fails()
        return "paid"

    async with BareAgent("a", llm=ScriptedLLM([ToolCall("pay", {}), "fine"]), tools=[pay]) as agent:
        session = await agent.create_session("ada", "go")
        received = Heard.of(session)
        await session.wait_idle()
        await session.answer(session.approvals[0], Approve())
        await trio.sleep(1)
        with trio.fail_after(5):
            await session.interrupt()
        assert (received.results, received.failures) == (["outcome_unknown"], ["interrupted"])
