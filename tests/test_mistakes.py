"""Mistakes that newcomers make: each is told once, to the right place, with what to do."""

import asyncio
import time

import attrs
import pytest
import trio
import trio.lowlevel
import trio.testing

from actgent import (
    ActgentError,
    BareAgent,
    ConfigurationError,
    LimitReached,
    Limits,
    ParseError,
    Reply,
    ScriptedLLM,
    Suspended,
    ToolCall,
    ToolError,
    ToolHooks,
    tool,
)
from actgent.turns.watchdog import INTERVAL, LIMIT


@pytest.fixture
def told(caplog):
    """The log's records, as text with tracebacks, one a record."""

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
    """What a newcomer writes: a session, a message, and nothing that hears what comes of it."""
    async with agent:
        session = await agent.create_session("ada")
        await session.chat(text)
        await session.wait_idle()
    return session


def result_of(session) -> str:
    """The error of the only tool call, as the model reads it."""
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


async def test_a_tool_with_a_bug_is_logged_with_its_traceback(told):
    """The model reads the error as a result, so nobody else would see it."""
    session = await chat_once(agent_with(ToolCall("misspelt", {}), "done", tools=[misspelt]))
    (record,) = told()
    assert "tool misspelt failed, and its model was told: NameError: name 'missing' is not defined" in record
    assert "in misspelt\n" in record
    assert "return missing" in record
    assert "actgent/tools" not in record, "the traceback begins where the program's own code does"
    assert result_of(session) == "NameError: name 'missing' is not defined"


async def test_the_same_bug_is_told_once(told):
    """A thousand equal calls are one record and a number."""
    calls = [ToolCall("misspelt", {}) for _ in range(3)]
    agent = agent_with(*calls, "done", tools=[misspelt], limits=Limits(identical_calls=10))
    await chat_once(agent)
    assert ["2 more records like this one" in record for record in told()] == [False, True]


async def test_what_a_tool_words_itself_is_not_logged(told):
    """A `ToolError` is for the model; with `debug=True` its traceback is shown, too."""

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


async def test_a_hook_gets_what_a_tool_raised():
    """The exception itself, with the traceback."""
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
    ("made", "words"),
    [
        (unreadable, "object is no JSON value: return text, a number, a list, a dict, or a dataclass"),
        (unawaited, "coroutine is no JSON value: await it in the tool"),
    ],
)
async def test_a_result_that_json_cannot_carry(told, made, words):
    """The log says which tool, and what to return instead."""
    await chat_once(agent_with(ToolCall(made.name, {}), "done", tools=[made]))
    (record,) = told()
    assert f"tool {made.name} failed" in record
    assert words in record


async def _sleep():
    await asyncio.sleep(0.1)


async def _yield():
    await asyncio.sleep(0)


async def _wait():
    await asyncio.Event().wait()


@pytest.mark.parametrize("use", [_sleep, _yield, _wait])
async def test_a_tool_that_awaits_asyncio(told, use):
    """The foreign errors say nothing of trio; the text says what to write instead."""

    @tool
    async def asleep() -> str:
        """Sleep in the wrong world."""
        await use()
        return "slept"

    session = await chat_once(agent_with(ToolCall("asleep", {}), "done", tools=[asleep]))
    (record,) = told()
    for words in (record, result_of(session)):
        assert "agents run on trio, so write trio.sleep() for asyncio.sleep()" in words


def _hold(told) -> None:
    """Hold the loop until that is named, five seconds at most."""
    over = time.monotonic() + 5
    while time.monotonic() < over and not any("has held the event loop" in record for record in told()):
        time.sleep(0.02)


@pytest.mark.parametrize("inline", [False, True])
async def test_a_blocking_call_in_a_tool(told, inline):
    """The watchdog names the tool and the line, and what to write instead."""

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
    assert f"in test_a_blocking_call_in_a_tool.<locals>.{made.name}" in record
    assert "trio.sleep() for time.sleep()" in record


async def test_a_blocking_call_in_a_model(told):
    """A model of one's own, with a client that does not await."""

    async def asking(chat):
        _hold(told)
        return "done"

    await chat_once(agent_with(asking))
    (record,) = told()
    assert "model scripted has held the event loop" in record


async def test_a_blocking_call_in_an_async_handler(told):
    """It is named like a sync one."""
    async with agent_with("hello") as agent:
        session = await agent.create_session("ada")

        @session.on_conversation
        async def store(reply):
            await trio.lowlevel.checkpoint()
            _hold(told)

        await session.chat("hi")
        await session.wait_idle()
    (record,) = told()
    assert "handler test_a_blocking_call_in_an_async_handler.<locals>.store has held the event loop" in record


async def test_a_tool_that_awaits_holds_nothing(told):
    """However often the thread finds the loop in it."""

    @tool
    async def busy() -> str:
        """Work for longer than may be blocked, and let others run."""
        over = time.monotonic() + LIMIT + 3 * INTERVAL
        while time.monotonic() < over:
            await trio.lowlevel.checkpoint()
        return "done"

    await chat_once(agent_with(ToolCall("busy", {}), "done", tools=[busy]))
    assert told() == []


# --- failures and people that nobody hears of ----------------------------------------------------


async def test_a_model_that_fails_without_on_exception(told):
    """The text, and the traceback of a model of one's own."""

    def broken(chat):
        raise RuntimeError("no weights loaded")

    await chat_once(agent_with(broken))
    (record,) = told()
    assert "ended as model failure: RuntimeError: no weights loaded; attach session.on_exception" in record
    assert "in broken" in record


async def test_a_handler_that_raises_without_on_exception(told):
    """The text, and the traceback."""
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


async def test_a_stream_whose_model_fails(told):
    """Who reads only tokens and replies sees an empty stream, and no exception."""

    def broken(chat):
        raise RuntimeError("no weights loaded")

    async with agent_with(broken) as agent, agent.stream("hi") as events:
        replies = [event async for event in events if isinstance(event, Reply)]
    assert replies == []
    (record,) = told()
    assert "a stream ended as model failure: RuntimeError: no weights loaded" in record
    assert "raise the error of each Failure, or attach session.on_exception" in record


async def test_a_stream_whose_failure_is_raised_is_not_logged(told):
    """Then the caller has it."""

    def broken(chat):
        raise RuntimeError("no weights loaded")

    async with agent_with(broken) as agent:
        with pytest.raises(RuntimeError, match="no weights"):  # noqa: PT012 - the whole reading
            async with agent.stream("hi") as events:
                async for event in events:
                    raise event.error
    assert told() == []


@tool(approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


async def test_a_stream_that_waits_for_a_person(told):
    """It ends without an answer, which is said with what to do."""
    async with agent_with(ToolCall("pay", {}), "done", tools=[pay]) as agent, agent.stream("hi") as events:
        replies = [event async for event in events if isinstance(event, Reply)]
    assert replies == []
    (record,) = told()
    assert "a call of tool pay waits for a person" in record
    assert "agent.follow(session)" in record


async def test_a_chat_that_waits_for_a_person_and_nobody_is_asked(told):
    """Without on_approval nobody would know."""
    await chat_once(agent_with(ToolCall("pay", {}), "done", tools=[pay]))
    (record,) = told()
    assert "a call of tool pay waits for a person, and nobody was asked: attach session.on_approval" in record


async def test_a_run_that_waits_for_a_person():
    """The error names the tool and the ways on."""
    async with agent_with(ToolCall("pay", {}), "done", tools=[pay]) as agent:
        with pytest.raises(Suspended) as caught:
            await agent.run("hi")
    for words in ("'pay'", caught.value.ids[0], "agent.resume({approval_id: Approve()})", "session.answer("):
        assert words in str(caught.value)
    assert caught.value.tools == ("pay",)


async def test_a_thousand_interrupted_turns_are_one_record(told):
    """And their number, when the block is left."""

    async def endless(chat):
        await trio.sleep_forever()

    slow = ScriptedLLM([endless] * 1000 + ["now"] * 1000)
    async with BareAgent("clerk", llm=slow, sessions=1000) as agent:
        sessions = [await agent.create_session(f"u{number}", "hi") for number in range(1000)]
        await trio.testing.wait_all_tasks_blocked()
        for session in sessions:
            await session.chat("now", priority="urgent")
        for session in sessions:
            await session.wait_idle()
    first, rest = told()
    assert "a message ended without an answer, since an urgent one or interrupt() stopped its turn" in first
    assert "999 more records like this one" in rest


async def test_a_message_past_the_memorys_limit(told):
    """The log says how large it was, and what to raise."""
    await chat_once(agent_with("hello"), "x" * 10_000_000)
    (record,) = told()
    assert "about 2,500,000 tokens, and the context budget is 180,000" in record
    assert "raise ShortTermMemory(max_tokens=...)" in record


# --- handlers --------------------------------------------------------------------------------


async def test_a_handler_that_is_attached_too_late(told):
    """What it missed is not told again."""
    async with agent_with("hello", "again") as agent:
        session = await agent.create_session("ada", "hi")
        await session.wait_idle()
        session.on_conversation(print)
        session.on_conversation(print)
    (record,) = told()
    assert "on_conversation was attached after something had been delivered to nobody" in record
    assert "before chat() and wait_idle(), or in agent.on_session" in record


async def test_a_handler_that_comes_back_is_not_late(told):
    """Who had a handler and lets a connection of a user go misses what it wants to miss."""
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
    """Things that can be handlers."""

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
    ("handler", "count"),
    [
        (lambda: None, "no"),
        (Shelf().none, "no"),
        (Shelf().three, "3"),
        (Shelf(), "no"),
    ],
)
async def test_a_handler_that_cannot_be_called_with_what_is_delivered(handler, count):
    """It is refused where it is attached, and not at the first answer."""
    async with agent_with() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match=f"takes {count} arguments, and is called with one"):
            session.on_conversation(handler)


@pytest.mark.parametrize("handler", [print, Shelf().one, Shelf().any, Shelf().default, str])
async def test_handlers_that_can_be_called(handler):
    """With a parameter, with any number of them, or with one that has a default."""
    async with agent_with("hello") as agent:
        session = await agent.create_session("ada", "hi")
        session.on_exception(failed := [].append)
        session.on_conversation(handler)
        await session.wait_idle()
    assert failed.__self__ == []


async def test_a_handler_that_was_called_instead_of_passed():
    """`on_conversation(print("x"))` attaches nothing."""
    async with agent_with() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(TypeError, match="pass the function itself, without calling it"):
            session.on_conversation(None)


# --- answers and limits ----------------------------------------------------------------------


@attrs.frozen
class Offer:
    """An offer."""

    price: int


async def test_an_answer_without_json():
    """The answer, the tries and the remedy."""
    async with agent_with("well", "hm", "just words", output=Offer) as agent:
        with pytest.raises(ParseError) as caught:
            await agent.run("hi")
    assert caught.value.raw == "just words"
    for words in ("no JSON", "asked 3 times", "'just words'", "Limits(repairs=...)"):
        assert words in str(caught.value)


async def test_a_limit_that_a_call_would_pass():
    """The estimate that does not fit is named, beside what was used."""
    async with agent_with("hello", limits=Limits(tokens=700)) as agent:
        with pytest.raises(LimitReached) as caught:
            await agent.run("word " * 900)
    assert caught.value.estimated > 700
    assert f"the next call is estimated to take at least {caught.value.estimated:,}" in str(caught.value)
    assert isinstance(caught.value, ActgentError)
