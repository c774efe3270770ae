"""A process with relaxed durability that SIGKILL ends at a random moment; then its journal is compared with its effects.

`python relaxed_lives.py URL FOLDER --kills 20 --seed 1` repeats this in the journal that the last process left, and prints a
report as JSON. Data outside of the process is in files to which lines are appended.
"""

import collections
import random
import sys
from pathlib import Path

import attrs
import trio
from crashes import Lines, command, live_once, tell

from actgent import BareAgent, ScriptedLLM, ToolCall, ToolContext, open_runtime, tool
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import AgentMessageRecord, MessageAcceptedRecord, MessageEndRecord

SESSIONS = 10


@attrs.define
class Talk:
    """Sessions in which users send each message after the answer to the last one, until the process is killed."""

    url: str
    folder: Path
    name: str
    accepted: Lines = attrs.field(init=False)
    effects: Lines = attrs.field(init=False)

    def __attrs_post_init__(self):
        self.accepted = Lines(self.folder / f"{self.name}-accepted.jsonl")
        self.effects = Lines(self.folder / f"{self.name}-effects.jsonl")

    async def live(self):
        async with open_runtime(journal=self.url, durability="relaxed") as runtime:
            agent = await runtime.start(self._agent())
            async with trio.open_nursery() as nursery:
                for number in range(SESSIONS):
                    session = await agent.create_session("ada", session_id=f"{self.name}-{number}")
                    nursery.start_soon(self._converse, session)

    async def _converse(self, session):
        number = 0
        while True:
            await session.chat(str(number), message_id=f"m{number}")
            self.accepted.add(session.id, number)
            await session.wait_idle()
            number += 1

    def _agent(self):
        @tool(effect="once")
        async def pay(order: str, context: ToolContext) -> str:
            """Pay an order."""
            self.effects.add(context.session_id, order)
            await trio.sleep(0.001)
            return f"paid {order}"

        return BareAgent("clerk", llm=ScriptedLLM(_answer, keep=0), tools=[pay])

    async def resume(self):
        """Resume the sessions in the next process, until nothing is unfinished."""
        async with open_runtime(journal=self.url) as runtime:
            await runtime.start(self._agent())

    async def books(self):
        """Return the violations of the expected results, and the number of lost records."""
        async with open_journal(self.url) as journal:
            await journal.acquire()
            records = [await journal.load(f"{self.name}-{number}") for number in range(SESSIONS)]
            unfinished = await journal.unfinished("clerk")
        found = [f"{session_id} is unfinished" for session_id in unfinished]
        for number, written in enumerate(records):
            found += self._check_session(f"{self.name}-{number}", written)
        found += self._check_order(records)
        paid = collections.Counter(tuple(line) for line in self.effects.read())
        found += [f"{what} was paid {count} times" for what, count in paid.items() if count > 1]
        return found, len(self.accepted.read()) - sum(_count(written) for written in records)

    def _check_session(self, session_id, written):
        """Check that a session is a prefix of the events without a gap, and ended well."""
        messages = [each.message.id for each in written if isinstance(each, MessageAcceptedRecord)]
        if messages != [f"m{number}" for number in range(len(messages))]:
            yield f"{session_id} has {messages}"
        if [each.message_id for each in written if isinstance(each, MessageEndRecord)] != messages:
            yield f"{session_id} ended otherwise"
        calls = [
            call.id for e in written if isinstance(e, AgentMessageRecord) for call in e.message.tool_calls
        ]
        results = [
            result.call_id
            for e in written
            if isinstance(e, AgentMessageRecord)
            for result in e.message.tool_results
        ]
        if calls != results:
            yield f"{session_id} has not one result for each call"

    def _check_order(self, records):
        """Check that no accepted record is lost while a record of any session that was accepted later exists.

        Records accepted at the same moment, at most one of each session, have any order in the file.
        """
        kept = {f"{self.name}-{number}": _count(written) for number, written in enumerate(records)}
        lost = [number >= kept[session_id] for session_id, number in self.accepted.read()]
        if True in lost and not all(lost[lost.index(True) + SESSIONS :]):
            yield f"of {len(lost)} accepted messages the {lost.index(True)}th is lost, and later ones are not"


def _answer(chat):
    """Call the payment tool for every third message before the answer."""
    last = chat.messages[-1]
    text = last.parts[0].text if last.role == "user" else ""
    if text.isdigit() and not int(text) % 3:
        return ToolCall("pay", {"order": text})
    return "done"


def _count(written):
    return sum(isinstance(each, MessageAcceptedRecord) for each in written)


def run_talks(options):
    moments, report = random.Random(options.seed), collections.Counter()
    problems = []
    while not problems and report["kills"] < options.kills:
        talk = Talk(options.url, options.folder, f"t{report['kills']}")
        verdict = live_once(talk, kill_after=moments.uniform(0.2, 1.0))
        trio.run(talk.resume)
        problems, lost = trio.run(talk.books)
        problems += [verdict] if verdict != "killed" else []
        report.update({"kills": 1, "lost": lost, "accepted": len(talk.accepted.read())})
    return {**report, "problems": problems}


if __name__ == "__main__":
    sys.exit(tell(run_talks(command(__doc__, "kills", "seed"))))
