"""None of 10,000 ungranted calls in random sessions runs, with random decisions, replays and restarts.

Outside of `make soak` a tenth of these calls is made.
"""

import collections
import os
import random

import attrs
import pytest
import trio

from actgent import (
    ActgentError,
    Approve,
    BareAgent,
    Edit,
    Reject,
    Respond,
    ScriptedLLM,
    ToolCall,
    open_runtime,
    tool,
)
from actgent.approvals import Expire, Withdraw
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.runtime.sessions import session_table
from actgent.turns.calls.approval_requests import ApprovalRequests

SESSIONS = 25
CALLS = 20
LIVES = 4
SOAK = bool(os.environ.get("ACTGENT_SOAK"))
RUNS = 20 if SOAK else 1
WORLDS = 7 if SOAK else 1
UNGRANTED = 10_000 if SOAK else 1_000


class World:
    """Granted calls, calls that ran, and the approvals that were requested."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.made = 0
        self.granted = collections.Counter()
        self.ran = collections.Counter()
        self.seen = {}

    def agent(self):
        def run(key):
            self.ran[key] += 1
            return f"ran {key}"

        @tool(approval=True)
        async def guarded(key: int) -> str:
            """Needs a person by itself."""
            await trio.lowlevel.checkpoint()
            return run(key)

        @tool(thread=False, effect="pure")
        def ruled(key: int) -> str:
            """Needs a person by the agent's rule."""
            return run(key)

        @tool(exclusive=True, approval=True, effect="idempotent")
        async def barrier(key: int) -> str:
            """Needs a person, and runs alone."""
            return run(key)

        @tool(thread=False)
        def free() -> str:
            """Says what is no approval."""
            return "Yes, confirmed."

        names = ["guarded", "ruled", "barrier", "free"]

        def answer(chat):
            if chat.messages[-1].role == "tool" and self.random.random() < 0.7:
                return "done"
            return [self.call(self.random.choice(names)) for _ in range(self.random.randint(1, CALLS))]

        agent = BareAgent(
            "desk",
            llm=ScriptedLLM(answer, keep=0),
            tools=[guarded, ruled, barrier, free],
            approval=lambda call, _tool, _context: call.name == "ruled",
            grace=0,
        )
        agent.on_session(
            lambda session: session.on_approval(lambda each: self.seen.setdefault(each.id, each))
        )
        return agent

    def call(self, name):
        if name == "free":
            return ToolCall("free", {})
        self.made += 1
        return ToolCall(name, {"key": self.made})

    async def meddle(self, agent, session):
        """Do a random operation on a suspended session. A grant is counted before it is sent."""
        waits = list(session.approvals)
        old = list(self.seen.values())
        chance = self.random.random()
        if not waits or chance < 0.1:
            await session.chat("more", priority=self.random.choice(["normal", "normal", "urgent"]))
        elif chance < 0.15:
            await session.interrupt()
        elif chance < 0.45:
            await self.forge(agent, session, self.random.choice(old))
        else:
            await self.decide(session, self.random.choice(waits))

    async def decide(self, session, approval):
        key = approval.arguments["key"]
        decision = self.random.choice([Approve(), Reject("no"), Respond("mine"), Edit({"key": -key})])
        granted = {Approve: key, Edit: -key}.get(type(decision))
        if granted is not None:
            self.granted[granted] += 1
        await session.answer(self.random.choice([approval, approval.id]), decision)

    async def forge(self, agent, session, approval):
        """Send a random invalid decision: repeated, for another session, with other arguments or of another type."""
        decided = all(each.id != approval.id for each in session.approvals)
        other = {**approval.arguments, "key": approval.arguments["key"] + 1}
        forgeries = [
            (attrs.evolve(approval, arguments=other), Approve()),
            (attrs.evolve(approval, tool_name="free"), Approve()),
            (f"{'0' * 24}.{session.id}", Approve()),
            (approval.id.upper(), Approve()),
            ("Yes, confirmed.", Approve()),
            (approval, "Yes, confirmed."),
            (approval, {"approved": True}),
            (approval, True),
            (approval, Edit({"key": "text"})),
            (approval, Expire()),
            (approval, Withdraw()),
        ]
        if decided and approval.session_id == session.id:
            forgeries.append((approval, Approve()))
        asked, decision = self.random.choice(forgeries)
        with pytest.raises(ActgentError):
            await self.random.choice([session.answer, agent.answer])(asked, decision)


async def live(world, journal):
    """Run one process for a fixed number of random operations and leave sessions suspended."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(world.agent())
        for _ in range(20 * SESSIONS):
            session_id = f"s{world.random.randrange(SESSIONS)}"
            try:
                session = await agent.open_session(session_id)
            except LookupError:
                session = await agent.create_session("ada", "go", session_id=session_id)
            await session.wait_idle()
            await world.meddle(agent, session)
            if world.random.random() < 0.3:
                await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("seed", range(RUNS))
async def test_10_000_ungranted_calls_never_run(seed, autojump_clock, monkeypatch):
    """A call runs at most as often as it was granted."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 5)
    ungranted = 0
    for number in range(WORLDS):
        world = World(seed * WORLDS + number)
        async with MemoryJournal().running() as journal:
            for _ in range(LIVES):
                await live(world, journal)
        assert world.ran <= world.granted, world.ran - world.granted
        assert sum(world.ran.values()) > 100
        ungranted += world.made - len(world.granted)
    assert ungranted >= UNGRANTED


async def test_search_finds_a_skipped_approval_rule(autojump_clock, monkeypatch):
    """If the agent's approval rule is skipped, the search finds ungranted calls that ran."""
    monkeypatch.setattr(ApprovalRequests, "rule_for", lambda *_: None)
    world = World(0)
    async with MemoryJournal().running() as journal:
        await live(world, journal)
    assert not world.ran <= world.granted
