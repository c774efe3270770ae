"""Failures: written before anybody is notified, with one outcome for one id, over crashes, restarts and failing disks."""

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, SessionClosed, ToolCall, open_runtime, tool
from actgent.errors import JournalFailed, LimitReached, NotAuthorized
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import FailureRecord, MessageEndRecord
from actgent.testing import CrashingJournal, FaultyJournal


def make_agent(answer, heard, **options):
    """Return an agent whose handlers record failures, replies and results."""
    agent = BareAgent("clerk", llm=ScriptedLLM(answer, keep=0), grace=0, **options)

    @agent.on_session
    def attach(session):
        session.on_exception(heard.append)
        session.on_conversation(heard.append)
        session.on_tool_result(heard.append)

    return agent


async def live(journal, agent, script):
    """Run a script in one life of a process; a journal that dies ends the life."""
    async with trio.open_nursery() as nursery:
        if isinstance(journal, CrashingJournal):

            async def die():
                await journal.died.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(die)
        async with open_runtime(journal=journal) as runtime:
            clerk = await runtime.start(agent)
            await script(await clerk.ensure_session("ada", "s"))
        nursery.cancel_scope.cancel()


def failing(_):
    raise NotAuthorized("401")


async def say(session):
    await session.chat("Hello", message_id="m")
    await session.wait_idle()


async def wait(session):
    await session.wait_idle()


async def test_a_notified_failure_is_final_at_every_crash(autojump_clock):
    """The next start does not answer a message whose failure a handler received, wherever the process died."""
    cut = 0
    for writes in range(1, 50):
        heard = []
        async with MemoryJournal().running() as inner:
            dying = CrashingJournal(inner, writes)
            await live(dying, make_agent(failing, heard), say)
            first = [each for each in heard if not each.may_continue]
            asked = []
            await live(
                inner, make_agent(lambda chat, asked=asked: asked.append(chat) or "Answered.", heard), wait
            )
            if first:
                assert not asked, writes
            if len(first) == 1 and len(heard) > 1:
                cut += 1
                assert {(each.id, each.kind, type(each.error)) for each in heard[-1:]} == {
                    ("m/failure", "model", NotAuthorized)
                }
            records = await inner.load("s", agent="clerk")
            assert not [each for each in records if isinstance(each, FailureRecord)] or isinstance(
                records[-1], MessageEndRecord
            )
        if not dying.is_dead:
            break
    assert writes > 4


async def test_a_failure_that_was_written_and_not_notified_is_notified_after_the_restart(autojump_clock):
    """The journal has the failure, the process died before a handler got it: the next start notifies the same failure."""
    for writes in range(1, 50):
        async with MemoryJournal().running() as inner:
            before, after = [], []
            dying = CrashingJournal(inner, writes)
            await live(dying, make_agent(failing, before), say)
            records = await inner.load("s", agent="clerk")
            failed = [each for each in records if isinstance(each, FailureRecord)]
            ended = [each for each in records if isinstance(each, MessageEndRecord)]
            await live(inner, make_agent(failing, after), wait)
            if failed and not ended:
                (failure,) = after
                assert (failure.id, failure.kind, str(failure.error)) == ("m/failure", "model", "401")
                break
        assert dying.is_dead
    else:
        pytest.fail("no crash between the record of the failure and the end of the message")


async def test_a_limit_is_named_with_its_field_after_a_restart(autojump_clock):
    """A restored `LimitReached` has the attributes that it had."""

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        return "seen"

    def answer(_):
        return ToolCall("look", {})

    for writes in range(1, 50):
        async with MemoryJournal().running() as inner:
            heard = []
            dying = CrashingJournal(inner, writes)
            await live(dying, make_agent(answer, [], tools=[look]), say)
            records = await inner.load("s", agent="clerk")
            if any(isinstance(each, FailureRecord) for each in records):
                await live(inner, make_agent(answer, heard, tools=[look]), wait)
                (failure,) = [each for each in heard if hasattr(each, "error") and hasattr(each, "kind")]
                assert isinstance(failure.error, LimitReached)
                assert failure.error.field == "max_repeated_calls"
                assert failure.error.value == 3
                return
    pytest.fail("no limit was reached")


async def test_a_failure_that_cannot_be_written_is_not_final(autojump_clock):
    """The disk fails as the failure is written: the handler gets a `journal` failure with its own id, and the cause."""
    heard = []
    async with FaultyJournal().running() as journal:

        async def fail(_):
            raise JournalFailed("no disk")

        def answer(_):
            if answers.pop(0):
                return "Answered."
            journal.fault = fail
            raise NotAuthorized("401")

        async def script(session):
            await session.chat("Hello", message_id="m")
            await session.wait_idle()
            journal.fault = None
            await session.chat("Hello", message_id="m")
            await session.wait_idle()

        answers = [False, True]
        await live(journal, make_agent(answer, heard), script)
    failure, reply = heard
    assert (failure.id, failure.kind, failure.may_continue) == ("m/failure/journal", "journal", True)
    assert isinstance(failure.error.__cause__, NotAuthorized)
    assert reply.text == "Answered."


@pytest.mark.parametrize("how", ["drop_queued", "message_id", "aclose"])
async def test_a_dropped_message_is_final_at_every_crash(autojump_clock, how):
    """A queued message that `interrupt()` or `aclose()` ends is not answered after a crash, once a handler was notified."""
    for writes in range(1, 60):
        heard, asked = [], []
        async with MemoryJournal().running() as inner:
            dying = CrashingJournal(inner, writes)

            async def answer(chat, asked=asked):
                asked.append(chat.messages[-1].parts[0].text)
                await trio.sleep(5)
                return "Answered."

            async def script(session):
                await session.chat("first", message_id="first")
                await session.chat("second", message_id="second")
                await trio.sleep(1)
                if how == "drop_queued":
                    await session.interrupt(drop_queued=True)
                elif how == "message_id":
                    await session.interrupt(message_id="second")
                else:
                    await session.aclose()

            await live(dying, make_agent(answer, heard), script)
            final = {each.message_id for each in heard if hasattr(each, "error") and not each.may_continue}
            asked.clear()
            async with open_runtime(journal=inner) as runtime:
                await runtime.start(make_agent(answer, heard))
                await trio.sleep(60)
            assert not final & set(asked), writes
        if not dying.is_dead:
            break
    assert "second" in final
    assert writes > 4


async def test_a_message_of_a_closed_session_has_a_final_failure(autojump_clock):
    """`SessionClosed` is the outcome of a queued message, although its kind is `stopped`."""
    heard = []
    async with MemoryJournal().running() as journal:

        async def script(session):
            await session.chat("first", message_id="first")
            await session.chat("second", message_id="second")
            await trio.sleep(1)
            await session.aclose()

        async def answer(_):
            await trio.sleep(5)
            return "Answered."

        await live(journal, make_agent(answer, heard), script)
    failure = next(each for each in heard if each.message_id == "second")
    assert isinstance(failure.error, SessionClosed)
    assert (failure.id, failure.may_continue) == ("second/failure", False)


async def test_the_failure_of_a_stop_and_the_outcome_have_two_ids(autojump_clock):
    """The agent stops, and the next start fails: two failures of one message, with two ids."""
    heard = []
    async with MemoryJournal().running() as journal:

        async def slow(_):
            await trio.sleep(60)
            return "Answered."

        async def begin(session):
            await session.chat("Hello", message_id="m")
            await trio.sleep(1)

        await live(journal, make_agent(slow, heard), begin)
        await live(journal, make_agent(failing, heard), wait)
    assert [(each.id, each.kind, each.may_continue) for each in heard] == [
        ("m/failure/stopped", "stopped", True),
        ("m/failure", "model", False),
    ]


async def test_a_result_that_is_not_written_is_not_notified_by_a_stop(autojump_clock):
    """A tool that a stop cuts has no result for the handlers; the next start hands out the only result of this id."""
    heard = []
    seconds = [60, 1]

    @tool(effect="idempotent")
    async def store(order: str) -> str:
        """Store."""
        await trio.sleep(seconds.pop(0))
        return f"stored {order}"

    def answer(chat):
        return "Done." if chat.messages[-1].role == "tool" else ToolCall("store", {"order": "a"})

    async def begin(session):
        await session.chat("Store it.", message_id="m")
        await trio.sleep(1)

    async with MemoryJournal().running() as journal:
        await live(journal, make_agent(answer, heard, tools=[store]), begin)
        await live(journal, make_agent(answer, heard, tools=[store]), wait)
    assert [getattr(each, "status", None) for each in heard] == [None, "success", None]


async def test_without_a_journal_a_stop_cancels_the_calls(autojump_clock):
    """Nothing resumes a turn without a journal, so its handlers get the results of its cancelled calls."""
    heard = []

    @tool(effect="idempotent")
    async def store(order: str) -> str:
        """Store."""
        await trio.sleep(60)
        return f"stored {order}"

    async def begin(session):
        await session.chat("Store it.", message_id="m")
        await trio.sleep(1)

    await live(None, make_agent(lambda _: ToolCall("store", {"order": "a"}), heard, tools=[store]), begin)
    assert [getattr(each, "status", None) for each in heard] == ["cancelled", None]


async def test_two_handlers_that_fail_have_two_ids(autojump_clock):
    """Each handler that fails at one reply causes a failure with a separate id."""
    heard = []
    async with BareAgent("clerk", llm=ScriptedLLM(["Yes."])) as agent:
        session = await agent.create_session("ada")

        def fail(_):
            raise ValueError("one")

        def fail_too(_):
            raise KeyError("two")

        session.on_conversation(fail)
        session.on_conversation(fail_too)
        session.on_exception(heard.append)
        await session.chat("Hello")
        await session.wait_idle()
    assert len({each.id for each in heard}) == len(heard) == 2


async def test_a_caller_that_repeats_a_message_gets_the_same_failure(autojump_clock):
    """`run(message_id=)` again gets the failure that the first caller got: the same id and the same kind."""
    got = []

    async def answer(_):
        await trio.sleep(1)
        raise ValueError("a bug")

    async with BareAgent("clerk", llm=ScriptedLLM(answer)) as agent:
        session = await agent.create_session("ada")
        for _ in range(2):
            async with agent.stream("Hello", session=session, message_id="m") as deliveries:
                got += [each async for each in deliveries]
    assert [(each.id, each.kind) for each in got] == [("m/failure", "model")] * 2
