"""`compare_decisions` forks recorded sessions at each decision.

Tool calls get recorded results, and no tool runs.
"""

import json

import pytest
import trio

from actgent import (
    Approve,
    BareAgent,
    ConfigurationError,
    ModelRequest,
    ModelResponse,
    RateLimited,
    ReActAgent,
    ScriptedLLM,
    SimpleAgent,
    Text,
    ToolCall,
    Usage,
    delegation_tools,
    open_runtime,
    tool,
)
from actgent.agents.session_replay import Recording
from actgent.evaluation import DecisionVariant, compare_decisions, decisions_to_html
from actgent.messages import ToolResult

LOOKUP, REFUND = ToolCall("lookup", {"order": 7}), ToolCall("refund", {"order": 7, "euros": 8})
SCRIPT = [LOOKUP, REFUND, "I refunded 8 euros."]


class Shop:
    """The tools of a clerk, and the calls that ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool(effect="pure")
        async def lookup(order: int) -> str:
            """Find an order."""
            self.ran.append("lookup")
            return f"order {order}: 8 euros"

        @tool(effect="once")
        async def refund(order: int, euros: int) -> str:
            """Refund an order."""
            self.ran.append("refund")
            return f"refunded {euros} euros"

        self.tools = [lookup, refund]

    def clerk(self, script, *, kind=BareAgent, **options):
        """Return an agent whose model answers from a script."""
        return kind("clerk", llm=ScriptedLLM(script), tools=self.tools, **options)


async def record(agent, *texts: str, **options) -> Recording:
    """Return the session of an agent that received these texts."""
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", session_id="s", **options)
        for text in texts or ("Refund order 7.",):
            await session.chat(text)
            await session.wait_idle()
        _, records = await runtime.read_session("s")
    return Recording("s", agent.name, records)


async def compare(recording, agent, model=None, **options):
    """Return the report of one variant, named `new`."""
    llm = ScriptedLLM(model) if isinstance(model, list) else model
    return await compare_decisions([recording], {"new": DecisionVariant(agents=agent, model=llm, **options)})


def kinds(report) -> list[str]:
    return [decision.kind for decision in report.decisions]


async def test_each_decision_is_asked_with_the_recorded_conversation():
    """With a model that decides the same, no tool runs, and the usage of both models is counted."""
    shop = Shop()
    paid = ModelResponse(parts=(Text("Done."),), usage=Usage(input_tokens=10, output_tokens=2, cost=0.5))
    recording = await record(shop.clerk([LOOKUP, REFUND, paid]))
    shop.ran.clear()
    seen: list[ModelRequest] = []

    def answer(chat: ModelRequest):
        seen.append(chat)
        usage = Usage(input_tokens=4, cost=0.25)
        parts = ((LOOKUP,), (REFUND,), (Text("Done."),))[len(seen) - 1]
        return ModelResponse(parts=parts, stop="end" if len(seen) == 3 else "tool_calls", usage=usage)

    report = await compare(recording, shop.clerk([]), ScriptedLLM(answer))
    assert kinds(report) == ["same", "same", "same"]
    assert [len(chat.messages) for chat in seen] == [1, 3, 5]
    assert [each.status for m in seen[-1].messages for each in m.parts if isinstance(each, ToolResult)] == [
        "success",
        "success",
    ]
    row = report.row("new")
    assert (row.decisions, row.calls, row.rate, row.unrecorded) == (3, 3, 1.0, 0)
    assert (row.usage.input_tokens, row.usage.cost) == (12, 0.75)
    assert (report.recorded_usage.input_tokens, report.recorded_usage.cost) == (10, 0.5)
    assert report.meets(1.0)
    assert shop.ran == []


async def test_a_call_without_recorded_result_is_reported_and_never_runs():
    """The fork ends at the call. The text shows the recorded and the new call."""
    shop = Shop()
    recording = await record(shop.clerk(SCRIPT))
    shop.ran.clear()
    wrong = ToolCall("refund", {"order": 7, "euros": 80})
    report = await compare(recording, shop.clerk([]), [LOOKUP, wrong, "I  refunded 8 euros."])
    assert kinds(report) == ["same", "calls", "same"]  # differences of white space are not shown
    decision = report.decisions[1]
    assert [call.arguments["euros"] for call in decision.unrecorded] == [80]
    assert decision.text.startswith(
        "refund(order=7, euros=80) instead of refund(order=7, euros=8); refund(order=7, euros=80) has no"
    )
    assert (report.row("new").unrecorded, report.row("new").calls) == (1, 3)
    assert not report.meets(0.7)
    assert report.meets(0.6)
    assert shop.ran == []


async def test_a_fork_continues_with_recorded_results():
    """The model makes recorded calls in another order. The fork reaches its reply."""
    shop = Shop()
    recording = await record(shop.clerk(SCRIPT))
    shop.ran.clear()

    def answer(chat: ModelRequest):
        results = [each for m in chat.messages for each in m.parts if isinstance(each, ToolResult)]
        if not results:
            return [REFUND, LOOKUP]
        return f"The results: {', '.join(each.text for each in results)}"

    report = await compare(recording, shop.clerk([]), ScriptedLLM(answer))
    assert kinds(report) == ["calls", "outcome", "words"]
    end = report.decisions[0].end
    assert end.text == "The results: refunded 8 euros, order 7: 8 euros"
    assert (end.model_calls, end.unrecorded, end.error) == (1, (), "")
    assert report.row("new").calls == 4
    assert shop.ran == []


async def test_the_result_of_an_effect_is_used_once_in_a_fork():
    """A second refund would be a second effect.

    A lookup has no effect, so its recorded result is used again.
    """
    shop = Shop()
    recording = await record(shop.clerk(SCRIPT))
    again = ScriptedLLM(lambda _: [REFUND, LOOKUP, LOOKUP, REFUND])
    report = await compare(recording, shop.clerk([]), again)
    for decision in report.decisions[:2]:
        assert [call.name for call in decision.unrecorded] == ["refund"]
        assert len(decision.end.calls) == 4
    assert [call.name for call in report.decisions[2].unrecorded] == ["refund", "refund"]


async def test_a_result_of_another_turn_is_not_used_for_an_effect():
    """The second refund of the session belongs to the second message."""
    shop = Shop()
    later = ToolCall("refund", {"order": 9, "euros": 9})
    recording = await record(shop.clerk(["Which order?", later, "Done."]), "Refund!", "Order 9.")
    report = await compare(recording, shop.clerk([]), [later, later, "Done."])
    assert kinds(report) == ["outcome", "same", "same"]
    assert len(report.decisions[0].unrecorded) == 1


async def test_a_fork_that_never_ends_is_cut():
    """The model of the fork looks up the same order repeatedly."""
    shop = Shop()
    recording = await record(shop.clerk(SCRIPT))
    orders = iter(range(1000))

    def answer(chat: ModelRequest):
        return [LOOKUP] * (2 + next(orders) % 2)

    report = await compare(recording, shop.clerk([]), ScriptedLLM(answer))
    end = report.decisions[0].end
    assert end.error
    assert 0 < end.model_calls <= 20


async def test_answers_that_fail_or_cannot_be_used(autojump_clock):
    """Cases: the error of a call, a slow call, a refusal, and text that the protocol cannot read."""
    shop = Shop()
    recording = await record(shop.clerk(["One.", "Two.", "Three.", "Four."]), "1", "2", "3", "4")
    number = iter(range(4))

    async def answer(chat: ModelRequest):
        match next(number):
            case 0:
                raise RateLimited("too many requests")
            case 1:
                await trio.sleep(10_000)
            case 2:
                return ModelResponse(parts=(Text("I cannot."),), stop="refusal")
        return ""

    report = await compare(recording, shop.clerk([]), ScriptedLLM(answer))
    assert kinds(report) == ["failed", "failed", "outcome", "outcome"]
    assert "too many requests" in report.decisions[0].text
    assert "no answer within 120 s" in report.decisions[1].text
    assert "the model declined to answer: I cannot." in report.decisions[2].text
    assert "the answer was empty" in report.decisions[3].text


def written(message_type: str, content: object) -> str:
    return json.dumps({"messageType": message_type, "content": content})


async def test_calls_in_text_are_read_by_the_protocol():
    """The first text differs but contains the same call. The later answers are those of the recording."""
    shop = Shop()
    call = written("TOOL_CALL", {"toolName": "lookup", "arguments": {"order": 7}})
    agent = shop.clerk([], kind=SimpleAgent)
    script = agent.protocol.script("Found.")
    recording = await record(shop.clerk([call, *script], kind=SimpleAgent), "Find order 7.")
    answers = [each for each in recording.model_answers if each.message.tool_calls or each.stop]
    assert len(answers) >= 2
    shop.ran.clear()
    report = await compare(recording, agent, [f"Sure:\n```json\n{call}\n```", *script])
    assert kinds(report)[0] == "same"
    assert kinds(report)[-1] == "same"
    assert shop.ran == []


async def test_react_agent():
    """Parts of a structured answer that decide nothing are not compared."""
    shop = Shop()
    agent = shop.clerk([], kind=ReActAgent)
    script = agent.protocol.script("Hello.")
    recording = await record(shop.clerk(list(script), kind=ReActAgent), "Hi")
    report = await compare(recording, agent, list(script))
    assert set(kinds(report)) == {"same"}


async def test_approved_calls_are_answered_from_the_record():
    """No approval is requested again. A call that was never approved has no result."""
    ran = []

    @tool(approval=True, effect="once")
    async def pay(euros: int) -> str:
        """Pay."""
        ran.append(euros)
        return f"paid {euros}"

    def clerk(script):
        return BareAgent("clerk", llm=ScriptedLLM(script), tools=[pay])

    agent = clerk([ToolCall("pay", {"euros": 5}), "Paid."])
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", "Pay.", session_id="s")
        await session.wait_idle()
        (approval,) = session.approvals
        await session.answer(approval.id, Approve())
        await session.wait_idle()
        _, records = await runtime.read_session("s")
    recording = Recording("s", "clerk", records)
    assert ran == [5]
    same = await compare(recording, clerk([]), [ToolCall("pay", {"euros": 5}), "Paid."])
    assert kinds(same) == ["same", "same"]
    more = await compare(recording, clerk([]), [ToolCall("pay", {"euros": 6}), "Paid."])
    assert [call.arguments for call in more.decisions[0].unrecorded] == [{"euros": 6}]
    twice = await compare(recording, clerk([]), ScriptedLLM(lambda _: [ToolCall("pay", {"euros": 5})] * 2))
    assert len(twice.decisions[0].unrecorded) == 1
    assert ran == [5]


async def test_child_sessions_are_compared_with_their_own_agent():
    """The call of the parent has its recorded result. The other agent is not started for it."""
    ask = ToolCall("delegate_to_agent", {"agent": "helper", "task": "The price of order 7?"})

    def team(main, helper):
        tools = delegation_tools(allowed=["helper"])
        return BareAgent("clerk", llm=ScriptedLLM(main), tools=tools), BareAgent(
            "helper", llm=ScriptedLLM(helper), role="a helper"
        )

    agent, helper = team([ask, "8 euros."], ["8"])
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(helper)
        await runtime.start(agent)
        session = await agent.create_session("ada", "Price?", session_id="s")
        await session.wait_idle()
        journal = runtime.journal
        recordings = [
            Recording(each.session_id, each.agent, await journal.load(each.session_id, agent=each.agent))
            for each in await journal.sessions(None)
        ]
    assert {each.agent for each in recordings} == {"clerk", "helper"}

    def answer(chat: ModelRequest):
        if not chat.tools:
            return "nine"
        return "8 euros." if len(chat.messages) > 1 else ask

    variant = DecisionVariant(agents=team([], []), model=ScriptedLLM(answer))
    report = await compare_decisions(recordings, {"new": variant})
    assert {(each.agent, each.kind) for each in report.decisions} == {("clerk", "same"), ("helper", "words")}
    assert report.sessions == 2


async def test_code_that_no_longer_reaches_a_decision():
    """The decisions before the difference are compared.

    The remaining decisions are counted with the reason.
    """
    shop = Shop()
    recording = await record(shop.clerk(SCRIPT))

    class Eager(BareAgent):
        """An agent that answers after one model call."""

    agent = Eager("clerk", llm=ScriptedLLM([]), tools=shop.tools, limits=None)
    agent.protocol.max_iterations = 1
    try:
        report = await compare(recording, agent, SCRIPT)
    finally:
        agent.protocol.max_iterations = None
    assert kinds(report) == ["same"]
    (lost,) = report.unreached
    assert (lost.count, lost.session_id) == (2, "s")
    assert lost.reason
    row = report.row("new")
    assert (row.decisions, row.unreached) == (3, 2)
    assert row.rate == pytest.approx(1 / 3)


async def test_prompts_of_the_session_of_a_turn_and_of_the_variant():
    """The session keeps its prompt, and the turn keeps its options, unless the variant replaces the prompt."""
    shop = Shop()
    agent = shop.clerk(["One.", "Two."], system_prompt="You are a clerk.")
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", session_id="s", prompt="Be polite.")
        await agent.run("1", session=session)
        await agent.run("2", session=session, temperature=0.5)
        _, records = await runtime.read_session("s")
    seen: list[ModelRequest] = []

    def answer(chat: ModelRequest):
        seen.append(chat)
        return "One."

    recording = Recording("s", "clerk", records)
    fresh = shop.clerk([], system_prompt="You are another clerk.")
    await compare(recording, fresh, ScriptedLLM(answer))
    await compare(recording, fresh, ScriptedLLM(answer), prompt="Be short.")
    assert [chat.system for chat in seen[:2]] == ["You are a clerk.\n\nBe polite."] * 2
    assert [chat.system for chat in seen[2:]] == ["Be short."] * 2
    assert [chat.temperature for chat in seen] == [None, 0.5] * 2


async def test_offline_asks_no_model():
    """Each decision is answered as recorded, so only the code is checked."""
    shop = Shop()
    recording = await record(shop.clerk(SCRIPT))
    report = await compare(recording, shop.clerk([]), is_offline=True)
    assert kinds(report) == ["same"] * 3
    assert report.row("new").calls == 0
    assert report.meets(1.0)


async def test_finished_sessions_are_passed_on_before_a_cancellation():
    """The model of the second session hangs."""
    shop = Shop()
    first = await record(shop.clerk(["One."]), "1")
    second = await record(shop.clerk(["Two."]), "2")
    reports, hangs = [], trio.Event()

    async def answer(chat: ModelRequest):
        if chat.messages[0].parts[0].text == "2":
            hangs.set()
            await trio.sleep_forever()
        return "One."

    variants = {"new": DecisionVariant(agents=shop.clerk([]), model=ScriptedLLM(answer))}
    async with trio.open_nursery() as nursery:

        async def run():
            await compare_decisions([first, second], variants, concurrency=1, on_session=reports.append)

        nursery.start_soon(run)
        await hangs.wait()
        nursery.cancel_scope.cancel()
    assert [kinds(each) for each in reports] == [["same"]]


async def test_sessions_are_compared_concurrently():
    """Two models are called concurrently for two sessions."""
    shop = Shop()
    recordings = [await record(shop.clerk(SCRIPT)) for _ in range(4)]
    now = maximum = 0

    async def answer(chat: ModelRequest):
        nonlocal now, maximum
        now += 1
        maximum = max(maximum, now)
        await trio.testing.wait_all_tasks_blocked()
        now -= 1
        return "Hm."

    variants = {"new": DecisionVariant(agents=shop.clerk([]), model=ScriptedLLM(answer))}
    report = await compare_decisions(recordings, variants, concurrency=2)
    assert maximum == 2
    assert (report.sessions, len(report.decisions)) == (4, 12)


async def test_wrong_arguments():
    """Cases: no variants, a concurrency of 0, and a variant without the agent of the session."""
    shop = Shop()
    recording = await record(shop.clerk(["One."]))
    variant = DecisionVariant(agents=BareAgent("other", llm=ScriptedLLM([])))
    with pytest.raises(ConfigurationError, match="at least one variant"):
        await compare_decisions([recording], {})
    with pytest.raises(ConfigurationError, match="not 1 and 0"):
        await compare_decisions([recording], {"new": variant}, concurrency=0)
    with pytest.raises(ConfigurationError, match="agents of the sessions are: clerk"):
        await compare_decisions([recording], {"new": variant})


async def test_reports_contain_each_difference_and_escape_texts():
    """The page loads no external resource."""
    shop = Shop()
    recording = await record(shop.clerk([LOOKUP, "<b>old</b>"]))
    wrong = ToolCall("refund", {"order": 1, "euros": 2})
    report = await compare(recording, shop.clerk([]), [wrong, "<i>new</i>"])
    page = decisions_to_html(report)
    assert "&lt;i&gt;new&lt;/i&gt;" in page
    assert "<i>" not in page
    assert "refund(order=1, euros=2)" in page
    assert not any(word in page for word in ("http://", "https://", "src=", "<script", "@import"))
    found = json.loads(report.to_json())
    assert found["format"] == "actgent-decisions 1"
    first, second = found["decisions"]
    assert first["difference"] == "calls"
    assert first["fork"]["unrecorded"] == [{"name": "refund", "arguments": {"order": 1, "euros": 2}}]
    assert (second["record"] > first["record"], second["answered"]["text"]) == (True, "<i>new</i>")
