"""Mistakes of new users: each is reported once, at its cause, with the correct form."""

import asyncio
import socket
import subprocess
import sys
import time
import traceback
from importlib import metadata
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel
import trio.testing

import actgent
from actgent import (
    ActgentError,
    AgentBuilder,
    BareAgent,
    ConfigurationError,
    DuplicateTool,
    Failure,
    File,
    GoalAgent,
    Guard,
    Image,
    InvalidFolder,
    JournalFailed,
    LimitReached,
    Limits,
    MissingKey,
    ModelError,
    NotRunning,
    OpenAI,
    ParseError,
    PipelineStep,
    PlanAgent,
    Policy,
    PoolAgent,
    ProviderUnavailable,
    RateLimitedModel,
    ReActAgent,
    Reply,
    RouterAgent,
    ScriptedLLM,
    Session,
    SessionClosed,
    SessionExists,
    ShortTermMemory,
    SimpleAgent,
    StepsAgent,
    Suspended,
    Token,
    Tool,
    ToolCall,
    ToolError,
    ToolHooks,
    ToolResult,
    Webhook,
    open_runtime,
    run_agent,
    tool,
)
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.prompt_layers import PromptLayer
from actgent.support.safe_logging import summarise
from actgent.turns.event_loop_watchdog import BLOCKED_SECONDS, INTERVAL_SECONDS


@pytest.fixture
def told(caplog):
    """Return each log record as a text with its traceback."""
    summarise(
        all_of_them=True
    )  # equal records of earlier tests would be suppressed together with those of this test
    caplog.clear()

    def records() -> list[str]:
        ours = [record for record in caplog.records if record.name.startswith("actgent")]
        return [
            f"{record.levelname} {record.getMessage()}" + (f"\n{record.exc_text}" if record.exc_text else "")
            for record in ours
        ]

    return records


def agent_with(*answers, **options) -> BareAgent:
    return BareAgent("clerk", llm=ScriptedLLM(list(answers)), **options)


async def chat_once(agent, text="hi"):
    """Send one message to a new session without any handler, as a new user does."""
    async with agent:
        session = await agent.create_session("ada")
        await session.chat(text)
        await session.wait_idle()
    return session


def result_of(session) -> str:
    """Return the error of the only tool call as the model reads it."""
    return next(message.tool_results[0].error for message in session.history if message.tool_results)


# --- tools -----------------------------------------------------------------------------------


@tool
async def misspelt() -> str:
    """Use a name that is not there."""
    return missing  # noqa: F821 - the mistake


@tool
async def unreadable() -> object:
    """Return what JSON cannot carry."""
    return object()


@tool
async def unawaited() -> object:
    """Forget an await."""
    return trio.lowlevel.checkpoint()  # noqa: ASYNC105 - the mistake


class Unfinished(Tool):
    """A tool that is passed as its class."""

    name = "unfinished"

    async def execute(self, arguments, context):
        """Do nothing."""


async def test_a_tool_with_a_bug_is_logged_with_its_traceback(told):
    """The model reads the error as a result, so without a log record the developer would not see it."""
    session = await chat_once(agent_with(ToolCall("misspelt", {}), "done", tools=[misspelt]))
    (record,) = told()
    assert (
        "tool misspelt failed; the model reads the error: NameError: name 'missing' is not defined" in record
    )
    assert "in misspelt\n" in record
    assert "return missing" in record
    assert "actgent/tools" not in record, "the traceback begins where the program's own code does"
    assert result_of(session) == "NameError: name 'missing' is not defined"


async def test_repeated_tool_error_is_logged_once(told):
    """A thousand equal calls are one log record and a count."""
    calls = [ToolCall("misspelt", {}) for _ in range(3)]
    agent = agent_with(*calls, "done", tools=[misspelt], limits=Limits(max_repeated_calls=10))
    await chat_once(agent)
    assert ["2 more records like this one" in record for record in told()] == [False, True]


async def test_tool_error_is_not_logged(told):
    """A `ToolError` is for the model. With `debug=True`, its traceback is logged."""

    @tool
    async def refusing() -> str:
        """Refuse."""
        raise ToolError("not on Sundays")

    await chat_once(agent_with(ToolCall("refusing", {}), "done", tools=[refusing]))
    assert told() == []
    await chat_once(agent_with(ToolCall("refusing", {}), "done", tools=[refusing], debug=True))
    (record,) = told()
    assert "ToolError: not on Sundays" in record
    assert "in refusing" in record


async def test_hook_gets_the_exception_of_a_tool():
    """The hook gets the exception itself with its traceback."""
    raised = []
    hooks = ToolHooks(on_exception=lambda call, error: raised.append((call.name, error)))

    @tool(hooks=hooks)
    async def failing() -> str:
        """Fail."""
        raise LookupError("nothing there")

    await chat_once(agent_with(ToolCall("failing", {}), "done", tools=[failing]))
    ((name, error),) = raised
    assert name == "failing"
    assert isinstance(error, LookupError)
    assert error.__traceback__ is not None


@pytest.mark.parametrize(
    ("made", "answer", "expected"),
    [
        (
            unreadable,
            "returned a value that is not JSON, so the model reads str() of it",
            "object is not a JSON value: return text, a number, a list, a dict, or a dataclass",
        ),
        (unawaited, "failed", "coroutine is not a JSON value: await it in the tool"),
    ],
    ids=["unreadable", "unawaited"],
)
async def test_unserializable_result_is_logged(told, made, answer, expected):
    """The log record names the tool and a suitable return value."""
    await chat_once(agent_with(ToolCall(made.name, {}), "done", tools=[made]))
    (record,) = told()
    assert f"tool {made.name} {answer}" in record
    assert expected in record


async def _sleep():
    await asyncio.sleep(0.1)


async def _yield():
    await asyncio.sleep(0)


async def _wait():
    await asyncio.Event().wait()


@pytest.mark.parametrize("use", [_sleep, _yield, _wait])
async def test_tool_that_awaits_asyncio_is_logged(told, use):
    """The errors of asyncio do not mention trio, so the log record and the tool result name `trio.sleep()`."""

    @tool
    async def asleep() -> str:
        """Sleep in the wrong world."""
        await use()
        return "slept"

    session = await chat_once(agent_with(ToolCall("asleep", {}), "done", tools=[asleep]))
    (record,) = told()
    for text in (record, result_of(session)):
        assert "agents run on trio, so write trio.sleep() instead of asyncio.sleep()" in text


def _hold(told) -> None:
    """Block the event loop until a log record reports it, for five seconds at most."""
    over = time.monotonic() + 5
    while time.monotonic() < over and not any("has held the event loop" in record for record in told()):
        time.sleep(0.02)


@pytest.mark.parametrize("inline", [False, True])
async def test_blocking_call_in_a_tool_is_logged(told, inline):
    """The watchdog names the tool, the function, and the non-blocking call."""

    @tool
    async def slow() -> str:
        """Block."""
        _hold(told)
        return "done"

    @tool(thread=False)
    def quick() -> str:
        """Block, though it said that it never would."""
        _hold(told)
        return "done"

    made = quick if inline else slow
    await chat_once(agent_with(ToolCall(made.name, {}), "done", tools=[made]))
    (record,) = told()
    assert f"tool {made.name} has held the event loop" in record
    assert f"in test_blocking_call_in_a_tool_is_logged.<locals>.{made.name}" in record
    assert "trio.sleep() for time.sleep()" in record


async def test_blocking_call_in_a_model_is_logged(told):
    """The watchdog names a model of the program that blocks the event loop."""

    async def asking(chat):
        _hold(told)
        return "done"

    await chat_once(agent_with(asking))
    (record,) = told()
    assert "model scripted has held the event loop" in record


async def test_blocking_call_in_an_async_handler_is_logged(told):
    """The watchdog names an async handler as it names a sync one."""
    async with agent_with("hello") as agent:
        session = await agent.create_session("ada")

        @session.on_conversation
        async def store(reply):
            await trio.lowlevel.checkpoint()
            _hold(told)

        await session.chat("hi")
        await session.wait_idle()
    (record,) = told()
    assert (
        "handler test_blocking_call_in_an_async_handler_is_logged.<locals>.store has held the event loop"
        in record
    )


async def test_yielding_tool_is_not_reported(told):
    """A tool that often yields to the event loop is not reported, however often the watchdog samples it."""

    @tool
    async def busy() -> str:
        """Work for longer than may be blocked, and let others run."""
        over = time.monotonic() + BLOCKED_SECONDS + 3 * INTERVAL_SECONDS
        while time.monotonic() < over:
            await trio.lowlevel.checkpoint()
        return "done"

    await chat_once(agent_with(ToolCall("busy", {}), "done", tools=[busy]))
    assert told() == []


# --- failures and approvals without a handler -----------------------------------------------------


async def test_model_failure_without_on_exception_is_logged(told):
    """The log has the error and the traceback of a model of the program."""

    def broken(chat):
        raise RuntimeError("no weights loaded")

    await chat_once(agent_with(broken))
    (record,) = told()
    assert (
        "ended as model failure: ModelError: scripted: RuntimeError: no weights loaded; attach session.on_exception"
        in record
    )
    assert "in broken" in record


async def test_handler_error_without_on_exception_is_logged(told):
    """The log has the error and its traceback."""
    async with agent_with("hello") as agent:
        session = await agent.create_session("ada")

        @session.on_conversation
        def show(reply):
            raise ValueError(f"cannot show {reply}")

        await session.chat("hi")
        await session.wait_idle()
    (record,) = told()
    assert "show failed: ValueError: cannot show hello" in record
    assert "in show" in record


async def test_model_failure_in_a_stream_is_logged(told):
    """The failure is logged, because a reader of only tokens and replies gets an empty stream without an exception."""

    def broken(chat):
        raise RuntimeError("no weights loaded")

    async with agent_with(broken) as agent, agent.stream("hi") as events:
        replies = [event async for event in events if isinstance(event, Reply)]
    assert replies == []
    (record,) = told()
    assert "a stream ended as model failure: ModelError: scripted: RuntimeError: no weights loaded" in record
    assert "raise the error of each Failure, or attach session.on_exception" in record


async def test_raised_failure_of_a_stream_is_not_logged(told):
    """The caller gets the exception, so no log record is needed."""

    def broken(chat):
        raise RuntimeError("no weights loaded")

    async with agent_with(broken) as agent:
        with pytest.raises(ModelError, match="no weights"):  # noqa: PT012 - the whole reading
            async with agent.stream("hi") as events:
                async for event in events:
                    raise event.error
    assert told() == []


async def test_failed_plan_is_reported_in_its_result_only(told):
    """`process` returns the error, so no log record is needed."""

    def broken(chat):
        raise RuntimeError("no weights loaded")

    async with PlanAgent("planner", llm=ScriptedLLM([broken])) as agent:
        result = await agent.process("hi")
    assert result.status == "error"
    assert "no weights loaded" in str(result.error)
    assert told() == []


@tool(approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


async def test_suspended_stream_is_logged_with_the_remedy(told):
    """The stream ends without an answer."""
    async with agent_with(ToolCall("pay", {}), "done", tools=[pay]) as agent, agent.stream("hi") as events:
        replies = [event async for event in events if isinstance(event, Reply)]
    assert replies == []
    (record,) = told()
    assert "a call of tool pay waits for an approval" in record
    assert "agent.follow(session)" in record


async def test_approval_without_a_handler_is_logged(told):
    """Without on_approval, the request would be invisible."""
    await chat_once(agent_with(ToolCall("pay", {}), "done", tools=[pay]))
    (record,) = told()
    assert (
        "a call of tool pay waits for an approval, and no handler received the request: attach session.on_approval"
        in record
    )


async def test_suspended_run_raises_an_error_with_the_remedies():
    """The error names the tool."""
    async with agent_with(ToolCall("pay", {}), "done", tools=[pay]) as agent:
        with pytest.raises(Suspended) as caught:
            await agent.run("hi")
    for expected in (
        "'pay'",
        caught.value.ids[0],
        "agent.resume({approval_id: Approve()})",
        "session.answer(",
    ):
        assert expected in str(caught.value)
    assert caught.value.tools == ("pay",)


async def test_thousand_interrupted_turns_are_one_log_record(told):
    """The first one is logged, and the number of the others when the block exits."""

    async def endless(chat):
        await trio.sleep_forever()

    slow = ScriptedLLM([endless] * 1000 + ["now"] * 1000)
    async with BareAgent("clerk", llm=slow, max_concurrent_sessions=1000) as agent:
        sessions = [await agent.create_session(f"u{number}", "hi") for number in range(1000)]
        await trio.testing.wait_all_tasks_blocked()
        for session in sessions:
            await session.chat("now", priority="urgent")
        for session in sessions:
            await session.wait_idle()
    first, rest = told()
    assert "a message ended without an answer, since an urgent one or interrupt() stopped its turn" in first
    assert "999 more records like this one" in rest


async def test_message_beyond_the_memory_limit_is_logged(told):
    """The log record states the size of the message and the argument to raise."""
    await chat_once(agent_with("hello"), "x" * 10_000_000)
    (record,) = told()
    assert "about 2,500,000 tokens, and the context budget is 180,000" in record
    assert "raise ShortTermMemory(max_tokens=...)" in record


# --- handlers --------------------------------------------------------------------------------


async def test_late_handler_is_logged(told):
    """One log record states that the handler missed earlier deliveries."""
    async with agent_with("hello", "again") as agent:
        session = await agent.create_session("ada", "hi")
        await session.wait_idle()
        session.on_conversation(print)
        session.on_conversation(print)
    (record,) = told()
    assert "on_conversation was attached after deliveries without a handler" in record
    assert "before chat() and wait_idle(), or in agent.on_session" in record


async def test_returning_handler_is_not_logged_as_late(told):
    """A session that had a handler before, for example of a user's connection, logs no missed deliveries."""
    async with agent_with("hello", "again") as agent:
        session = await agent.create_session("ada", "hi")
        session.on_conversation(str)
        await session.wait_idle()
        session.remove_handler(str)
        await session.chat("and now?")
        await session.wait_idle()
        session.on_conversation(str)
    assert told() == []


class Shelf:
    """Methods that serve as handlers."""

    def none(self):
        """Take nothing."""

    def one(self, item):
        """Take what is delivered."""

    def any(self, *items):
        """Take any number of things."""

    def default(self, item=1):
        """Take a thing, or none."""

    def three(self, item, session, more):
        """Take too much."""

    def __call__(self):
        """Take nothing either."""


@pytest.mark.parametrize(
    ("handler", "count"), [(lambda: None, "no"), (Shelf().none, "no"), (Shelf().three, "3"), (Shelf(), "no")]
)
async def test_handler_with_a_wrong_signature_is_rejected(handler, count):
    """The call that attaches the handler raises the error, before the first answer."""
    async with agent_with() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match=f"takes {count} arguments, and is called with one"):
            session.on_conversation(handler)


@pytest.mark.parametrize("handler", [print, Shelf().one, Shelf().any, Shelf().default, str])
async def test_handlers_with_valid_signatures_are_accepted(handler):
    """A handler may have one parameter, any number of parameters, or one with a default."""
    async with agent_with("hello") as agent:
        session = await agent.create_session("ada", "hi")
        session.on_exception(failed := [].append)
        session.on_conversation(handler)
        await session.wait_idle()
    assert failed.__self__ == []


async def test_called_handler_is_rejected():
    """`on_conversation(print("x"))` is an error and attaches no handler."""
    async with agent_with() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(TypeError, match="pass the function itself, without calling it"):
            session.on_conversation(None)


# --- answers and limits ----------------------------------------------------------------------


@attrs.frozen
class Offer:
    """An offer."""

    price: int


async def test_answer_without_json_has_an_error_with_the_remedy():
    """The error has the answer, the number of tries and the remedy."""
    async with agent_with("well", "hm", "just words", output=Offer) as agent:
        with pytest.raises(ParseError) as caught:
            await agent.run("hi")
    assert caught.value.raw == "just words"
    for words in ("no JSON", "asked 3 times", "'just words'", "Limits(output_retries=...)"):
        assert words in str(caught.value)


async def test_error_of_an_exceeded_limit_has_estimate_and_usage():
    """The error has the estimate that exceeds the limit and the current usage."""
    async with agent_with("hello", limits=Limits(tokens=700)) as agent:
        with pytest.raises(LimitReached) as caught:
            await agent.run("word " * 900)
    assert caught.value.estimated > 700
    assert f"the next call is estimated to take at least {caught.value.estimated:,}" in str(caught.value)
    assert isinstance(caught.value, ActgentError)


# --- names and arguments -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("on_message", "session.on_conversation(fn)"),
        ("on_error", "session.on_exception(fn)"),
        ("send", "await session.chat(text)"),
        ("run", "await agent.run(text, session=session)"),
        ("close", "await session.aclose()"),
        ("transcript", "session.history"),
    ],
)
async def test_unknown_session_attribute_suggests_a_public_one(name, meant):
    """The error names a public attribute, never a private one."""
    async with agent_with() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(AttributeError) as caught:
            getattr(session, name)
    assert meant in str(caught.value)
    shown = "".join(traceback.format_exception_only(caught.value))
    assert "'_" not in shown
    assert not hasattr(session, name)


def test_misspelt_attribute_suggests_the_nearest():
    """Python itself suggests the nearest public name. The classes need no `__getattr__`, which would slow every access."""
    program = "from actgent import Reply\nReply(text='hi').message_typ"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "no attribute 'message_typ'. Did you mean: 'message_type'?" in told.stderr
    for cls in (BareAgent, Session, Reply, Token, Failure, ToolResult, Limits):
        assert not hasattr(cls, "__getattr__"), cls
    assert not [name for name in dir(agent_with()) if name.startswith("_") and not name.endswith("__")]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("chat", "await agent.create_session(owner)"),
        ("on_conversation", "session.on_conversation(fn)"),
        ("invoke", "await agent.run(text)"),
        ("close", "async with agent:"),
    ],
)
def test_unknown_agent_attribute_names_the_right_object(name, meant):
    """The error names the object and the method that do this."""
    with pytest.raises(AttributeError) as caught:
        getattr(agent_with(), name)
    assert meant in str(caught.value)


def test_failing_property_keeps_its_error():
    """Only missing attributes get a suggestion, not errors inside a property."""

    class Odd(BareAgent):
        @property
        def size(self):
            return self.unit

    with pytest.raises(AttributeError, match="no attribute 'unit'"):
        Odd("clerk", llm=ScriptedLLM([])).size  # noqa: B018 - the access is the test


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"llm": None}, "llm= must be an LLM object or a string, not None"),
        ({"llm": OpenAI}, "write OpenAI(...)"),
        ({"llm": "gpt-5.2"}, "did you mean 'openai:gpt-5.2'?"),
        ({"llm": "claude-sonnet-4-5"}, "did you mean 'anthropic:claude-sonnet-4-5'?"),
        ({"llm": "opnai:gpt-5.2"}, "did you mean 'openai'?"),
        ({"instructions": "Be concise."}, "system_prompt="),
        ({"instructions": ["Be concise, and answer politely."]}, "system_prompt="),
        ({"tools": None}, "tools= takes a list of tools"),
        ({"tools": misspelt}, "tools=[misspelt]"),
        ({"tools": [agent_with()]}, "agent.as_tool()"),
        ({"tools": [len]}, "decorate the function with @tool"),
        ({"tools": ["misspelt"]}, "pass the tool itself, not its name"),
        ({"tools": [{"type": "function"}]}, "@tool(parameters=...)"),
        ({"tools": [Unfinished]}, "write Unfinished()"),
        ({"protocol": "react"}, "AgentBuilder.protocol('react')"),
        ({"protocol": Bare}, "write Bare()"),
        ({"memory": ShortTermMemory}, "write ShortTermMemory()"),
        ({"approval": True}, "@tool(approval=True)"),
        ({"system_prompt": ""}, "system_prompt= takes a string that is not empty"),
        ({"system_prompt": "Answer.", "body": "Shortly."}, "put the text of body= into system_prompt="),
        ({"limits": {"tokens": 3}}, "limits= must be Limits(...)"),
        ({"grace": "10s"}, "grace= must be a number of seconds"),
        ({"on_busy": "wait"}, "on_busy= takes queue, collect, interrupt, reject"),
    ],
)
def test_invalid_agent_argument_is_reported(options, expected):
    """The error names the argument, its value, and the correct form."""
    with pytest.raises(ConfigurationError) as caught:
        BareAgent("clerk", **{"llm": ScriptedLLM([]), **options})
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("made", "options", "expected"),
    [
        (BareAgent, {}, "BareAgent() needs llm=: write llm='openai:gpt-5.2'"),
        (BareAgent, {"model": "openai:gpt-5.2"}, "write llm='openai:gpt-5.2'"),
        (ReActAgent, {"llm": "x", "tool": []}, "ReActAgent() has no argument 'tool': did you mean tools=?"),
        (BareAgent, {"llm": "x", "max_turns": 3}, "Limits(model_calls=...)"),
        (BareAgent, {"llm": "x", "output_type": int}, "write output="),
        (BareAgent, {"llm": "x", "journal": "sqlite:///x"}, "async with open_runtime(journal="),
    ],
)
def test_agent_argument_of_another_library_raises_a_hint(made, options, expected):
    """The error for an argument of another library names the argument of this package."""
    with pytest.raises(TypeError) as caught:
        made("clerk", **options)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("made", "options", "expected"),
    [
        (Webhook, {"secret": "s"}, "Webhook() has no argument 'secret': did you mean secrets=?"),
        (RateLimitedModel, {"rate": 5}, "did you mean rate_limiter=?"),
        (RateLimitedModel, {"per_minute": 5}, "its arguments are llm=, rate_limiter="),
        (PipelineStep, {"prompt": "x"}, "PipelineStep() has no argument 'prompt'"),
        (PoolAgent, {"size": 3}, "max_concurrent_sessions="),
        (Guard, {"hosts": []}, "Guard() has no argument 'hosts'"),
    ],
)
def test_unknown_argument_of_a_class_names_the_known_arguments(made, options, expected):
    """The error for an unknown argument names the most similar argument of the class, or lists all of them."""
    with pytest.raises(TypeError) as caught:
        made(**options)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"every": 60}, "write cron=, e.g. cron='*/5 * * * *'"),
        ({"delay": 60}, "write after=, a number of seconds"),
        ({"when": "noon"}, "write at=, a datetime with a time zone"),
        ({"prioritty": "HIGH"}, "did you mean priority=?"),
    ],
)
async def test_unknown_argument_of_a_schedule_raises_a_hint(options, expected):
    """The error for an unknown argument of `session.schedule` names the right one, and no schedule is set."""
    async with agent_with() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(TypeError) as caught:
            await session.schedule("Water the plants.", **options)
        assert expected in str(caught.value)
        assert not session.schedules


async def test_unknown_argument_of_a_run_that_belongs_to_the_agent_raises_a_hint():
    """A policy is an option of the agent, and a budget is a limit."""
    async with agent_with() as agent:
        with pytest.raises(TypeError, match=r"it belongs to the agent: write Agent\(name, policy=...\)"):
            await agent.run("x", policy=Policy())
        with pytest.raises(TypeError, match=r"write limits=Limits\(cost=...\)"):
            await agent.run("x", budget=5)


def test_inner_type_error_is_unchanged():
    """Only an error of the constructor call itself gets another text."""

    class Own(Bare):
        def check_fit(self, profile):
            raise TypeError("fit() got an unexpected keyword argument 'tool'")

    with pytest.raises(TypeError, match=r"^fit\(\) got an unexpected keyword argument 'tool'$"):
        agent_with(protocol=Own())


def test_misnamed_limits_raise_a_hint():
    """The error names the nearest limit."""
    with pytest.raises(TypeError, match=r"Limits\(\) has no argument 'token': did you mean tokens=\?"):
        Limits(token=3)
    with pytest.raises(TypeError, match="write model_calls="):
        Limits(max_turns=3)


async def test_assigning_state_raises_a_hint():
    """A state changes only by actions. The call that the error names works."""
    async with agent_with() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(TypeError, match=r"state.dispatch\(\[\(key, value\)\]\)"):
            session.state["x"] = 1
        with pytest.raises(AttributeError, match=r"state\.dispatch"):
            session.state.update(x=1)
        session.state.dispatch([("x", 1)])
        assert session.state["x"] == 1


def test_sync_block_of_an_agent_raises_a_hint():
    """`with agent:` raises an error that names `async with agent:`."""
    with pytest.raises(TypeError, match="write `async with agent:`"), agent_with():
        pass


def test_misnamed_result_attributes_raise_a_hint():
    """The error for `reply.content` names `reply.text`."""
    for item, name, meant in (
        (Reply(text="hi"), "content", "reply.text"),
        (Reply(text="hi"), "output", "reply.data"),
        (Token(text="hi", reply_id="r"), "delta", "token.text"),
        (Failure(kind="model", error=ValueError(), message_id="m"), "message", "failure.error"),
        (ToolResult(call_id="c", tool_name="t", content="x"), "result", "result.content"),
    ):
        with pytest.raises(AttributeError, match=meant):
            getattr(item, name)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"hi", "not bytes: decode it"),
        (None, "not NoneType"),
        ({"role": "user", "content": "hi"}, "not dict: pass the text alone"),
        ([{"role": "user", "content": "hi"}], "not dict: pass the text alone"),
        (42, "content must be a string or parts"),
    ],
)
async def test_invalid_message_content_is_rejected(content, expected):
    """The error has the value and the accepted types."""
    async with agent_with() as agent:
        with pytest.raises(TypeError, match=expected):
            await agent.run(content)


@pytest.mark.parametrize(
    ("owner", "expected"), [("", "must not be empty"), (42, "not 42"), (None, "not None")]
)
async def test_invalid_owner_is_rejected(owner, expected):
    """An owner is a name or a Sender."""
    async with agent_with() as agent:
        with pytest.raises(ConfigurationError, match=expected):
            await agent.create_session(owner)


async def test_starting_an_agent_class_raises_a_hint():
    """A runtime starts objects, so the error says to create one."""
    async with open_runtime() as runtime:
        with pytest.raises(ConfigurationError, match=r"not the class BareAgent: write BareAgent\(\.\.\.\)"):
            await runtime.start(BareAgent)


def test_package_has_its_version_and_suggests_names():
    """`actgent.__version__` is the version of the distribution. The error for a misspelt name has the nearest one."""
    assert actgent.__version__ == metadata.version("actgent")
    with pytest.raises(AttributeError, match=r"did you mean Agent\?"):
        actgent.Agnet  # noqa: B018 - the access is the test


# --- prompts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "beginning"),
    [
        ("You are a clerk.", "Your name is clerk. You are a clerk."),
        ("you are a clerk", "Your name is clerk. you are a clerk"),
        ("a clerk", "You are clerk, a clerk."),
        ("a clerk.", "You are clerk, a clerk."),
        ("", "You are clerk."),
    ],
)
def test_a_role_is_a_noun_or_a_sentence(role, beginning):
    """The system prompt repeats neither the beginning of the role nor its full stop."""
    assert agent_with(role=role).system_prompt == beginning


async def test_system_prompt_is_sent_unchanged():
    """The model gets the text unchanged. Role and goal describe the agent only to other agents."""
    text = "You are {{ a clerk }}.\n\n- Be concise.\n"
    llm = ScriptedLLM(["hello"])
    agent = BareAgent("clerk", llm=llm, system_prompt=text, role="clerk", goal="to help")
    async with agent:
        await agent.run("hi")
    assert agent.system_prompt == llm.chats[0].system == text
    assert "to help" in agent.as_tool().description


FORMS = {
    SimpleAgent: "messageType",
    ReActAgent: "primary_action",
    RouterAgent: "action",
    StepsAgent: "final_answer",
    GoalAgent: '"action"',
}


@pytest.mark.parametrize("kind", FORMS)
async def test_answer_format_follows_the_system_prompt(kind, told):
    """If the protocol describes its answer format in the prompt, that text follows the system prompt of the developer."""
    options = {"routes": {"next": BareAgent("next", llm=ScriptedLLM([]))}} if kind is RouterAgent else {}
    llm = ScriptedLLM([])
    agent = kind("clerk", llm=llm, system_prompt="Be {{ concise }}.", role="a poet", **options)
    assert agent.system_prompt.startswith("Be {{ concise }}.\n\n")
    assert FORMS[kind] in agent.system_prompt
    assert "poet" not in agent.system_prompt
    assert FORMS[kind] in kind("clerk", llm=llm, role="a poet", **options).system_prompt
    async with agent:
        session = await agent.create_session("ada")
        session.on_exception(lambda _: None)
        await session.chat("hi")
        await session.wait_idle()
    assert llm.chats[0].system == agent.system_prompt
    replaced = kind("clerk", llm=llm, prompt=PromptLayer("Only this.", mode="replace"), **options)
    assert replaced.system_prompt == "Only this."


def test_custom_template_follows_the_system_prompt():
    """A template of the program with another beginning is appended as a whole."""

    class Listing(Bare):
        template = "Answer {{ profile.name }} with a list."

    agent = BareAgent("clerk", llm=ScriptedLLM([]), protocol=Listing(), system_prompt="Be brief.")
    assert agent.system_prompt == "Be brief.\n\nAnswer clerk with a list."


# --- blocks, media, servers and files --------------------------------------------------------------


async def test_unentered_blocks_raise_a_hint():
    """A stream is entered before it is read, and a runtime is entered by `async with`."""
    async with agent_with() as agent:
        with pytest.raises(
            TypeError, match=r"write `async with Agent.stream\(\.\.\.\) as value:`, and use the value inside"
        ):
            async for _ in agent.stream("hi"):
                pass
    with pytest.raises(TypeError, match=r"write `async with open_runtime\(\.\.\.\) as"), open_runtime():
        pass


def test_picture_path_raises_a_hint():
    """The error says to pass bytes or an address with a media type."""
    with pytest.raises(TypeError, match=r"^Image: write Image\(media_type='image/png', data="):
        Image("picture.png")
    with pytest.raises(TypeError, match="write media_type="):
        File(mime_type="application/pdf", data=b"")


def test_invalid_output_type_raises_a_hint():
    """Cases: the name of the type, and an instance of the type."""
    with pytest.raises(ConfigurationError, match="not the text 'Offer'"):
        agent_with(output="Offer")
    with pytest.raises(ConfigurationError, match="not an instance: write Offer"):
        agent_with(output=Offer(price=1))


def test_unbound_method_as_a_tool_raises_a_hint():
    """A method is a tool only if it is read from an object. The error names the correct form."""

    class Till:
        @tool
        def total(self, day: str) -> int:
            """Add up a day."""
            return 0

    with pytest.raises(
        ConfigurationError, match=r"tool 'total' is an unbound method.*as in Shelf\(\)\.total"
    ):
        agent_with(tools=[Till.total])
    agent_with(tools=[Till().total])


async def test_swapped_arguments_of_run_agent_raise_a_hint():
    """The error says that the goal is the first argument."""
    with pytest.raises(ConfigurationError, match=r"run_agent\(goal, llm\): the goal must be a string"):
        await run_agent(ScriptedLLM([]), "find it")


async def test_unreachable_server_error_has_host_and_reason(autojump_clock):
    """The error has the host, the port, the reason of the system, and the origin of the address."""
    with socket.socket() as taken:  # bound and not listening, so that no other process gets the port
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        llm = OpenAI("gpt-5.2", base_url=f"http://127.0.0.1:{port}/v1", api_key="k")
        async with BareAgent("clerk", llm=llm) as agent:
            with pytest.raises(ProviderUnavailable) as caught:
                await agent.run("hi")
        await llm.aclose()
    for expected in (f"127.0.0.1:{port}", "refused", "base_url= (or OPENAI_BASE_URL or LLM_PROVIDER_URL)"):
        assert expected in str(caught.value)


async def test_invalid_journal_address_raises_a_hint():
    """The error for a wrong address names the valid form. The error for a missing folder says to create it."""
    with pytest.raises(ConfigurationError, match=r"'agents\.db' is not a journal URL; use 'sqlite:///FILE'"):
        async with open_runtime(journal="agents.db"):
            pass
    with pytest.raises(JournalFailed, match=r"cannot write a lock file into the folder .*: create it"):
        async with open_runtime(journal="sqlite:////nonexistent/folder/agents.db"):
            pass


async def test_calls_at_the_wrong_time_raise_a_hint(monkeypatch):
    """Cases: before and after the block, a repeated block or session, a closed session, and no API key."""
    agent = agent_with("hello")
    with pytest.raises(NotRunning, match="open it with `async with agent:`"):
        await agent.run("hi")
    async with agent:
        session = await agent.create_session("ada", session_id="s")
        with pytest.raises(SessionExists, match=r"open it with open_session\(\)"):
            await agent.create_session("ada", session_id="s")
        with pytest.raises(ConfigurationError, match="is already running: end its"):
            await agent.__aenter__()
        await session.aclose()
        with pytest.raises(SessionClosed, match=r"create a new one with agent\.create_session\(\)"):
            await session.chat("hi")
    with pytest.raises(NotRunning, match="open it with `async with agent:`"):
        await agent.create_session("ada")
    for variable in ("OPENAI_API_KEY", "LLM_API_KEY", "OPENAI_BASE_URL", "LLM_PROVIDER_URL"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(MissingKey, match=r"pass api_key=\.\.\., or set OPENAI_API_KEY or LLM_API_KEY"):
        BareAgent("clerk", llm="openai:gpt-5.2")


# --- what a tool and a model are called ------------------------------------------------------------


def test_tool_without_annotations_is_logged(told):
    """A model may pass any value for such a parameter. The annotation `Any` prevents the log record."""

    @tool
    def look(place, day: str, how: Any = None) -> str:
        """Look."""
        return place

    (record,) = told()
    assert "tool look: place has no type annotation, so a model may pass any value" in record
    assert "`place: str`" in record


def test_duplicate_tool_name_is_rejected():
    """A call would be ambiguous."""
    with pytest.raises(DuplicateTool, match="two tools are named 'misspelt': give one of them another name"):
        agent_with(tools=[misspelt, misspelt])


def test_misspelt_provider_of_a_builder_or_folder_is_rejected(tmp_path):
    """Without the error, the complete text would be the name of a model of OpenAI."""
    with pytest.raises(ConfigurationError, match="did you mean 'anthropic'"):
        AgentBuilder("clerk").llm("antropic:claude-sonnet-4-5", api_key="k").build()
    brain = "---\nname: clerk\nllm: opnai:gpt-5.2\n---\nYou answer.\n"
    (tmp_path / "brain.md").write_text(brain, encoding="utf-8")
    with pytest.raises(InvalidFolder, match=r"brain\.md:3: llm.*did you mean 'openai'"):
        AgentBuilder.from_folder(tmp_path)
