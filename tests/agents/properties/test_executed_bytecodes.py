"""Work of a turn and of a session property in relation to growing data, counted in bytecodes and independent of the machine load."""

import json
import random
import sys

import jiter
import pytest

from actgent import (
    Approve,
    BareAgent,
    Limits,
    Priority,
    ReActAgent,
    ScriptedLLM,
    Sender,
    SimpleAgent,
    StepsAgent,
    Token,
    ToolCall,
    tool,
)
from actgent.agents.steps.stream_events import FinalEvent, PlanEvent, StepEvent
from actgent.errors import ApprovalRequired
from actgent.journal.record_types import ApprovalDecisionRecord, ApprovalRequestRecord
from actgent.runtime.approval_decisions import open_approvals
from actgent.sessions.conversation import SessionConversation
from actgent.sessions.parent_and_child_sessions import SessionTree
from actgent.sessions.pending.tool_call_approvals import approval_for
from actgent.sessions.session_context import SessionContext


class Steps:
    """Counts the bytecodes that run inside the block, in all frames that are entered or resumed there."""

    def __enter__(self):
        self.count = 0
        self._before = sys.gettrace()
        sys._getframe().f_trace_opcodes = (
            True  # Python 3.12 reports opcodes only if a frame requested it before
        )
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _trace(self, frame, event, _):
        frame.f_trace_opcodes = True
        self.count += event == "opcode"
        return self._trace


async def steps_of_a_turn(session):
    await session.chat("warm up")
    await session.wait_idle()
    with Steps() as steps:
        await session.chat("hi")
        await session.wait_idle()
    return steps.count


def agent_of(*tools):
    def answer(chat):
        return ToolCall("pay", {}) if tools and chat.messages[-1].role == "user" else "ok"

    return BareAgent("tutor", llm=ScriptedLLM(answer, keep=0), tools=tools, max_concurrent_sessions=5000)


@tool(approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


async def test_turn_costs_the_same_with_many_children():
    """A turn of a session with 1,000 children takes as many bytecodes as with one child."""
    counts = []
    for children in (1, 1000):
        async with agent_of() as agent:
            session = await agent.create_session("ada")
            for _ in range(children):
                await agent.create_session("ada", parent=session)
            counts.append(await steps_of_a_turn(session))
    few, many = counts
    assert many < few * 1.02


async def test_approvals_are_cheap_without_pending_calls():
    """`session.approvals` costs the same with 1,000 descendants if none has an approval."""
    async with agent_of() as agent:
        session = await agent.create_session("ada")
        with Steps() as alone:
            assert session.approvals == ()
        for _ in range(500):
            child = await agent.create_session("ada", parent=session)
            await agent.create_session("ada", parent=child)
        with Steps() as with_children:
            assert session.approvals == ()
    assert with_children.count < alone.count + 50


async def test_approvals_are_found_and_answered_at_any_depth():
    """An approval 1,200 levels deep is found and decided. A later lookup does not search these levels."""
    async with agent_of(pay) as agent:
        top = lowest = await agent.create_session("ada")
        for _ in range(1200):
            lowest = await agent.create_session("ada", parent=lowest)
        await lowest.chat("pay")
        await lowest.wait_idle()
        [approval] = top.approvals
        assert approval.session_id == lowest.id
        await top.answer(approval, Approve())
        await lowest.wait_idle()
        assert top.approvals == ()
        with Steps() as steps:
            assert top.approvals == ()
        assert lowest.history[-1].text == "ok"
    assert steps.count < 300


def naive_approvals(context):
    own = [] if context.approvals is None else list(context.approvals.open.values())
    return [*own, *(each for child in (context.children or {}).values() for each in naive_approvals(child))]


class Tree:
    """Sessions that are opened, attached to their parents late, closed, and get approvals, at random."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.contexts = [SessionContext("0", Sender("ada"), SessionConversation(None))]
        self.orphans = []
        self.asked = 0

    def open(self):
        parent = self.random.choice(self.contexts)
        context = SessionContext(
            str(len(self.contexts)), Sender("ada"), SessionConversation(None), tree=SessionTree(parent)
        )
        self.contexts.append(context)
        if self.random.random() < 0.3:  # the session is restored before its parent
            context.open_tree().parent = None
            self.orphans.append((parent, context))
        else:
            parent.add_child(context)

    def attach(self):
        if self.orphans:
            parent, context = self.orphans.pop(self.random.randrange(len(self.orphans)))
            context.open_tree().parent = parent
            parent.add_child(context)

    def close(self):
        context = self.random.choice(self.contexts)
        if context.parent is not None and not context.children:
            context.parent.remove_child(context)

    def ask(self):
        context = self.random.choice(self.contexts)
        self.asked += 1
        call = ToolCall("pay", {}, f"call {self.asked}")
        question = approval_for(
            call,
            ApprovalRequired("?"),
            session_id=context.id,
            agent="a",
            owner="ada",
            now=0,
            timeout=float("inf"),
        )
        context.record_approval(ApprovalRequestRecord(approval=question))

    def decide(self):
        context = self.random.choice(self.contexts)
        if context.approvals is not None and context.approvals.open:
            known = self.random.choice(list(context.approvals.open))
            context.record_approval(
                ApprovalDecisionRecord(approval_id=known, decision=Approve(), by="ada", at=0.0)
            )

    def look(self):
        context = self.random.choice(self.contexts)
        found, expected = open_approvals(context), naive_approvals(context)
        assert len(found) == len(expected)
        assert {each.id for each in found} == {each.id for each in expected}

    def step(self):
        getattr(self, self.random.choice(["open", "attach", "close", "ask", "decide", "look", "look"]))()


@pytest.mark.parametrize("seed", range(20))
def test_work_index_finds_all_unfinished_sessions(seed):
    """The index finds the same approvals as a full scan."""
    tree = Tree(seed)
    for _ in range(300):
        tree.step()


async def test_a_history_is_copied_once_for_all_readers():
    """`session.history` returns the same tuple until a message is added. Earlier tuples do not change."""
    async with agent_of() as agent:
        session = await agent.create_session("ada")
        for _ in range(5):
            before = session.history
            assert session.history is before
            length = len(before)
            await session.chat("hi", priority=Priority.HIGH)
            await session.wait_idle()
            assert len(before) == length < len(session.history)
        first = session.history[0]
        count = sys.getrefcount(first)
        looks = [session.history for _ in range(100)]
        assert sys.getrefcount(first) == count
    assert all(isinstance(look, tuple) for look in looks)


# --- streamed answers ----------------------------------------------------------------------------


def answers_of(said):
    """Return for each agent class JSON in which only the shown member is long."""
    describe = {"response_purpose": "DIRECT_RESPONSE", "response_description": said, "response_content": "x"}
    return {
        SimpleAgent: {"messageType": "DIRECT_RESPONSE", "content": said},
        ReActAgent: {"question_nature": "SIMPLE", "context": {}, "primary_action": describe},
        StepsAgent: {"final_answer": said, "thought": "x"},
    }


@pytest.mark.parametrize("kind", [SimpleAgent, ReActAgent, StepsAgent])
@pytest.mark.parametrize("output", [None, str], ids=["", "output"])
async def test_streamed_json_is_parsed_in_linear_time(kind, output):
    """The parsers of streamed JSON read each character a constant number of times for any length of the answer."""
    times = []
    for size in (20_000, 80_000):
        content = "word " * (size // 5)
        text = json.dumps(answers_of(content)[kind])
        async with kind("tutor", llm=ScriptedLLM([text], chunk=4), output=output) as agent:
            with Reading() as reading:
                async with agent.stream("go") as events:
                    tokens = [event.text async for event in events if isinstance(event, Token)]
        assert "".join(tokens) == content
        times.append(reading.characters / len(text))
    short, long = times
    assert long < 2 * short


class Reading:
    """Counts the characters that `jiter.from_json` parses inside the block."""

    def __enter__(self):
        self.characters, self._known = 0, jiter.from_json

        def count(text, **options):
            self.characters += len(text)
            return self._known(text, **options)

        jiter.from_json = count
        return self

    def __exit__(self, *_):
        jiter.from_json = self._known


@pytest.mark.parametrize("name", ["final_answer", "plan", "tool_thought"])
async def test_partial_step_events_have_bounded_total_size(name):
    """Each event has the text so far, so long texts get fewer events. The last event has the full text."""
    text = "word " * 8_000
    answer = {"tool_calls": [{"tool_name": "x"}], name: text} if name == "tool_thought" else {name: text}
    script = [json.dumps(answer), json.dumps({"final_answer": "done"})]
    agent = StepsAgent("tutor", llm=ScriptedLLM(script, chunk=4, repeat=True))
    async with agent, agent.stream("go", limits=Limits(model_calls=2)) as events:
        seen = [event async for event in events if isinstance(event, (PlanEvent, StepEvent, FinalEvent))]
    texts = [getattr(event, "plan", "") or getattr(event, "text", "") or event.thought for event in seen]
    held = sum(map(len, texts))
    assert text in texts
    assert held < 100 * len(text) + 4096**2
