"""A process with followed sessions that SIGKILL ends repeatedly; then the readers' events are compared with the records.

`python followed_lives.py URL FOLDER --kills 10 --readers 20 --messages 200 --seed 1` prints a report as JSON. Each reader appends
its events to a file, leaves at random moments, and resumes after the last number in that file, in this process or the next.
"""

import collections
import random
import sys
from pathlib import Path

import attrs
import trio
from crashes import Lines, command, live_once, tell

from actgent import BareAgent, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.journal.journal_url import open_journal
from actgent.sessions.subscriptions import FollowedRecord, PartialText

SESSIONS = 5


@attrs.define
class Talk:
    """Users that send messages in some sessions and close them, and readers that follow these sessions to their end."""

    url: str
    folder: Path
    messages: int
    readers: int
    seed: int
    seen: list[Lines] = attrs.field(init=False)
    wrong: Lines = attrs.field(init=False)

    def __attrs_post_init__(self):
        self.seen = [Lines(self.folder / f"reader-{number}.jsonl") for number in range(self.readers)]
        self.wrong = Lines(self.folder / "wrong.jsonl")

    async def live(self):
        """Resume where the last process ended, until all messages are sent and read."""
        async with open_runtime(journal=self.url) as runtime:
            agent = await runtime.start(self._agent())
            heads = [await runtime.journal.head("clerk", f"s{number}") for number in range(SESSIONS)]
            over = {head.session_id for head in heads if head is not None and head.closed}
            open_ones = [
                await agent.ensure_session("ada", session_id=f"s{number}")
                for number in range(SESSIONS)
                if f"s{number}" not in over
            ]
            async with trio.open_nursery() as nursery:
                for number in range(self.readers):
                    nursery.start_soon(self._read, runtime, number)
                for session in open_ones:
                    nursery.start_soon(self._converse, session)

    async def _converse(self, session):
        for number in range(self.messages // SESSIONS):
            await session.chat(str(number), message_id=f"m{number}")
            await session.wait_idle()
        await session.aclose()

    async def _read(self, runtime, number):
        dice, lines = random.Random(f"{self.seed} {number} {_cursor(self.seen[number])}"), self.seen[number]
        is_over = False
        while not is_over:
            with trio.move_on_after(dice.uniform(0, 0.3)):
                async with runtime.follow(
                    f"s{number % SESSIONS}", agent="clerk", after=_cursor(lines)
                ) as follower:
                    async for item in follower:
                        if isinstance(item, FollowedRecord):
                            lines.add(item.number, type(item.record).__name__)
                        elif isinstance(item, PartialText) and not item.text:
                            self.wrong.add("an empty piece", item.reply_id)
                    is_over = True

    def _agent(self):
        @tool(effect="idempotent")
        async def look(what: str) -> str:
            """Look."""
            await trio.sleep(0.001)
            return f"seen {what}"

        return BareAgent("clerk", llm=ScriptedLLM(_answer, keep=0, chunk=3), tools=[look])

    async def books(self):
        """Return the differences between the readers' events and the journal."""
        found = [repr(line) for line in self.wrong.read()]
        async with open_journal(self.url) as journal:
            await journal.acquire()
            for number, lines in enumerate(self.seen):
                records = await journal.load(f"s{number % SESSIONS}", agent="clerk")
                expected = [[index, type(record).__name__] for index, record in enumerate(records, 1)]
                if (seen := lines.read()) != expected:
                    found.append(f"reader {number} saw {len(seen)} of {len(expected)} records, or others")
        return found


def _cursor(lines):
    seen = lines.read()
    return seen[-1][0] if seen else 0


def _answer(chat):
    """Call the tool for every third message before the answer."""
    last = chat.messages[-1]
    text = last.parts[0].text if last.role == "user" else ""
    if text.isdigit() and not int(text) % 3:
        return [ToolCall("look", {"what": text}), ToolCall("look", {"what": f"{text} again"})]
    return "that is done"


def run_lives(options):
    moments, report = random.Random(options.seed), collections.Counter()
    talk = Talk(options.url, options.folder, options.messages, options.readers, options.seed)
    verdict = "killed"
    while verdict == "killed" and report["kills"] < options.kills:
        verdict = live_once(talk, kill_after=moments.uniform(0.1, 0.8))
        report.update({"kills": verdict == "killed"})
    if verdict == "killed":
        verdict = live_once(talk, kill_after=None)
    problems = [verdict] if verdict else []
    problems += trio.run(talk.books)
    return {**report, "records": sum(_cursor(lines) for lines in talk.seen), "problems": problems}


if __name__ == "__main__":
    sys.exit(tell(run_lives(command(__doc__, "kills", "readers", "messages", "seed"))))
