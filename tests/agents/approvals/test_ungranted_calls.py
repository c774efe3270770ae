"""None of 10,000 ungranted calls runs, with random modes, delegations and grants.

Outside of `make soak` a tenth of these calls is made.
"""

import json
import os
import random

import pytest
import trio

from actgent import BareAgent, Limits, Mode, Modes, ScriptedLLM, SimpleAgent, ToolCall, ToolContext, tool

UNGRANTED = 10_000 if os.environ.get("ACTGENT_SOAK") else 1_000
TOOLS = [f"tool{number}" for number in range(10)]
MODES = [f"mode{number}" for number in range(5)]


class World:
    """Grants, recorded without the code under test, and violations of these grants."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.granted = {}
        """By agent: the tools of each mode, and the allowed mode transitions of the model."""
        self.sessions = {}
        """Mode of each session id, from the session state."""
        self.refused = 0
        self.ran = 0
        self.wrong = []

    # --- grants -----------------------------------------------------------------------------------

    def may_run(self, agent, mode, name):
        tools, _ = self.granted[agent]
        return name in tools[mode]

    def took(self, agent, session_id, name):
        """Record that a tool runs, and a violation if the session's mode does not grant that tool."""
        self.ran += 1
        if not self.may_run(agent, self.sessions[session_id], name):
            self.wrong.append((agent, self.sessions[session_id], name))

    def heard(self, agent, session_id, result):
        """Check a rejected call: its tool must be ungranted in the mode that the error names."""
        if result.error is None or "not available in" not in result.error:
            return
        mode = result.error.split(" not available in ")[1].split(" mode.")[0]
        self.refused += 1
        if self.may_run(agent, mode, result.tool_name):
            self.wrong.append((agent, mode, result))

    # --- the actors -------------------------------------------------------------------------------

    def tool(self, agent, name):
        @tool(name=name, thread=False)
        def quick(context: ToolContext) -> str:
            """Do something."""
            self.took(agent, context.session_id, name)
            return "done"

        @tool(name=name)
        async def slow(context: ToolContext) -> str:
            """Do something that takes a moment."""
            self.took(agent, context.session_id, name)
            await trio.lowlevel.checkpoint()
            return "done"

        return slow if self.random.random() < 0.5 else quick

    def modes(self, agent):
        """Return random modes with random tools, transitions and rules."""
        universal = self.random.sample(TOOLS, 1)
        tools = {mode: {*universal, *self.random.sample(TOOLS, self.random.randrange(4))} for mode in MODES}
        ways = {start: self.random.sample(MODES, 3) for start in MODES}
        self.granted[agent] = (tools, ways)
        own = [
            Mode(mode, sorted(tools[mode]) if self.random.random() < 0.7 else self._rule(tools[mode]))
            for mode in MODES
        ]
        table = {start: dict.fromkeys(ends, ("agent", "admin")) for start, ends in ways.items()}
        return Modes(*own, universal=universal, transitions=table, ready=False)

    @staticmethod
    def _rule(names):
        return lambda _call, tool, _told: tool.name in names

    def calls(self, chat, depth):
        """Return the model's answer: a random batch of calls for each task, None otherwise."""
        last = chat.messages[-1]
        text = getattr(last.parts[0], "text", "")
        if last.role != "user" or not text.startswith("go"):
            return None
        batch = [(self.random.choice(TOOLS), {}) for _ in range(12)]
        for _ in range(self.random.randrange(4)):
            batch.insert(self.random.randrange(13), ("set_mode", {"mode": self.random.choice(MODES)}))
        if depth and self.random.random() < 0.3:
            batch.append(("delegate", {"task": f"go {self.random.random()}"}))
        return batch

    def agent(self, name, depth, *, in_text):
        def answer(chat):
            batch = self.calls(chat, depth)
            if in_text:
                content = [{"name": each, "parameters": given} for each, given in batch or ()]
                kind = "TOOL_INVOCATION" if batch else "DIRECT_RESPONSE"
                return json.dumps({"messageType": kind, "content": content or "done"})
            return [ToolCall(each, given) for each, given in batch] if batch else "done"

        tools = [self.tool(name, each) for each in TOOLS]
        modes = self.modes(name)
        if depth:
            helper = self.agent(f"{name}-helper", depth - 1, in_text=not in_text)
            delegate = helper.as_tool("delegate", "Delegate something.")
            tools.append(delegate)
            for granted in self.granted[name][0].values():
                granted.add("delegate")
            modes.universal |= {"delegate"}
        agent = (SimpleAgent if in_text else BareAgent)(
            name,
            llm=ScriptedLLM(answer, keep=0),
            tools=tools,
            modes=modes,
            limits=Limits(max_repeated_calls=1000),
        )

        @agent.on_session
        def follow(session):
            self.sessions[session.id] = session.mode

            def listen(state):
                self.sessions[session.id] = agent.modes.mode_of(state)

            session.state.subscribe(listen)
            session.on_tool_result(lambda result: self.heard(name, session.id, result))

        return agent


async def play(world, ungranted):
    """Run sessions of agents and their helpers until the given number of calls was rejected."""
    round_number = 0
    while world.refused < ungranted and not world.wrong:
        round_number += 1
        lead = world.agent(f"lead{round_number}", 2, in_text=bool(round_number % 2))
        async with lead:
            sessions = [await lead.create_session("ada") for _ in range(4)]
            for number in range(20):
                for session in sessions:
                    await session.set_mode(world.random.choice(MODES), by="admin", force=True)
                    await session.chat(f"go {number}")
                for session in sessions:
                    await session.wait_idle()


async def test_ungranted_calls_never_run():
    """Only ungranted calls are rejected and only granted calls run, in sufficient number."""
    world = World(6)
    await play(world, UNGRANTED)
    assert world.wrong == []
    assert world.refused >= UNGRANTED
    assert world.ran >= UNGRANTED / 10


@pytest.mark.parametrize("fault", ["no rule", "one tool too many", "the mode of the beginning"])
async def test_search_finds_a_wrong_mode_rule(monkeypatch, fault):
    """With a fault in the mode rule the search finds ungranted calls that ran."""
    whole = Modes.refusal

    def faulty(modes, call, tool, told):
        if fault == "no rule" or (fault == "one tool too many" and tool.name == TOOLS[3]):
            return None
        if fault == "the mode of the beginning":
            told = ToolContext(state={})
        return whole(modes, call, tool, told)

    monkeypatch.setattr(Modes, "refusal", faulty)
    world = World(6)
    await play(world, 1000)
    assert world.wrong
