"""A session with an unfinished turn whose agent differs at the next start."""

import json

import pytest
import trio
import trio.testing

from actgent import BareAgent, Limits, Mode, Modes, ReActAgent, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.agents.session_replay import preview_restart
from actgent.approvals import Approve, Reject
from actgent.journal.in_memory_journal import MemoryJournal

PUT = ToolCall("put", {"order": "7"})
LOOK = ToolCall("look", {"order": "7"})
REACT_PUT = json.dumps(
    {
        "primary_action": {
            "response_purpose": "TOOL_INVOCATION",
            "response_content": {"name": "put", "parameters": {"order": "7"}},
        }
    }
)


def putting(ran, **options):
    @tool(name="put", **{"effect": "idempotent", **options})
    async def put(order: str) -> str:
        """Store an order permanently."""
        ran.append(order)
        return "put"

    return put


@tool(effect="pure")
async def look(order: str) -> str:
    """Look at an order."""
    return "seen"


async def _begin(journal, *, answers, kind=BareAgent, **options):
    """A process that ends while `put` runs."""
    with trio.CancelScope() as scope:

        @tool(effect="idempotent")
        async def put(order: str) -> str:
            """Store an order permanently."""
            scope.cancel()
            await trio.sleep_forever()

        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(kind("shop", llm=ScriptedLLM(answers), tools=[put, look], **options))
            session = await agent.create_session("ada", "go", session_id="s")
            await session.wait_idle()


async def _go_on(journal, agent, *, decision=None):
    """Run the next process. Return the results that handlers and model received."""
    received = []
    agent.on_session(lambda session: session.on_tool_result(received.append))
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(agent)
        session = await agent.open_session("s")
        await session.wait_idle()
        for approval in await agent.approvals():
            await agent.answer(approval, decision)
        await session.wait_idle()
        shown = [result for message in session.history for result in message.tool_results]
    assert received == shown
    return {result.tool_name: result.status for result in received}


def changed_schema(ran):
    @tool(name="put", effect="idempotent")
    async def put(order_id: int) -> str:
        """Store an order permanently."""
        ran.append(order_id)
        return "put"

    return put


def bare(*tools, **options):
    return BareAgent("shop", llm=ScriptedLLM(["done"], repeat=True), tools=tools, **options)


UPGRADES = {
    "schema": lambda ran: bare(changed_schema(ran), look),
    "approval": lambda ran: bare(putting(ran, approval=True), look),
    "agent's approval": lambda ran: bare(putting(ran), look, approval=lambda call, *_: call.name == "put"),
    "mode": lambda ran: bare(putting(ran), look, modes=Modes(Mode("r", ["look"]), ready=False)),
    "tool gone": lambda _: bare(look),
    "once": lambda ran: bare(putting(ran, effect="once"), look),
}


@pytest.mark.parametrize("upgrade", UPGRADES)
async def test_a_started_call_without_idempotency_has_an_unknown_outcome(autojump_clock, upgrade):
    """No approval is requested for a call that may have run."""
    ran = []
    async with MemoryJournal().running() as journal:
        await _begin(journal, answers=[[PUT, LOOK]])
        preview = await preview_restart(UPGRADES[upgrade](ran), "s", await journal.load("s"))
        received = await _go_on(journal, UPGRADES[upgrade](ran), decision=Reject("no"))
    assert len(preview.changes) == 1
    assert "'put': outcome unknown" in preview.changes[0]
    assert received == {"put": "outcome_unknown", "look": "success"}
    assert ran == []


async def test_a_started_call_after_a_lowered_limit_has_an_unknown_outcome(autojump_clock):
    """The lower limit ends the turn after the upgrade."""
    async with MemoryJournal().running() as journal:
        await _begin(journal, answers=[[PUT, PUT]], parallel_tools=True)
        agent = bare(putting([]), look, limits=Limits(max_repeated_calls=1))
        received = await _go_on(journal, agent)
    assert received["put"] == "outcome_unknown"


async def test_started_call_of_an_interrupted_turn_has_an_unknown_outcome(autojump_clock):
    """An urgent message that precedes the recovered turn ends this turn before its call runs again."""
    ran = []
    async with MemoryJournal().running() as journal:
        await _begin(journal, answers=[[PUT]])
        agent = bare(putting(ran))
        statuses = []

        @agent.on_session
        async def interrupt(session):
            session.on_tool_result(lambda result: statuses.append(result.status))
            await session.chat("stop", priority="URGENT", enqueue_timeout=0)

        async with open_runtime(journal=journal) as runtime:
            await runtime.start(agent)
            session = await agent.open_session("s")
            await session.wait_idle()
    assert ran == []
    assert statuses == ["outcome_unknown"]


async def test_started_call_runs_again_if_its_effect_allows(autojump_clock):
    """The tool is unchanged."""
    ran = []
    async with MemoryJournal().running() as journal:
        await _begin(journal, answers=[[PUT, LOOK]])
        preview = await preview_restart(bare(putting(ran), look), "s", await journal.load("s"))
        assert preview.changes == ()
        assert preview.resumes[0] == "tool 'put' runs again"
        received = await _go_on(journal, bare(putting(ran), look))
    assert received == {"put": "success", "look": "success"}
    assert ran == ["7"]


@pytest.mark.parametrize("effect", ["once", "idempotent"])
async def test_started_call_in_text_has_an_unknown_outcome_under_a_new_protocol(autojump_clock, effect):
    """The model reads that the outcome is unknown, and the JSON of the call is not an answer."""
    ran, texts = [], []
    async with MemoryJournal().running() as journal:
        await _begin(journal, answers=[REACT_PUT], kind=ReActAgent)
        preview = await preview_restart(bare(putting(ran, effect=effect)), "s", await journal.load("s"))
        assert "not read as calls: outcome unknown" in preview.changes[0]
        agent = bare(putting(ran, effect=effect))
        agent.on_session(lambda session: session.on_conversation(lambda reply: texts.append(reply.text)))
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(agent)
            session = await agent.open_session("s")
            await session.wait_idle()
            notes = [message.text for message in session.history if message.sender.kind == "system"]
    assert texts == ["done"]
    assert ran == []
    assert len(notes) == 1
    assert "not known" in notes[0]


async def _leave(journal, *answers, content="go", queued=0, **options):
    """A process that ends with a session in the middle: at a model's call, or where people are waited for."""
    requested = trio.Event()

    async def answer(chat):
        if answers and len(llm.chats) <= len(answers):
            return answers[len(llm.chats) - 1]
        requested.set()
        return await trio.sleep_forever()

    llm = ScriptedLLM(answer)
    with trio.CancelScope() as scope:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("shop", llm=llm, **options))
            agent.on_session(lambda session: session.on_approval(lambda _: requested.set()))
            session = await agent.create_session("ada", content, session_id="s")
            await requested.wait()
            for _ in range(queued):
                await session.chat("and then?")
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.sleep_forever()


async def test_a_turn_resumes_with_another_model_prompt_or_protocol(autojump_clock):
    """The pending model call is made, and queued messages are answered."""
    async with MemoryJournal().running() as journal:
        await _leave(journal, queued=2)
        agent = BareAgent("shop", llm=ScriptedLLM(["new"], repeat=True), role="somebody else")
        preview = await preview_restart(agent, "s", await journal.load("s"))
        await _go_on(journal, agent)
    assert preview.changes == ()
    assert preview.resumes == ("the model is asked", "2 waiting messages are answered")


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([], "fails when approved: tool 'put' not found"),
        ([changed_schema([])], "fails when approved: Invalid arguments"),
        ([putting([])], "waits for an approval"),
    ],
)
async def test_open_approval_can_be_decided_after_an_upgrade(autojump_clock, tools, says):
    """An approved call that cannot run is an error without an effect."""
    async with MemoryJournal().running() as journal:
        await _leave(journal, [PUT], tools=[putting([], approval=True)])
        preview = await preview_restart(bare(*tools), "s", await journal.load("s"))
        received = await _go_on(journal, bare(*tools), decision=Approve())
    assert says in (*preview.changes, *preview.resumes)[0]
    assert bool(preview.changes) is ("fails" in says)
    assert received == {"put": "error" if "fails" in says else "success"}
