"""Runs of a pipeline in processes that SIGKILL ends after each write of the journal, and the check of their results.

`python pipeline_lives.py URL FOLDER --every 1` runs twelve steps repeatedly in one journal. The first process is killed after its
first write, that of the next run after its second write, until one completes. A second process of each run is killed after
another write, and the third one completes. Effects outside of the process are files. The outputs must equal those of a run
without kills, and no order may be booked twice.
"""

import itertools
import json
import random
import sys
from collections import Counter
from pathlib import Path

import attrs
import trio
from crashes import PATIENCE_S, DeadlyJournal, Lines, command, finish, live_once, tell

from actgent import (
    BareAgent,
    Pipeline,
    PipelineStep,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    ToolResult,
    When,
    open_runtime,
    tool,
)
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import MessageEndRecord

ANSWER = {"type": "object", "properties": {"order": {"type": "string"}, "n": {"type": "integer"}}}
SECOND = 17
"""The second process of a run dies behind a write below this number."""


def steps(agent):
    """Return twelve steps, concurrent and sequential, some retried, some skipped, and one that fails permanently."""

    def step(name, message, **options):
        return PipelineStep(name, agent=agent, message=message, **options)

    return [
        step("find", "find 4 {x}", output=ANSWER),
        step("two", "two 2"),
        step("three", "three 3", output=ANSWER, timeout=3600),
        step("flaky", "flaky 1 {find.n}", retries=2),
        step("big", "big 5", when=When.greater("find.n", 3) & When.exists("three.order")),
        step("small", "small 1", when=~When.greater("find.n", 3)),
        step("join", "join 7 {big?}{small?}{two}"),
        step("doomed", "doomed 0", retries=1),
        step("after", "after 0 {doomed}"),
        step("typed", {"order": "typed", "n": "{find.n}", "list": ["{three}"]}, output=ANSWER),
        step("spare", "spare 1", after="two", when=When.empty("small")),
        step("end", "end 9 {join} {typed.n} {flaky}", after=["spare"]),
    ]


BOOKED = ("find", "two", "three", "flaky", "big", "join", "typed", "spare", "end")


@attrs.define
class Run:
    """One run of the pipeline over several processes."""

    url: str
    folder: Path
    name: str
    dies_at: int = 0
    """The write of the journal that the next process does not outlive; 0 is none."""
    effects: Lines = attrs.field(init=False)
    results: Lines = attrs.field(init=False)

    def __attrs_post_init__(self):
        self.effects = Lines(self.folder / f"{self.name}-effects.jsonl")
        self.results = Lines(self.folder / f"{self.name}-results.jsonl")

    async def live(self):
        """Run one process: resume where the last one ended, until the run is complete."""
        async with open_journal(self.url) as journal:
            kept = DeadlyJournal(journal, self.dies_at) if self.dies_at else journal
            async with open_runtime(journal=kept) as runtime:
                pipeline = await runtime.start(self._pipeline())
                result = await pipeline.process({"x": 1}, session_id=self.name)
                told = {
                    name: [each.status, each.output, each.reason, each.tries]
                    for name, each in result.steps.items()
                }
                self.results.add(told, result.data, result.status)

    def _pipeline(self):
        @tool(effect="once")
        async def book(order: str) -> str:
            """Book an order. The tool sleeps before and after its effect."""
            await trio.sleep(random.uniform(0, 0.002))
            self.effects.add("book", order)
            await trio.sleep(random.uniform(0, 0.002))
            return "booked"

        @tool(effect="idempotent")
        async def store(order: str, context: ToolContext) -> str:
            """Store an order under the key of its effect."""
            self.effects.add("store", order, context.idempotency_key)
            await trio.lowlevel.checkpoint()
            return "stored"

        @tool(effect="pure")
        def look(order: str) -> str:
            """Return whether an order is booked."""
            return "booked" if ["book", order] in self.effects.read() else "free"

        worker = BareAgent("worker", llm=ScriptedLLM(_answer, keep=0), tools=[book, store, look])
        return Pipeline("errands", steps=steps(worker), answer="end")

    async def problems(self):
        """Return all violations of the expected results as sentences."""
        async with open_journal(self.url) as journal:
            await journal.acquire()
            unfinished = [each for agent in ("errands", "worker") for each in await journal.unfinished(agent)]
            records = await journal.load(self.name, agent="errands")
        booked = Counter(order for name, order, *_ in self.effects.read() if name == "book")
        stored = any(name == "store" for name, *_ in self.effects.read())
        ended = [each.failed for each in records if isinstance(each, MessageEndRecord)]
        found = [f"{each} is unfinished" for each in unfinished]
        found += [f"{order!r} was booked {booked[order]} times" for order in BOOKED if booked[order] != 1]
        found += [f"nobody was to book {order!r}" for order in booked.keys() - set(BOOKED)]
        found += [] if stored else ["nothing was stored"]
        return found if ended == [None] else [*found, f"the run ended as {ended}"]


def _answer(chat):
    """Read the state, book free orders, and read again if the state is unknown. The answer follows from the results."""
    text = chat.messages[0].parts[0].text
    words = json.loads(text) if text.startswith("{") else text.split()
    order, n = (words["order"], words["n"]) if isinstance(words, dict) else (words[0], int(words[1]))
    if order == "doomed":
        raise ConnectionError("never")
    batches = [[part for part in each.parts if isinstance(part, ToolResult)] for each in chat.messages]
    results = next(filter(None, reversed(batches)), [])
    if not results or any(each.status == "outcome_unknown" for each in results):
        return ToolCall("look", {"order": order})
    if results[0].content == "free":
        calls = [ToolCall("book", {"order": order})]
        return [*calls, ToolCall("store", {"order": order})] if order == "two" else calls
    if order == "flaky" and chat.session.endswith("/flaky"):
        raise ConnectionError("the first try fails behind its booking")
    return json.dumps({"order": order, "n": n}) if chat.response_format else f"<{text}>"


def run_every_write(options):
    """Run the pipeline repeatedly. Kill each run at a later write than the one before, until a run ends before that write."""
    whole = Run(options.url, options.folder, "whole")
    report, moments = Counter(), random.Random(options.seed)
    problems = [f"a life {verdict}"] if (verdict := live_once(whole, kill_after=None)) else []
    expected = whole.results.read()
    for write in itertools.count(options.first, options.every):
        run = Run(options.url, options.folder, f"w{write}")
        run.dies_at = write
        verdict = live_once(run, kill_after=PATIENCE_S)
        is_over = verdict is None
        report.update({"runs": 1, "kills": verdict == "killed"})
        if not is_over:
            run.dies_at = moments.randrange(1, SECOND)
            second = live_once(run, kill_after=PATIENCE_S)
            report.update({"kills": second == "killed"})
            verdict = second if second == "failed" else verdict
        run.dies_at = 0
        problems += finish(run, moments, kills=0, longest=0.0)[1]
        problems += [f"a life {verdict}"] if verdict == "failed" else []
        problems += [f"it came to {each}" for each in run.results.read() if [each] != expected]
        if problems or is_over:
            return {**report, "problems": [f"write {write}: {problem}" for problem in problems][:20]}
    raise AssertionError("the count has no end")


if __name__ == "__main__":
    sys.exit(tell(run_every_write(command(__doc__, every=1, first=1, seed=0))))
