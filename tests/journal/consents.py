"""Tools that wait for approvals, in processes that SIGKILL ends: a granted call runs once, any other never.

The decisions are made outside of the processes: each follows from the order that a call is about. The deciders list open
approvals in any order, by session or by id alone, and repeat decided ones with another decision.

`python consents.py URL FOLDER --sessions 5 --kills 10 --seed 1` repeats this with processes that are killed at random moments,
before and after requests and decisions, until the number of kills is reached. It prints a report as JSON.
"""

import collections
import os
import random
import sys
from pathlib import Path

import attrs
import trio
import trio.lowlevel
from crashes import Lines, command, run, tell

from actgent import (
    ApprovalAlreadyDecided,
    ApprovalNotFound,
    ApprovalRequired,
    Approve,
    BareAgent,
    Edit,
    NotSuspended,
    Reject,
    Respond,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    open_runtime,
    tool,
)
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    MessageEndRecord,
)
from actgent.testing import check_transcript

AGENT = "clerk"
MESSAGES, ROUNDS = 2, 2
WISHES = ("approve", "reject", "edit", "respond")
TOO_LATE = (ApprovalAlreadyDecided, ApprovalNotFound, NotSuspended)


def wish_of(order):
    """Return the decision that the approvers make about an order."""
    return WISHES[sum(order.encode()) % len(WISHES)]


def decision_of(approval):
    order = approval.arguments["order"]
    match wish_of(order):
        case "approve":
            return Approve("fine")
        case "reject":
            return Reject("no")
        case "edit":
            return Edit({"order": f"{order} edited"})
    return Respond(f"{order} by hand")


def other_than(decision):
    """Return a decision that differs from the approvers' own."""
    return Approve() if not isinstance(decision, Approve) else Reject()


CALLS = ("pay", "look", "send", "store", "pay")


def orders_of(session_id, number, done):
    return [f"{session_id} {number} {done} {index}" for index in range(len(CALLS))]


@attrs.define
class Consents:
    """Sessions whose calls wait for approvals, and the files outside of their processes."""

    url: str
    folder: Path
    name: str
    sessions: int
    pause: float = 0.002
    """Seconds, at most, that each effect and each decision takes."""
    effects: Lines = attrs.field(init=False)
    asked: Lines = attrs.field(init=False)
    decided: Lines = attrs.field(init=False)
    wrong: Lines = attrs.field(init=False)

    def __attrs_post_init__(self):
        for name in ("effects", "asked", "decided", "wrong"):
            setattr(self, name, Lines(self.folder / f"{self.name}-{name}.jsonl"))

    @property
    def session_ids(self):
        return [f"s{number}" for number in range(self.sessions)]

    # --- a life ----------------------------------------------------------------------------

    async def live(self):
        """Resume where the last process ended, until all calls are decided and done."""
        random.seed(os.getpid())
        async with open_runtime(journal=self.url) as runtime:
            agent = await runtime.start(self.agent())
            sessions = [await agent.ensure_session("ada", session_id) for session_id in self.session_ids]
            for session in sessions:
                for number in range(MESSAGES):
                    await session.chat(f"go {number}", message_id=f"m{number}")
            while any(session.status != "idle" for session in sessions):
                await trio.lowlevel.checkpoint()
                for approval in await self._pages(runtime):
                    await self._decide(agent, approval)

    async def _pages(self, runtime):
        """Return the open approvals in any order."""
        found, page = [], await runtime.approvals(limit=2)
        while page:
            found += page
            page = await runtime.approvals(after=page[-1], limit=2)
        return random.sample(found, len(found))

    async def _decide(self, agent, approval):
        await self._wait()
        if [approval.id] in self.decided.read():
            self.wrong.add("open after it was confirmed", approval.id)
        decision = decision_of(approval)
        try:
            if random.random() < 0.5:
                await agent.answer(approval.id, decision, by="ada")
            else:
                session = await agent.open_session(approval.session_id)
                await session.answer(approval, decision, by="ada")
        except TOO_LATE as error:
            self.wrong.add("refused", approval.id, str(error))
        self.decided.add(approval.id)
        if random.random() < 0.3:
            await self._decide_again(agent, approval.id, other_than(decision))

    async def _decide_again(self, agent, approval_id, decision):
        try:
            await agent.answer(approval_id, decision)
        except TOO_LATE:
            return
        self.wrong.add("decided twice", approval_id)

    async def _wait(self):
        await trio.sleep(random.uniform(0, self.pause))

    # --- the agent ---------------------------------------------------------------------------

    def agent(self):
        def answer(chat):
            for problem in check_transcript(chat):
                self.wrong.add("transcript", str(problem))
            messages = [message for message in chat.messages if message.role == "user"]
            since = chat.messages[chat.messages.index(messages[-1]) + 1 :]
            done = sum(message.role == "tool" for message in since)
            number = messages[-1].parts[0].text.removeprefix("go ")
            if done == ROUNDS:
                return f"done {number}"
            orders = orders_of(chat.session, number, done)
            return [ToolCall(name, {"order": order}) for name, order in zip(CALLS, orders, strict=True)]

        agent = BareAgent(AGENT, llm=ScriptedLLM(answer, keep=0), tools=self._tools())

        @agent.on_session
        def attach(session):
            session.on_approval(lambda approval: self.asked.add(approval.id))
            session.on_exception(lambda failure: self.wrong.add("failure", session.id, str(failure)))

        return agent

    def _tools(self):
        async def take_effect(name, order, context):
            await self._wait()
            self.effects.add(name, order, context.idempotency_key)
            await self._wait()
            return f"{name} {order}"

        @tool(approval=True)
        async def pay(order: str, context: ToolContext) -> str:
            """Pay an order once, and only after an approval."""
            return await take_effect("pay", order, context)

        @tool(effect="pure")
        async def look(order: str, context: ToolContext) -> str:
            """Look an order up."""
            return await take_effect("look", order, context)

        @tool
        async def send(order: str, context: ToolContext) -> str:
            """Request an approval inside the tool, then send an order."""
            await self._wait()
            if context.approval is None:
                raise ApprovalRequired(f"Send {order}?", again=True)
            return await take_effect("send", order, context)

        @tool(approval=True, effect="idempotent")
        async def store(order: str, context: ToolContext) -> str:
            """Store an order after an approval."""
            return await take_effect("store", order, context)

        return [pay, look, send, store]

    # --- the books ---------------------------------------------------------------------------

    async def problems(self):
        """Return all violations of the expected results as sentences."""
        found = [f"noted in a life: {line}" for line in self.wrong.read()]
        async with open_journal(self.url) as journal:
            await journal.acquire()
            records = {session_id: await journal.load(session_id) for session_id in self.session_ids}
            found += [f"{each} is unfinished" for each in await journal.unfinished(AGENT)]
            found += [f"{each} is suspended" for each in await journal.suspended(AGENT)]
            found += [f"{each} is due" for each in await journal.due(AGENT)]
        found += self._check_people(records.values())
        for session_id, written in records.items():
            found += self._check_results(session_id, written)
        return found

    def _check_people(self, sessions):
        """Check that each reported approval was requested, and that each confirmed decision was applied once and as intended."""
        request = {
            each.approval.id: each.approval
            for s in sessions
            for each in s
            if isinstance(each, ApprovalRequestRecord)
        }
        decided = [each for s in sessions for each in s if isinstance(each, ApprovalDecisionRecord)]
        twice = [
            key for key, count in collections.Counter(d.approval_id for d in decided).items() if count > 1
        ]
        yield from (f"{approval_id} is decided twice" for approval_id in twice)
        known = {each.approval_id: each.decision for each in decided}
        yield from (
            f"heard of {key}, which was not asked" for (key,) in self.asked.read() if key not in request
        )
        yield from (f"{key} was confirmed and is lost" for (key,) in self.decided.read() if key not in known)
        for key, approval in request.items():
            if known.get(key) != decision_of(approval):
                yield f"{key} came to {known.get(key)}"

    def _check_results(self, session_id, written):
        ended = [(each.message_id, each.failed) for each in written if isinstance(each, MessageEndRecord)]
        if ended != [(f"m{number}", None) for number in range(MESSAGES)]:
            yield f"{session_id} ended {ended}"
        results = [
            r for each in written if isinstance(each, AgentMessageRecord) for r in each.message.tool_results
        ]
        orders = [
            order
            for number in range(MESSAGES)
            for done in range(ROUNDS)
            for order in orders_of(session_id, number, done)
        ]
        if len(results) != len(orders):
            yield f"{session_id} has {len(results)} results for {len(orders)} calls"
        ran = collections.Counter((name, order) for name, order, _ in self.effects.read())
        for order, result in zip(orders, results, strict=False):
            yield from self._check_result(order, result, ran)

    def _check_result(self, order, result, ran):
        name, wish = result.tool_name, wish_of(order)
        if name == "look":
            wish = "approve"
        done = f"{order} edited" if wish == "edit" else order
        count, others = ran[name, done], ran[name, order if wish == "edit" else f"{order} edited"]
        if others:
            yield f"{name} {order!r} ran with other arguments than were approved"
        if result.status == "outcome_unknown":
            is_granted = wish in ("approve", "edit")
            may_be = name == "send" or (name == "pay" and is_granted)  # `send` may die before it asks
            if not may_be or count > is_granted:
                yield f"{name} {order!r}, {wish}, is not known, and ran {count} times"
        elif wish in ("reject", "respond"):
            content = f"{order} by hand" if wish == "respond" else ""
            if count or (result.status == "success") != (wish == "respond") or result.content != content:
                yield f"{name} {order!r}, {wish}: {result.status}, {result.content!r}, ran {count} times"
        elif result.status != "success" or not count or (count > 1 and name in ("pay", "send")):
            yield f"{name} {order!r}, {wish}: {result.status}, ran {count} times"

    def figures(self):
        """Return the numbers of events that the kills interrupted."""
        effects = [tuple(line) for line in self.effects.read()]
        received = [key for (key,) in self.asked.read()]
        return {
            "effects": len(effects),
            "asked": len(set(received)),
            "heard_again": len(received) - len(set(received)),
        }


def run_consents(options):
    def start(number):
        return Consents(f"{options.url}w{number}", options.folder, f"w{number}", options.sessions)

    return run(options, start, share=0.8)


if __name__ == "__main__":
    sys.exit(tell(run_consents(command(__doc__, "sessions", "kills", "seed"))))
