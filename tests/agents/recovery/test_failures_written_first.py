"""Failures are written before handlers are notified, over crashes, restarts and failing disks.

Each id has one outcome.
"""

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
        received = []
        async with MemoryJournal().running() as inner:
            dying = CrashingJournal(inner, writes)
            await live(dying, make_agent(failing, received), say)
            first = [each for each in received if not each.may_continue]
            requests = []
            await live(
                inner,
                make_agent(lambda chat, requests=requests: requests.append(chat) or "Answered.", received),
                wait,
            )
            if first:
                assert not requests, writes
            if len(first) == 1 and len(received) > 1:
                cut += 1
                assert {(each.id, each.kind, type(each.error)) for each in received[-1:]} == {
                    ("m/failure", "model", NotAuthorized)
                }
            records = await inner.load("s", agent="clerk")
            assert not [each for each in records if isinstance(each, FailureRecord)] or isinstance(
                records[-1], MessageEndRecord
            )
        if not dying.is_dead:
            break
    assert writes > 4


async def test_written_failure_is_notified_after_a_restart(autojump_clock):
    """The process died after the journal had the failure and before a handler received it.

    The next start notifies the same failure.
    """
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


async def test_limit_error_has_its_attributes_after_a_restart(autojump_clock):
    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        return "seen"

    def answer(_):
        return ToolCall("look", {})

    for writes in range(1, 50):
        async with MemoryJournal().running() as inner:
            received = []
            dying = CrashingJournal(inner, writes)
            await live(dying, make_agent(answer, [], tools=[look]), say)
            records = await inner.load("s", agent="clerk")
            if any(isinstance(each, FailureRecord) for each in records):
                await live(inner, make_agent(answer, received, tools=[look]), wait)
                (failure,) = [each for each in received if hasattr(each, "error") and hasattr(each, "kind")]
                assert isinstance(failure.error, LimitReached)
                assert failure.error.field == "max_repeated_calls"
                assert failure.error.value == 3
                return
    pytest.fail("no limit was reached")


async def test_unwritten_failure_is_not_final(autojump_clock):
    """The disk fails while the failure is written.

    The handler gets a `journal` failure with a different id, and the cause.
    """
    received = []
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
        await live(journal, make_agent(answer, received), script)
    failure, reply = received
    assert (failure.id, failure.kind, failure.may_continue) == ("m/failure/journal", "journal", True)
    assert isinstance(failure.error.__cause__, NotAuthorized)
    assert reply.text == "Answered."


@pytest.mark.parametrize("how", ["drop_queued", "message_id", "aclose"])
async def test_a_dropped_message_is_final_at_every_crash(autojump_clock, how):
    """`interrupt()` or `aclose()` drops a queued message.

    It is not answered after a crash, once a handler was notified.
    """
    for writes in range(1, 60):
        received, texts = [], []
        async with MemoryJournal().running() as inner:
            dying = CrashingJournal(inner, writes)

            async def answer(chat, texts=texts):
                texts.append(chat.messages[-1].parts[0].text)
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

            await live(dying, make_agent(answer, received), script)
            final = {each.message_id for each in received if hasattr(each, "error") and not each.may_continue}
            texts.clear()
            async with open_runtime(journal=inner) as runtime:
                await runtime.start(make_agent(answer, received))
                await trio.sleep(60)
            assert not final & set(texts), writes
        if not dying.is_dead:
            break
    assert "second" in final
    assert writes > 4


async def test_a_message_of_a_closed_session_has_a_final_failure(autojump_clock):
    """`SessionClosed` is the outcome of a queued message, although its kind is `stopped`."""
    received = []
    async with MemoryJournal().running() as journal:

        async def script(session):
            await session.chat("first", message_id="first")
            await session.chat("second", message_id="second")
            await trio.sleep(1)
            await session.aclose()

        async def answer(_):
            await trio.sleep(5)
            return "Answered."

        await live(journal, make_agent(answer, received), script)
    failure = next(each for each in received if each.message_id == "second")
    assert isinstance(failure.error, SessionClosed)
    assert (failure.id, failure.may_continue) == ("second/failure", False)


async def test_the_failure_of_a_stop_and_the_outcome_have_two_ids(autojump_clock):
    """The agent stops, and the next start fails: two failures of one message, with two ids."""
    received = []
    async with MemoryJournal().running() as journal:

        async def slow(_):
            await trio.sleep(60)
            return "Answered."

        async def begin(session):
            await session.chat("Hello", message_id="m")
            await trio.sleep(1)

        await live(journal, make_agent(slow, received), begin)
        await live(journal, make_agent(failing, received), wait)
    assert [(each.id, each.kind, each.may_continue) for each in received] == [
        ("m/failure/stopped", "stopped", True),
        ("m/failure", "model", False),
    ]


async def test_stop_notifies_no_unwritten_result(autojump_clock):
    """A tool that a stop interrupts has no result for the handlers.

    The next start delivers the only result of this id.
    """
    received = []
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
        await live(journal, make_agent(answer, received, tools=[store]), begin)
        await live(journal, make_agent(answer, received, tools=[store]), wait)
    assert [getattr(each, "status", None) for each in received] == [None, "success", None]


async def test_without_a_journal_a_stop_cancels_the_calls(autojump_clock):
    """Nothing resumes a turn without a journal, so its handlers get the results of its cancelled calls."""
    received = []

    @tool(effect="idempotent")
    async def store(order: str) -> str:
        """Store."""
        await trio.sleep(60)
        return f"stored {order}"

    async def begin(session):
        await session.chat("Store it.", message_id="m")
        await trio.sleep(1)

    await live(None, make_agent(lambda _: ToolCall("store", {"order": "a"}), received, tools=[store]), begin)
    assert [getattr(each, "status", None) for each in received] == ["cancelled", None]


async def test_failures_of_two_handlers_have_two_ids(autojump_clock):
    """Each handler that fails at one reply causes a failure with a separate id."""
    received = []
    async with BareAgent("clerk", llm=ScriptedLLM(["Yes."])) as agent:
        session = await agent.create_session("ada")

        def fail(_):
            raise ValueError("one")

        def fail_too(_):
            raise KeyError("two")

        session.on_conversation(fail)
        session.on_conversation(fail_too)
        session.on_exception(received.append)
        await session.chat("Hello")
        await session.wait_idle()
    assert len({each.id for each in received}) == len(received) == 2


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
