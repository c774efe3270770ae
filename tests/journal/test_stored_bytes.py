"""The bytes that a killed process of an earlier release left are continued: nothing is lost, and nothing is done twice.

`version_5.json` holds what a process of schema version 5 left behind when it was killed: of SQLite the file, its log and
its lock, compressed, and of PostgreSQL the dump of its schema. In it are, of agent `lead`, the session `talk` with an answered
message, one whose tool `look` had begun, and one behind it; `clock` with a date that has passed and a cron line; `errand`,
which gave `helper` the task `t`, whose model was asked; and a closed `over`. In `asks`, of `clerk`, a call that runs once waits
for a person.

`version_6.json` holds the same, after a process of schema version 6 had opened it, written a record into `errand` and kept a
snapshot of `over`, and was killed.
"""

import base64
import collections
import json
import zlib
from pathlib import Path

import pytest
import trio

from actgent import Approve, BareAgent, Limits, ScriptedLLM, ToolContext, open_runtime, tool
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import NextTimerRecord


@pytest.fixture(scope="module", params=[5, 6])
def stored(request):
    """Return the stored data of the killed process, by kind of journal."""
    return json.loads(Path(__file__).with_name(f"version_{request.param}.json").read_text())


@pytest.fixture(params=["sqlite", "postgres"])
def old_url(request, tmp_path, stored):
    """Return the address of that journal."""
    if request.param == "sqlite":
        for suffix, lines in stored["sqlite"].items():
            (tmp_path / f"old.db{suffix}").write_bytes(zlib.decompress(base64.b64decode("".join(lines))))
        return f"sqlite:///{tmp_path}/old.db"
    url = request.getfixturevalue("postgres_url")
    psycopg = pytest.importorskip("psycopg")
    address, schema = url.split("?schema=")
    with psycopg.connect(address) as database:
        database.execute("\n".join(stored["postgres"]).replace("{schema}", schema))
    return url


class Program:
    """The agents of that process in a later program, and a record of their calls."""

    def __init__(self):
        self.looked, self.paid, self.dug = [], [], []
        self.replied = collections.defaultdict(trio.Event)
        """By session, in which a reply was given."""

    def agents(self):
        @tool(effect="idempotent")
        async def look(where: str, context: ToolContext) -> str:
            """Look."""
            self.looked.append((where, context.idempotency_key))
            return "a tree"

        @tool(effect="once", approval=True)
        async def pay(order: str, context: ToolContext) -> str:
            """Pay."""
            self.paid.append((order, context.idempotency_key))
            return "paid"

        def dig(chat):
            self.dug.append(_reply(chat))
            return f"dug {_reply(chat)}"

        lead = BareAgent("lead", llm=ScriptedLLM(_answer), tools=[look])
        lead.on_session(lambda session: session.on_conversation(lambda _: self.replied[session.id].set()))
        return (
            BareAgent("helper", llm=ScriptedLLM(dig)),
            lead,
            BareAgent("clerk", llm=ScriptedLLM(_answer), tools=[pay], limits=Limits(approval_timeout=2e9)),
        )


def _reply(chat):
    part = chat.messages[-1].parts[0]
    return getattr(part, "text", None) or part.content


def _answer(chat):
    return f"re: {_reply(chat)}"


async def _start(runtime, program):
    async with runtime.starting():
        return [await runtime.start(agent) for agent in program.agents()]


async def test_old_sessions_are_unchanged(old_url):
    """Agents, owners, states and records are unchanged, also after a second open."""
    for _ in range(2):
        async with open_journal(old_url) as journal:
            await journal.acquire()
            known = {each.session_id: each for each in await journal.sessions()}
            assert {name: (each.agent, each.state) for name, each in known.items()} == {
                "talk": ("lead", "working"),
                "clock": ("lead", "idle"),
                "asks": ("clerk", "suspended"),
                "errand": ("lead", "idle"),
                "t": ("helper", "working"),
                "over": ("lead", "closed"),
            }
            assert known["t"].parent == ("lead", "errand")
            for name, each in known.items():
                assert len(await journal.load(name, agent=each.agent)) == each.records


async def test_old_records_keep_their_numbers_and_have_no_time(old_url):
    """A cursor from before the upgrade is valid; new records have a time."""
    async with open_journal(old_url) as journal:
        epoch = await journal.acquire()
        records = await journal.load("talk", agent="lead")
        steps = await journal.read_batches("talk", agent="lead", after=2)
        assert [step.at for step in steps] == [None] * len(steps)
        assert (steps[0].first, steps[-1].last) == (3, len(records))
        assert tuple(record for step in steps for record in step.records) == records[2:]
        async with journal.feed() as reader:
            await journal.commit(
                Entry(session_id="talk", agent="lead", records=(NextTimerRecord(at=0),)), epoch=epoch
            )
            received = await reader.receive()
    async with open_journal(old_url) as journal:
        await journal.acquire()
        assert await journal.read_batches("talk", agent="lead", after=len(records)) == (received,)
    assert received.first == len(records) + 1
    assert received.at > 1.7e9


async def test_unfinished_work_of_an_older_journal_resumes(old_url):
    """The call runs again with its key, the queued message is answered, the timer fires, the task reports its result."""
    program = Program()
    with trio.fail_after(30):
        async with open_runtime(journal=old_url) as runtime:
            _, lead, clerk = await _start(runtime, program)
            talk = await lead.open_session("talk")
            await talk.wait_idle()
            assert [message.text for message in talk.history if message.text] == [
                "hello",
                "re: hello",
                "look",
                "re: a tree",
                "and behind it",
                "re: and behind it",
            ]
            assert program.looked == [("there", "@lead/talk/c1")]
            errand = await lead.open_session("errand")
            await program.replied["errand"].wait()
            assert errand.history[0].text == "Task t was done by agent 'helper':\ndug a hole"
            clock = await lead.open_session("clock")
            await program.replied["clock"].wait()
            assert "wake up" in clock.history[0].text
            assert "each night" in {each.description for each in clock.schedules}
            (approval,) = await clerk.approvals()
            reply = await clerk.resume({approval.id: Approve()})
            assert reply.text == "re: paid"
    assert program.paid == [("7", "@clerk/asks/c1")]
    assert program.dug == ["a hole"]


async def test_the_next_start_finds_nothing_to_do(old_url):
    """The resumed work was written, so nothing runs a second time."""
    program = Program()
    with trio.fail_after(30):
        async with open_runtime(journal=old_url) as runtime:
            _, lead, clerk = await _start(runtime, program)
            await (await lead.open_session("talk")).wait_idle()
            errand = await lead.open_session("errand")
            await program.replied["errand"].wait()
            await errand.wait_idle()
            (approval,) = await clerk.approvals()
            await clerk.resume({approval.id: Approve()})
        done = list(program.looked), list(program.paid), list(program.dug)
        async with open_runtime(journal=old_url) as runtime:
            await _start(runtime, program)
            assert await runtime.journal.counts() == {"idle": 4, "working": 0, "suspended": 0, "closed": 2}
    assert (program.looked, program.paid, program.dug) == done
