"""Processes that SIGKILL ends at random moments until all work is done; then the results are checked.

`python crashes.py URL FOLDER --sessions 100 --messages 2 --rounds 5 --kills 30 --seed 1` repeats this in one journal until the
number of kills is reached, and prints a report as JSON. A kill comes within half of the time of a first run without kills. With
`--every 1` the process is killed after each write of the journal instead, one write later in each run (`--every 7`: after each
seventh write). Each process is a fork of this one, which has imported everything and opened nothing. Data outside of the
processes is in files to which lines are appended, each by one write.
"""

import argparse
import collections
import importlib
import itertools
import json
import os
import random
import signal
import sys
import time
import traceback
import weakref
from pathlib import Path

import attrs
import trio

from actgent import BareAgent, ScriptedLLM, Session, ToolCall, ToolContext, open_runtime, tool
from actgent.journal.journal_url import open_journal
from actgent.journal.journal_wrappers import WrappedJournal
from actgent.journal.record_types import AgentMessageRecord, MessageAcceptedRecord, MessageEndRecord
from actgent.runtime.sessions import session_table
from actgent.testing import check_transcript

AGENT = "clerk"
PATIENCE_S = 60
"""How long the last life, which nobody kills, may take."""
LAZY = ("actgent.journal.sqlite.journal", "actgent.journal.postgres.journal")
"""Imported before the forks, so that kills hit work and no imports."""


class Lines:
    """A file of JSON lines to which processes append until they are killed.

    A kill may tear a write that crosses a page of the file. The torn part is a line that does not count, because its process did not
    continue after that write.
    """

    def __init__(self, path: Path):
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        weakref.finalize(self, os.close, self._fd)

    def add(self, *values):
        os.write(self._fd, b"\n" + json.dumps(values).encode() + b"\n")

    def read(self):
        lines = self._path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("]")]


class DeadlyJournal(WrappedJournal):
    """A journal whose process is killed after its n-th write, before the write is confirmed."""

    def __init__(self, inner, writes):
        super().__init__(inner)
        self._left = writes

    def _count(self):
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)

    async def commit(self, entry, *, epoch, durable=True):
        await self.inner.commit(entry, epoch=epoch, durable=durable)
        self._count()

    def enqueue_write(self, entry, *, epoch):
        self.inner.enqueue_write(entry, epoch=epoch)
        self._count()


@attrs.define
class Work:
    """The work: `sessions` conversations of `messages` messages. Each is answered after `rounds` of tool calls."""

    url: str
    folder: Path
    name: str
    sessions: int
    messages: int
    rounds: int
    dies_at: int = 0
    """The write of the journal that the next life does not outlive; 0 is none."""
    effects: Lines = attrs.field(init=False)
    accepted: Lines = attrs.field(init=False)
    heard: Lines = attrs.field(init=False)
    wrong: Lines = attrs.field(init=False)

    def __attrs_post_init__(self):
        for name in ("effects", "accepted", "heard", "wrong"):
            setattr(self, name, Lines(self.folder / f"{self.name}-{name}.jsonl"))

    @property
    def session_ids(self):
        return [f"{self.name}-{number}" for number in range(self.sessions)]

    # --- one life ------------------------------------------------------------------------

    async def live(self):
        """Resume where the last process ended, until all work is done."""
        acknowledged = {tuple(line) for line in self.accepted.read()}
        async with open_journal(self.url) as journal, open_runtime(journal=self._deadly(journal)) as runtime:
            agent = await runtime.start(self._agent())
            async with trio.open_nursery() as nursery:
                for session_id in self.session_ids:
                    nursery.start_soon(self._converse, agent, session_id, acknowledged)

    def _deadly(self, journal):
        return DeadlyJournal(journal, self.dies_at) if self.dies_at else journal

    async def _converse(self, agent, session_id, acknowledged):
        """Run a client that repeats unacknowledged messages."""
        session = await _session(agent, session_id)
        for number in range(self.messages):
            if (session_id, number) not in acknowledged:
                await session.chat(f"{session_id} message {number}", message_id=f"m{number}")
                self.accepted.add(session_id, number)
        await session.wait_idle()

    def _agent(self):
        @tool(effect="once")
        async def pay(order: str, context: ToolContext) -> str:
            """Pay an order. The tool sleeps before and after its effect."""
            await trio.sleep(random.uniform(0, 0.004))
            self.effects.add("pay", context.session_id, order, context.idempotency_key)
            await trio.sleep(random.uniform(0, 0.004))
            return f"paid {order}"

        @tool(effect="idempotent")
        async def store(order: str, context: ToolContext) -> str:
            """Store an order under the key of its effect."""
            await trio.sleep(random.uniform(0, 0.004))
            self.effects.add("store", context.session_id, order, context.idempotency_key)
            await trio.lowlevel.checkpoint()
            return f"stored {order}"

        @tool(effect="pure")
        def look(order: str) -> str:
            """Look an order up, in a thread."""
            return f"seen {order}"

        agent = BareAgent(
            AGENT,
            llm=ScriptedLLM(self._answer, keep=0),
            tools=[pay, store, look],
            max_concurrent_sessions=self.sessions,
            inbox_capacity=self.sessions * self.messages,
        )
        agent.on_session(self._attach)
        return agent

    def _answer(self, chat):
        """Return three calls in each round, and then the results of the message. Record any inconsistency in the chat."""
        for problem in check_transcript(chat):
            self.wrong.add("transcript", str(problem))
        last = max(index for index, message in enumerate(chat.messages) if message.role == "user")
        text = chat.messages[last].parts[0].text
        done = sum(message.role == "tool" for message in chat.messages[last:])
        if done == self.rounds:
            return f"done: {text}"
        return [ToolCall(name, {"order": f"{text}, round {done}"}) for name in _tools_of(done)]

    def _attach(self, session: Session):
        session.on_tool_result(
            lambda result: self.heard.add("result", session.id, result.call_id, result.id, result.status)
        )
        session.on_conversation(lambda reply: self.heard.add("reply", session.id, reply.text, reply.id))
        session.on_exception(lambda failure: self.wrong.add("failure", session.id, str(failure)))

    # --- the books -----------------------------------------------------------------------

    async def problems(self):
        """Return all violations of the expected results as sentences."""
        found = [f"noted in a life: {line}" for line in self.wrong.read()]
        async with open_journal(self.url) as journal:
            await journal.acquire()
            records = {session_id: await journal.load(session_id) for session_id in self.session_ids}
            unfinished = await journal.unfinished(AGENT)
        found += [f"{session_id} is unfinished" for session_id in unfinished]
        for session_id, written in records.items():
            found += self._check_conversation(session_id, written)
        return [*found, *self._check_effects(records), *self._check_heard(records)]

    def _check_conversation(self, session_id, written):
        """Check that each message exists once and ended well."""
        expected = [f"m{number}" for number in range(self.messages)]
        accepted = [each.message.id for each in written if isinstance(each, MessageAcceptedRecord)]
        ended = [(each.message_id, each.failed) for each in written if isinstance(each, MessageEndRecord)]
        if accepted != expected:
            yield f"{session_id} accepted {accepted}"
        if ended != [(message_id, None) for message_id in expected]:
            yield f"{session_id} ended {ended}"
        records = [each.message for each in written if isinstance(each, AgentMessageRecord) and each.stop]
        steps = [
            message.text or [(c.name, c.arguments["order"]) for c in message.tool_calls]
            for message in records
        ]
        if steps != [step for number in range(self.messages) for step in self._steps(session_id, number)]:
            yield f"{session_id} went {steps}"

    def _steps(self, session_id, number):
        """Return the model's answers to a message; no answer occurs twice."""
        text = f"{session_id} message {number}"
        for done in range(self.rounds):
            yield [(name, f"{text}, round {done}") for name in _tools_of(done)]
        yield f"done: {text}"

    def _check_effects(self, records):
        """Check that `once` tools ran at most once, and exactly once if the result says so, and that `idempotent` tools always had one key."""
        paid, keys = collections.Counter(), collections.defaultdict(set)
        for name, _, order, key in self.effects.read():
            keys[name, order].add(key)
            paid[order] += name == "pay"
        yield from (f"{order!r} was paid {count} times" for order, count in paid.items() if count > 1)
        yield from (f"{what} has the keys {found}" for what, found in keys.items() if len(found) > 1)
        for written in records.values():
            orders = {call.id: call.arguments["order"] for call in _calls(written) if call.name == "pay"}
            for result in _results(written):
                if result.call_id not in orders or result.status == "outcome_unknown":
                    continue
                if result.status != "success" or paid[orders[result.call_id]] != 1:
                    yield f"{orders[result.call_id]!r}: {result.status}, paid {paid[orders[result.call_id]]} times"

    def _check_heard(self, records):
        """Check that handlers received each recorded outcome under one id and with one status."""
        received = collections.defaultdict(set)
        for kind, session_id, what, *outcome in self.heard.read():
            received[kind, session_id, what].add(tuple(outcome))
        yield from (f"{what} came to {told}" for what, told in received.items() if len(told) > 1)
        for session_id, written in records.items():
            results = list(_results(written))
            if [each.call_id for each in results] != [call.id for call in _calls(written)]:
                yield f"{session_id} has not one result for each call, in their order"
            for result in results:
                if received["result", session_id, result.call_id] != {(result.id, result.status)}:
                    yield f"{session_id} {result.call_id} is {result.status}, heard was {received['result', session_id, result.call_id]}"
            for number in range(self.messages):
                if not received["reply", session_id, f"done: {session_id} message {number}"]:
                    yield f"nobody heard the answer to {session_id} message {number}"

    def figures(self):
        """Return the numbers of events that the crashes interrupted."""
        unknown = {line[2] for line in self.heard.read() if line[-1] == "outcome_unknown"}
        effects = [tuple(line) for line in self.effects.read()]
        return {
            "unknown": len(unknown),
            "effects": len(effects),
            "repeated": len(effects) - len(set(effects)),
        }


def _tools_of(done):
    """Return the calls of a round: several, or a single one, which has another record format."""
    return ("pay",) if done % 2 else ("pay", "store", "look")


async def _session(agent, session_id):
    try:
        return await agent.open_session(session_id)
    except LookupError:
        return await agent.create_session("ada", session_id=session_id)


def _calls(written):
    return [
        call for each in written if isinstance(each, AgentMessageRecord) for call in each.message.tool_calls
    ]


def _results(written):
    return [
        result
        for each in written
        if isinstance(each, AgentMessageRecord)
        for result in each.message.tool_results
    ]


# --- lives and deaths --------------------------------------------------------------------


def live_once(work, *, kill_after):
    """Run one process and kill it after the given seconds. Return None if it ended before."""
    pid = os.fork()
    if not pid:
        _be(work)
    until = time.monotonic() + (PATIENCE_S if kill_after is None else kill_after)
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return _verdict(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return _verdict(status) if kill_after is not None else "did not end by itself"


def _be(work):
    """Run the work in the forked process."""
    try:
        trio.run(work.live)
    except BaseException:  # noqa: BLE001 - it is the report
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _verdict(status):
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return "killed"
    return None if status == 0 else "failed"


def finish(work, moments, *, kills, longest):
    """Kill up to `kills` processes, each within `longest` seconds, until the work is done. Return the number of kills and the problems."""
    killed, verdict = 0, "killed"
    while verdict == "killed" and killed < kills:
        verdict = live_once(work, kill_after=moments.uniform(0, longest))
        killed += verdict == "killed"
    if verdict == "killed":
        verdict = live_once(work, kill_after=None)
    return killed, [f"the last life {verdict}"] if verdict else trio.run(work.problems)


def run(options, start, *, share=0.5):
    """Run work repeatedly, the first time without kills, until the number of kills is reached. Return the report.

    `start(number)` returns the next work. A kill comes within this share of the time of the first run.
    """
    moments, report = random.Random(options.seed), collections.Counter()
    problems, longest, kills = [], 0.0, 0
    while not problems and report["kills"] < options.kills:
        work = start(report["works"])
        started = time.monotonic()
        killed, problems = finish(work, moments, kills=kills, longest=longest)
        longest = longest or (time.monotonic() - started) * share
        report.update({"works": 1, "kills": killed, **work.figures()})
        kills = options.kills - report["kills"]
    return {**report, "problems": problems[:20]}


def run_every_write(options):
    """Run work repeatedly. Kill each run at a later write than the one before, until a run ends before that write."""
    report, problems = collections.Counter(), []
    for write in itertools.count(1, options.every):
        work = _work(options, f"w{report['works']}")
        work.dies_at = write
        verdict = live_once(work, kill_after=PATIENCE_S)
        work.dies_at = 0
        _, problems = finish(work, random.Random(), kills=0, longest=0.0)
        problems += [f"a life {verdict}"] if verdict == "failed" else []
        report.update({"works": 1, "kills": verdict == "killed", **work.figures()})
        if problems or verdict is None:
            return {**report, "problems": [f"write {write}: {problem}" for problem in problems]}
    raise AssertionError("the count has no end")


def _work(options, name):
    return Work(options.url, options.folder, name, options.sessions, options.messages, options.rounds)


def command(about, *required, **defaults):
    """Return the options of such a script: the address of the journal, a folder, and numbers."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("url", help="of the journal, or what the addresses of several begin with")
    parser.add_argument("folder", type=Path)
    for name in required:
        parser.add_argument(f"--{name}", type=int, required=True)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in LAZY:
        importlib.import_module(name)
    return parser.parse_args()


def tell(report):
    """Print a report. Return the exit code of the script."""
    print(json.dumps(report))  # noqa: T201 - a script
    return 1 if report["problems"] else 0


def main():
    options = command(
        __doc__,
        "sessions",
        "messages",
        "rounds",
        kills=0,
        seed=0,
        every=0,
        awake=session_table.MAX_LOADED_IDLE,
    )
    session_table.MAX_LOADED_IDLE = options.awake
    if options.every:
        return tell(run_every_write(options))
    return tell(run(options, lambda number: _work(options, f"w{number}")))


if __name__ == "__main__":
    sys.exit(main())
