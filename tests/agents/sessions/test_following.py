"""Followers of a session: records once and in order from any cursor, and streamed text in between."""

import random

import pytest
import trio
import trio.testing

from actgent import BareAgent, Limits, ScriptedLLM, SimpleAgent, ToolCall, ToolContext, open_runtime, tool
from actgent.errors import ConfigurationError, InvalidCursor, SessionNotFound
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    AgentMessageRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    StateChangeRecord,
)
from actgent.journal.session_export_and_fork import read_sessions, write_sessions
from actgent.messages import CallProgress, Sender
from actgent.runtime.sessions import session_table
from actgent.sessions.subscriptions import FollowedRecord, PartialText


@pytest.fixture
async def journal():
    async with open_journal("memory:") as opened:
        yield opened


@pytest.fixture
async def runtime(journal):
    async with open_runtime(journal=journal) as opened:
        yield opened


class Gated:
    """A model that streams its pieces one by one, each when the test releases it."""

    def __init__(self, *pieces):
        self.pieces = pieces
        self.send, self._gate = trio.open_memory_channel(0)
        self.llm = ScriptedLLM(["".join(pieces)] * 3, chunk=len(pieces[0]))
        complete = self.llm.complete
        self.asked_to_stream = []

        async def gated(chat, *, on_text=None):
            self.asked_to_stream.append(on_text is not None)

            async def slowly(text, attempt):
                await self._gate.receive()
                await on_text(text, attempt)

            return await complete(chat, on_text=None if on_text is None else slowly)

        self.llm.complete = gated


async def records_of(follower, count):
    """Return the given number of records of a follower, without streamed text."""
    found = []
    with trio.fail_after(60):
        while len(found) < count:
            item = await follower.receive()
            if isinstance(item, FollowedRecord):
                found.append(item)
    return found


async def texts_of(follower, wanted=None):
    """Return the streamed text as a reader shows it, until it equals `wanted`; None returns what is available at once."""
    shown = ""
    await trio.testing.wait_all_tasks_blocked()
    while wanted is None or wanted not in shown:
        with trio.move_on_after(0.05 if wanted is None else 60) as scope:
            item = await follower.receive()
        if scope.cancelled_caught:
            return shown
        if isinstance(item, PartialText):
            shown = shown[: item.begin] + item.text
    return shown


# --- records ------------------------------------------------------------------------------


async def test_follower_receives_history_and_new_records(runtime, journal):
    """It starts at the beginning, at a cursor, or now. Each record has its turn and its time."""
    agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["one", "two", "three"])))
    session = await agent.create_session("ada", session_id="s")
    first = await session.chat("1")
    await session.wait_idle()
    known = len(await journal.load("s"))
    async with session.follow() as whole, session.follow(after=3) as rest, session.follow(after=None) as new:
        second = await session.chat("2")
        await session.wait_idle()
        records = await journal.load("s")
        followed = await records_of(whole, len(records))
        assert [each.record for each in followed] == list(records)
        assert [each.number for each in followed] == list(range(1, len(records) + 1))
        assert await records_of(rest, len(records) - 3) == followed[3:]
        assert await records_of(new, len(records) - known) == followed[known:]
        assert whole.cursor == rest.cursor == len(records)
    turns = [each.turn for each in followed]
    assert turns == [""] + [first] * (known - 1) + [second] * (len(records) - known)
    assert all(each.at is not None for each in followed)


async def test_a_follower_resumes_within_a_turn(runtime, journal):
    """The turn is derived from records before the cursor."""
    agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["one"])))
    session = await agent.create_session("ada", session_id="s")
    message = await session.chat("1")
    await session.wait_idle()
    records = await journal.load("s")
    place = [type(record) for record in records].index(MessageAppendedRecord) + 1
    async with session.follow(after=place) as follower:
        assert {each.turn for each in await records_of(follower, len(records) - place)} == {message}


async def test_messages_that_are_answered_together_are_one_turn(runtime, journal):
    """The last message names the turn, from the first record on."""
    gated = Gated("first answer")
    agent = await runtime.start(BareAgent("a", llm=gated.llm))
    session = await agent.create_session("ada", session_id="s", on_busy="collect")
    async with session.follow() as follower:
        await session.chat("1")
        await trio.testing.wait_all_tasks_blocked()
        two, three = await session.chat("2"), await session.chat("3")
        await gated.send.send(None)
        await gated.send.send(None)
        await session.wait_idle()
        followed = await records_of(follower, len(await journal.load("s")))
    found = {
        (type(each.record), each.record.message_id): each.turn
        for each in followed
        if type(each.record) in (MessageAppendedRecord, MessageEndRecord)
    }
    assert {
        found[kind, message] for kind in (MessageAppendedRecord, MessageEndRecord) for message in (two, three)
    } == {three}


async def test_a_slow_reader_loses_no_record(runtime, journal):
    """Records that the feed has dropped are read from the journal. The writer never waits."""
    epoch = journal.epoch_of("s")
    opened = SessionCreatedRecord(owner=Sender("ada"), created_at=1.0)
    await journal.commit(Entry(session_id="s", agent="gone", records=(opened,)), epoch=epoch)
    async with runtime.follow("s", agent="gone") as follower:
        await records_of(follower, 1)
        for number in range(2500):
            changed = StateChangeRecord(changes={"n": number})
            await journal.commit(Entry(session_id="s", agent="gone", records=(changed,)), epoch=epoch)
        followed = await records_of(follower, 2500)
        assert len(follower._ready) <= 2000
    assert [each.number for each in followed] == list(range(2, 2502))
    assert [each.record.changes["n"] for each in followed] == list(range(2500))


async def test_reader_of_whole_steps_gets_long_steps_record_by_record(runtime, journal):
    """An erased session ends the reader."""
    agent = await runtime.start(BareAgent("a", llm=ScriptedLLM([])))
    session = await agent.create_session("ada", session_id="s")
    changes = tuple(StateChangeRecord(changes={"n": number}) for number in range(101))
    async with session.follow(after=1) as follower:
        await follower.wait_for_news()
        await journal.commit(Entry(session_id="s", agent="a", records=changes), epoch=journal.epoch_of("s"))
        assert follower.receive_batch() is None
        followed = [follower.receive_now() for _ in changes]
        assert [each.record for each in followed] == list(changes)
        await journal.delete("s", agent="a")
        await trio.testing.wait_all_tasks_blocked()
        assert follower.receive_batch() is None
        with pytest.raises(trio.EndOfChannel):
            follower.receive_now()


async def test_two_readers_and_a_writer_that_never_pauses(runtime, journal):
    """One reads each record immediately, the other sleeps between two; both receive the same records."""
    agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"], repeat=True)))
    session = await agent.create_session("ada", session_id="s")
    seen = {"quick": [], "slow": []}

    async def read(name, pause):
        async with session.follow() as follower:
            async for item in follower:
                if isinstance(item, FollowedRecord):
                    seen[name].append(item)
                    await trio.sleep(pause)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, "quick", 0)
            nursery.start_soon(read, "slow", 0.002)
            for _ in range(30):
                await session.chat("hello")
                await session.wait_idle()
            await session.aclose()
    assert seen["quick"] == seen["slow"]
    assert [each.record for each in seen["quick"]] == list(await journal.load("s"))


async def write_anything(session, dice):
    """Turns, changes of the state and schedules, in any order."""
    for number in range(40):
        what = dice.randrange(4)
        if what == 0:
            await session.chat("hello", priority=dice.choice(["normal", "urgent"]))
        elif what == 1:
            session.state.dispatch(("n", number))
        elif what == 2:
            await session.schedule("later", after=1e6, key=str(number))
        else:
            await trio.sleep(dice.uniform(0, 0.01))
    await session.wait_idle()


async def read_for_a_while(session, known, seconds):
    """Follow from the known cursor, and leave at any point."""
    async with session.follow(after=len(known)) as follower:
        with trio.move_on_after(seconds):
            async for item in follower:
                known.extend([item] if isinstance(item, FollowedRecord) else [])
    assert follower.cursor == len(known)


@pytest.mark.parametrize("seed", range(10))
async def test_followers_receive_each_record_once(runtime, journal, seed):
    """Readers join, leave and resume by their cursors while turns, state and schedules are written."""
    dice = random.Random(seed)
    agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi there"], repeat=True, chunk=2)))
    session = await agent.create_session("ada", session_id="s")
    seen = [[] for _ in range(4)]
    over = trio.Event()

    async def read(known):
        while not (over.is_set() and len(known) == len(await journal.load("s"))):
            await read_for_a_while(session, known, dice.uniform(0, 0.03))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for known in seen:
                nursery.start_soon(read, known)
            await write_anything(session, dice)
            over.set()
    records = list(await journal.load("s"))
    for known in seen:
        assert [each.record for each in known] == records
        assert [each.number for each in known] == list(range(1, len(records) + 1))
        assert [each.turn for each in known] == [each.turn for each in seen[0]]


# --- what ends it, and what is refused -----------------------------------------------------


async def test_follower_ends_with_the_session(runtime):
    """The session is closed or erased. The follower ends after the last record."""
    agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
    one = await agent.create_session("ada", session_id="one")
    two = await agent.create_session("ada", session_id="two")
    async with one.follow() as closed, two.follow() as erased:
        await one.aclose()
        await runtime.delete_session("two")
        with trio.fail_after(60):
            items = [item async for item in closed]
            assert type(items[-1].record) is SessionClosedRecord
            assert [item async for item in erased] == []
    async with runtime.follow("one", agent="a") as again:
        assert [item async for item in again] == items


@pytest.mark.parametrize("after", [None, 1, 2])
async def test_follower_ends_with_an_already_closed_session(runtime, after):
    """The reader may have all records, and have left before it received the end."""
    agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
    await (await agent.create_session("ada", session_id="one")).aclose()
    with trio.fail_after(60):
        async with runtime.follow("one", agent="a", after=after) as late:
            assert [item.number async for item in late] == [2] * (after == 1)


async def test_follower_ends_with_the_journal():
    """The reader gets an error and is not cancelled."""
    items, following = [], trio.Event()

    async def read(session):
        async with session.follow() as follower:
            following.set()
            items.extend([item async for item in follower])

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, open_runtime(journal="memory:") as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
            nursery.start_soon(read, await agent.create_session("ada"))
            await following.wait()
    assert type(items[0].record) is SessionCreatedRecord


async def test_cursor_beyond_the_end_is_rejected(runtime):
    """Such a cursor belongs to another session or an older copy. The error states a remedy."""
    agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
    session = await agent.create_session("ada", session_id="s")
    with pytest.raises(InvalidCursor, match="'s' has 1 record, but the cursor is 7") as caught:
        async with session.follow(after=7):
            pass
    assert (caught.value.cursor, caught.value.records) == (7, 1)
    with pytest.raises(SessionNotFound):
        async with runtime.follow("nobody", agent="a"):
            pass
    async with open_runtime() as bare:
        other = await (await bare.start(BareAgent("b", llm=ScriptedLLM(["hi"])))).create_session("ada")
        with pytest.raises(ConfigurationError, match="this runtime has no journal"):
            async with other.follow():
                pass


# --- what grows ----------------------------------------------------------------------------


async def test_an_answer_is_streamed_while_it_is_followed():
    """Text arrives in pieces until its record; then streaming ends."""
    gated = Gated("Good ", "day, ", "Ada. ")
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(BareAgent("a", llm=gated.llm))
        session = await agent.create_session("ada", session_id="s")
        async with session.follow(after=None) as follower:
            message = await session.chat("hello")
            grown, rest = [], []
            for number in (1, 2, 3):
                await gated.send.send(None)
                with trio.fail_after(60):
                    while len(grown) < number:  # the start of the turn may be written before it or after it
                        item = await follower.receive()
                        (grown if isinstance(item, PartialText) else rest).append(item)
            await session.wait_idle()
            rest += await records_of(follower, 5 - len(rest))
        assert grown == [
            PartialText(turn=message, reply_id=grown[0].reply_id, begin=begin, text=text)
            for begin, text in ((0, "Good "), (5, "day, "), (10, "Ada. "))
        ]
        said = next(each.record for each in rest if isinstance(each.record, AgentMessageRecord))
        assert said.message.id == grown[0].reply_id
        await session.chat("again")
        await session.wait_idle()
    assert gated.asked_to_stream == [True, False]


async def test_late_or_slow_reader_gets_the_whole_partial_answer():
    """The accumulated text arrives at once, and the next delta starts at its end. The last delta arrives before the record."""
    gated = Gated("Good ", "day, ", "Ada. ")
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(BareAgent("a", llm=gated.llm))
        session = await agent.create_session("ada", session_id="s")
        async with session.follow() as first:
            await session.chat("hello")
            for _ in range(2):
                await gated.send.send(None)
            await trio.testing.wait_all_tasks_blocked()
            async with session.follow() as late:
                assert await texts_of(late, "day, ") == "Good day, "
                assert await texts_of(first, "day, ") == "Good day, "
                await gated.send.send(None)
                await session.wait_idle()
                items = []
                with trio.fail_after(60):
                    while not (
                        items
                        and isinstance(items[-1], FollowedRecord)
                        and type(items[-1].record) is MessageEndRecord
                    ):
                        items.append(await late.receive())
        async with session.follow() as afterwards:
            assert await texts_of(afterwards) == ""
    assert [item.text for item in items if isinstance(item, PartialText)] in ([], ["Ada. "])


async def test_no_delta_arrives_after_the_end_of_a_stopped_turn():
    """Readers of whole steps, such as gateway readers, would take it for the next answer."""
    gated = Gated("Good ", "day, ")
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(BareAgent("a", llm=gated.llm))
        session = await agent.create_session("ada", session_id="s")
        async with session.follow() as follower:
            await records_of(follower, 1)
            await follower.wait_for_news()  # there is nothing behind it
            await session.chat("hello")
            await gated.send.send(None)
            await trio.testing.wait_all_tasks_blocked()
            await session.interrupt()
            await session.wait_idle()
            kinds = []
            while (step := follower.receive_batch()) is not None:
                kinds += [type(each) for each in step.records]
            assert follower.receive_now() is None
    assert kinds[-1] is MessageEndRecord


async def test_no_delta_arrives_after_its_answer_record():
    """This also holds while the turn continues, e.g. with a slow handler."""
    gated, is_read = Gated("Good ", "day, "), trio.Event()
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(BareAgent("a", llm=gated.llm))
        session = await agent.create_session("ada", session_id="s")

        @session.on_conversation
        async def hold(reply):
            await is_read.wait()

        async with session.follow() as follower:
            await records_of(follower, 1)
            await follower.wait_for_news()
            await session.chat("hello")
            for _ in gated.pieces:
                await gated.send.send(None)
            await trio.testing.wait_all_tasks_blocked()
            kinds = []
            while (step := follower.receive_batch()) is not None:
                kinds += [type(each) for each in step.records]
            assert follower.receive_now() is None
            is_read.set()
    assert kinds == [MessageAcceptedRecord, MessageAppendedRecord, AgentMessageRecord]


async def test_no_delta_of_an_earlier_answer_arrives_in_a_later_turn():
    """A reader gets the record of an answer before the end of its text, and in the next turn an answer without text. No late text arrives."""
    may_end = trio.Event()

    @tool(effect="pure")
    async def look() -> str:
        await may_end.wait()
        return "seen"

    script = ["first answer", ToolCall("look", {}), "second"]
    agent = BareAgent("clerk", llm=ScriptedLLM(script, chunk=6), tools=[look])
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada")
        async with runtime.follow(session.id, agent="clerk") as follower:
            items = []
            for text in ("one", "two"):
                await session.chat(text)
                await trio.testing.wait_all_tasks_blocked()
                while (item := follower.receive_now()) is not None or follower.has_news:
                    if item is None:
                        await follower.wait_for_news()
                    else:
                        items.append(item)
            may_end.set()
            await session.wait_idle()
    answered = set()
    for item in items:
        if isinstance(item, PartialText):
            assert item.reply_id not in answered
        elif isinstance(item.record, AgentMessageRecord):
            answered.add(item.record.message.id)


async def test_a_step_that_was_read_is_not_received_again(runtime):
    """The step was written after the follower was opened and before it read the journal."""
    agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
    session = await agent.create_session("ada", session_id="s")
    async with session.follow() as follower:
        await session.chat("hello")
        await session.wait_idle()
        last = (await records_of(follower, 6))[-1]
        await follower.wait_for_news()
        while follower.has_news:
            assert follower.receive_batch() is None
            assert follower.receive_now() is None
        assert follower.cursor == last.number == 6


async def test_first_follower_gets_the_streamed_text():
    """It receives the same text as the handlers, also if a protocol shows only a part of the answer."""
    gated = Gated('{"messageType": "DIRECT_RESPONSE", "content": "G', "o" * 49, "d day" + " " * 44, '"}')
    received = []
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(
            SimpleAgent("a", llm=gated.llm, role="clerk", goal="help", capabilities="words")
        )
        session = await agent.create_session("ada")
        session.on_token(received.append)
        await session.chat("hello")
        for _ in range(2):
            await gated.send.send(None)
        await trio.testing.wait_all_tasks_blocked()
        async with session.follow() as late:
            text = "".join(token.text for token in received)
            assert await texts_of(late, text) == text != ""
            await gated.send.send(None)
            await trio.testing.wait_all_tasks_blocked()
            assert "d day" in await texts_of(late, "d day")
            for _ in range(2):
                with trio.move_on_after(1):
                    await gated.send.send(None)
            await session.wait_idle()


async def test_reloaded_session_is_streamed(tmp_path, monkeypatch):
    """This includes followers from before the load. A follower does not keep the session in memory."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 1)
    gated = Gated("Good ", "day. ")
    async with open_runtime(journal=f"sqlite:///{tmp_path}/j.db") as runtime:
        agent = await runtime.start(BareAgent("a", llm=gated.llm))
        await agent.create_session("ada", session_id="s")
        async with runtime.follow("s", agent="a") as follower:
            for number in range(3):
                await agent.create_session("ada", session_id=f"other {number}")
            assert "s" not in runtime.agents.opener("a").running.sessions
            session = await agent.open_session("s")
            await session.chat("hello")
            await gated.send.send(None)
            assert await texts_of(follower, "Good ") == "Good "
            await gated.send.send(None)
            await session.wait_idle()


async def test_followers_receive_the_latest_progress_of_each_call():
    gate = trio.Event()

    @tool(effect="pure")
    async def dig(depth: int, context: ToolContext) -> str:
        """Dig."""
        for done in range(depth):
            context.progress(done + 1, depth, "digging")
        await gate.wait()
        return "dug"

    async with open_runtime(journal="memory:") as runtime:
        llm = ScriptedLLM([ToolCall("dig", {"depth": 3}), "done"])
        agent = await runtime.start(BareAgent("a", llm=llm, tools=[dig], limits=Limits(model_calls=3)))
        session = await agent.create_session("ada")
        async with session.follow() as follower:
            await session.chat("dig")
            with trio.fail_after(60):
                while not isinstance(item := await follower.receive(), CallProgress):
                    pass
                while item.done != 3:
                    item = await follower.receive()
            gate.set()
            await session.wait_idle()
    assert (item.tool_name, item.total, item.text) == ("dig", 3, "digging")


async def test_accepted_messages_come_before_their_turn(runtime):
    """A queued message is a record of its own turn."""
    agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
    session = await agent.create_session("ada")
    async with session.follow(after=None) as follower:
        message = await session.chat("hello")
        (accepted,) = await records_of(follower, 1)
        await session.wait_idle()
    assert (type(accepted.record), accepted.turn) == (MessageAcceptedRecord, message)


# --- cursors in copies of a journal ---------------------------------------------------------


async def talk(runtime, *texts):
    """Return a session in which the given texts were sent."""
    agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"], repeat=True)))
    session = await agent.ensure_session("ada", session_id="s")
    for text in texts:
        await session.chat(text)
        await session.wait_idle()
    return session


async def test_a_cursor_is_valid_up_to_the_end_of_a_backup(tmp_path):
    """Later records do not exist in the backup: a reader with a later cursor gets an error and no other record."""
    async with open_runtime(journal=f"sqlite:///{tmp_path}/one.db") as runtime:
        session = await talk(runtime, "1")
        kept = await runtime.journal.load("s")
        await runtime.backup(tmp_path / "copy.db")
        await session.chat("2")
        await session.wait_idle()
        newest = len(await runtime.journal.load("s"))
    async with open_runtime(journal=f"sqlite:///{tmp_path}/copy.db") as runtime:
        session = await talk(runtime)
        with pytest.raises(InvalidCursor):
            async with session.follow(after=newest):
                pass
        async with session.follow(after=2) as follower:
            await session.chat("other")
            await session.wait_idle()
            records = await runtime.journal.load("s")
            followed = await records_of(follower, len(records) - 2)
    assert records[: len(kept)] == kept
    assert [each.record for each in followed] == list(records[2:])


async def test_a_cursor_is_valid_after_an_import(tmp_path):
    """The records keep their numbers, and have the time of the import."""
    async with open_runtime(journal=f"sqlite:///{tmp_path}/one.db") as runtime:
        await talk(runtime, "1", "2")
        exported = await read_sessions(runtime.journal, session_id="s")
        steps = await runtime.journal.read_batches("s", agent="a", after=4)
    async with open_journal(f"sqlite:///{tmp_path}/two.db") as journal:
        await journal.acquire()
        await write_sessions(journal, exported)
        (step,) = await journal.read_batches("s", agent="a", after=4)
    assert step.records == tuple(record for each in steps for record in each.records)
    assert (step.first, step.last) == (steps[0].first, steps[-1].last)
    assert step.at >= steps[-1].at


async def test_follower_of_a_long_session_reads_few_records(monkeypatch):
    """A follower reads backwards in growing pages until it finds the turn at its cursor."""
    async with open_runtime(journal="memory:") as runtime:
        agent = BareAgent("clerk", llm=ScriptedLLM(["yes"] * 101))
        await runtime.start(agent)
        session = await agent.create_session("ada")
        for _ in range(100):
            await session.chat("hello")
            await session.wait_idle()
        read, limits = runtime.journal.read, []

        async def count(*place, limit=1000, **options):
            limits.append(limit)
            return await read(*place, limit=limit, **options)

        monkeypatch.setattr(runtime.journal, "read", count)
        async with session.follow(after=None) as follower:
            await session.chat("again")
            while not isinstance((await follower.receive()).record, MessageEndRecord):
                pass
        assert 0 < sum(limits) <= 16
