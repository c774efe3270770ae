"""Approvals of tool calls: requests, decisions, results, withdrawals and expiry."""

import attrs
import pytest
import trio

from actgent import (
    ApprovalAlreadyDecided,
    ApprovalMismatch,
    ApprovalNotFound,
    ApprovalRequest,
    ApprovalRequired,
    Approve,
    BareAgent,
    ConfigurationError,
    Edit,
    InvalidArguments,
    NotSerializable,
    NotSuspended,
    Priority,
    Reject,
    Respond,
    ScriptedLLM,
    SessionClosed,
    Suspended,
    ToolCall,
    ToolContext,
    tool,
)
from actgent.testing import check_transcript


class Desk:
    """An agent with one tool that requires approval and one that does not. Records the calls that ran."""

    def __init__(self, *answers, **options):
        self.ran = []
        self.seen = []

        @tool(approval=True)
        async def pay(amount: int) -> str:
            """Pay an amount."""
            self.ran.append(("pay", amount))
            return f"paid {amount}"

        @tool(thread=False)
        def look(place: str) -> str:
            """Look something up."""
            self.ran.append(("look", place))
            return f"seen {place}"

        script = iter(answers)

        def answer(chat):
            assert check_transcript(chat) == []
            self.seen.append(chat.messages)
            return next(script)

        tools = [pay, look, *options.pop("tools", ())]
        self.agent = BareAgent("desk", llm=ScriptedLLM(answer), tools=tools, **options)

    def results(self):
        """Return the texts of the tool results in the last model request."""
        return [part.text for part in self.seen[-1][-1].parts]


PAY = ToolCall("pay", {"amount": 5})
LOOK = ToolCall("look", {"place": "shop"})


async def test_approved_call_runs_once(listen):
    """The session is suspended until the approval; then the tool runs exactly once and the turn continues."""
    desk = Desk([PAY], "done")
    async with desk.agent:
        session = await desk.agent.create_session("ada", "pay 5")
        received, approvals = listen(session), []
        session.on_approval(approvals.append)
        await session.wait_idle()
        assert (session.status, desk.ran, received) == ("suspended", [], [])
        (approval,) = session.approvals
        assert approvals == [approval]
        assert (approval.tool_name, approval.arguments, approval.session_id) == (
            "pay",
            {"amount": 5},
            session.id,
        )
        await session.answer(approval.id, Approve())
        await session.wait_idle()
        assert session.status == "idle"
    assert desk.ran == [("pay", 5)]
    assert [getattr(each, "content", None) or str(each) for each in received] == ["paid 5", "done"]


async def test_rejected_call_does_not_run():
    """A rejected tool does not run. The model reads the tool name, the denial and the reason."""
    desk = Desk([PAY], "as you wish")
    async with desk.agent:
        session = await desk.agent.create_session("ada", "pay 5")
        await session.wait_idle()
        await session.answer(session.approvals[0], Reject("Too risky"))
        await session.wait_idle()
    assert desk.ran == []
    (said,) = desk.results()
    assert said.startswith("Error: User denied access to tool execution")
    assert "IMPORTANT: The user has REJECTED" in said
    assert "'pay'" in said
    assert "Too risky" in said


async def test_edited_arguments_are_checked_again():
    """Invalid edited arguments are rejected and the call stays pending. Valid ones run, and the model reads the change."""
    desk = Desk([PAY], "done")
    async with desk.agent:
        session = await desk.agent.create_session("ada", "pay 5")
        await session.wait_idle()
        (approval,) = session.approvals
        with pytest.raises(InvalidArguments):
            await session.answer(approval, Edit({"amount": "five"}))
        assert session.approvals == (approval,)
        await session.answer(approval, Edit({"amount": 3}))
        await session.wait_idle()
    assert desk.ran == [("pay", 3)]
    assert desk.results() == ['paid 3\n[an approver changed the arguments to {"amount": 3}]']
    assert session.history[1].tool_calls[0].arguments == {"amount": 5}


async def test_respond_replaces_the_tool_result():
    """With `Respond` the tool does not run. A text becomes the result unchanged, other data becomes JSON."""
    desk = Desk([PAY, ToolCall("pay", {"amount": 6})], "done")
    async with desk.agent:
        session = await desk.agent.create_session("ada", "pay 5")
        await session.wait_idle()
        first, second = session.approvals
        await session.answer(first, Respond("paid in cash"))
        await session.answer(second, Respond({"cash": [1, 2]}))
        await session.wait_idle()
    assert desk.ran == []
    assert desk.results() == ["paid in cash", '{"cash": [1, 2]}']


async def test_concurrent_approvals_are_answered_in_any_order(listen):
    """Calls without approval run at once. Results follow the order of the calls after the last decision."""
    calls = [
        ToolCall("pay", {"amount": 1}),
        LOOK,
        ToolCall("pay", {"amount": 2}),
        ToolCall("pay", {"amount": 3}),
    ]
    desk = Desk(calls, "done")
    async with desk.agent:
        session = await desk.agent.create_session("ada", "pay")
        received = listen(session)
        await session.wait_idle()
        assert desk.ran == [("look", "shop")]
        one, two, three = session.approvals
        await session.answer(three, Approve())
        await session.answer(one, Reject())
        assert session.status == "suspended"
        assert session.approvals == (two,)
        await session.wait_idle()
        assert desk.ran == [("look", "shop")]
        assert received == []
        await session.answer(two, Approve())
        await session.wait_idle()
    assert sorted(desk.ran) == [("look", "shop"), ("pay", 2), ("pay", 3)]
    assert [each.status for each in received[:-1]] == ["error", "success", "success", "success"]
    assert desk.results()[1:] == ["seen shop", "paid 2", "paid 3"]


async def test_an_approval_can_be_answered_once():
    """A second, foreign, mismatched or untyped decision raises a typed error, as does a session without approvals."""
    desk = Desk([PAY], [PAY], "done", "done")
    async with desk.agent:
        session = await desk.agent.create_session("ada", "pay 5")
        other = await desk.agent.create_session("bob", "pay 5")
        quiet = await desk.agent.create_session("eve")
        await session.wait_idle()
        await other.wait_idle()
        (approval,), (theirs,) = session.approvals, other.approvals
        with pytest.raises(NotSuspended, match="not in a suspended state"):
            await quiet.answer(approval, Approve())
        with pytest.raises(ApprovalNotFound, match="invalid suspension id"):
            await other.answer(approval, Approve())
        with pytest.raises(ApprovalNotFound, match="invalid suspension id"):
            await session.answer("nonsense", Approve())
        for change in ({"arguments": {"amount": 500}}, {"tool_name": "look"}, {"call_id": "x"}):
            with pytest.raises(ApprovalMismatch):
                await session.answer(attrs.evolve(approval, **change), Approve())
        for wrong in (True, "Yes, confirmed.", None, {"approved": True}, Approve):
            with pytest.raises(ConfigurationError, match="decision"):
                await session.answer(approval, wrong)
        assert desk.ran == []
        await session.answer(approval, Approve())
        with pytest.raises(ApprovalAlreadyDecided, match="approved") as caught:
            await session.answer(approval, Reject())
        assert caught.value.decision == Approve()
        await session.wait_idle()
        with pytest.raises(ApprovalAlreadyDecided):
            await session.answer(approval, Approve())
        await desk.agent.answer(theirs.id, Reject())
        await other.wait_idle()
    assert desk.ran == [("pay", 5)]


async def test_decision_with_circular_data_leaves_the_approval_open():
    """A decision with circular data raises an error, and the approval stays open."""
    desk = Desk([PAY], "done")
    async with desk.agent:
        session = await desk.agent.create_session("ada", "pay 5")
        await session.wait_idle()
        (approval,) = session.approvals
        circle = {"amount": 1}
        circle["self"] = circle
        with pytest.raises(NotSerializable):
            await session.answer(approval, Respond(circle))
        with pytest.raises(InvalidArguments):
            await session.answer(approval, Edit(circle))
        await session.answer(approval, Respond("fine"))
        await session.wait_idle()
    assert desk.results() == ["fine"]


# --- sources of requests -------------------------------------------------------------------------


async def test_rule_of_the_agent_requests_approvals():
    """The `approval=` function of an agent decides by call, tool and session state, and sets the question."""

    def needs_person(call, _tool, context):
        if call.name == "look" and context.state.get("guarded"):
            return ApprovalRequest("Really look?")
        return False

    desk = Desk([LOOK], "done", [LOOK], "done", approval=needs_person)
    async with desk.agent:
        session = await desk.agent.create_session("ada", "look")
        await session.wait_idle()
        assert desk.ran == [("look", "shop")]
        session.state.dispatch(("guarded", True))
        await session.chat("look")
        await session.wait_idle()
        (approval,) = session.approvals
        assert approval.question == "Really look?"
        await session.answer(approval, Approve())
        await session.wait_idle()
    assert desk.ran == [("look", "shop")] * 2


async def test_decision_is_the_result_of_a_tool_that_requests_approval():
    """A tool raises `ApprovalRequired`; the decision becomes the tool result, and the tool does not run again."""
    ran = []

    @tool
    async def choose(what: str) -> str:
        """Let a person choose."""
        ran.append(what)
        raise ApprovalRequired(f"Which {what}?", form={"enum": ["red", "blue"]})

    desk = Desk([ToolCall("choose", {"what": "colour"})] * 3, "done", tools=[choose])
    async with desk.agent:
        session = await desk.agent.create_session("ada", "choose")
        await session.wait_idle()
        first, second, third = session.approvals
        assert first.question == "Which colour?"
        with pytest.raises(InvalidArguments):
            await session.answer(first, Respond("green"))
        await session.answer(first, Respond("red"))
        await session.answer(second, Approve("ok"))
        await session.answer(third, Reject("no colours"))
        await session.wait_idle()
    assert ran == ["colour"] * 3
    assert desk.results()[:2] == ["red", '{"approved": true, "reason": "ok"}']
    assert "REJECTED" in desk.results()[2]


async def test_a_tool_that_requests_approval_runs_again():
    """With `again=True` the tool runs again with the decision. If it raises again, the decision becomes the result."""
    seen = []

    @tool
    async def transfer(amount: int, context: ToolContext) -> str:
        """Transfer."""
        seen.append(context.approval)
        if amount > 10 and context.approval is None:
            raise ApprovalRequired("So much?", again=True)
        return "done"

    @tool
    async def stubborn() -> str:
        """Ask whatever is said."""
        raise ApprovalRequired("Sure?", again=True)

    calls = [
        ToolCall("transfer", {"amount": 5}),
        ToolCall("transfer", {"amount": 50}),
        ToolCall("stubborn", {}),
    ]
    desk = Desk(calls, "done", tools=[transfer, stubborn])
    async with desk.agent:
        session = await desk.agent.create_session("ada", "go")
        await session.wait_idle()
        for approval in session.approvals:
            await session.answer(approval, Approve())
        await session.wait_idle()
        assert session.status == "idle"
    assert seen == [None, None, Approve()]
    assert desk.results() == ["done", "done", '{"approved": true}']


async def test_a_tools_text_is_no_approval():
    """Only a typed decision approves a call. The text of another tool in the batch does not."""

    @tool(thread=False)
    def confirm() -> str:
        """Say something."""
        return "Yes, confirmed."

    desk = Desk([PAY, ToolCall("confirm", {})], tools=[confirm])
    async with desk.agent:
        session = await desk.agent.create_session("ada", "go")
        await session.wait_idle()
        assert session.status == "suspended"
        await session.aclose()
    assert desk.ran == []


async def test_a_handler_may_decide_immediately(listen):
    """An `on_approval` handler decides at once, and the turn continues without a suspension."""
    desk = Desk([PAY, PAY], "done")
    async with desk.agent:
        session = await desk.agent.create_session("ada")

        @session.on_approval
        async def decide(approval, session):
            await session.answer(approval, Approve())

        received = listen(session)
        await session.chat("pay twice")
        await session.wait_idle()
    assert desk.ran == [("pay", 5)] * 2
    assert str(received[-1]) == "done"


async def test_several_suspensions_in_a_turn_and_barriers():
    """An exclusive call waits for earlier pending calls and can require approval itself."""
    order = []

    @tool(exclusive=True, approval=True)
    async def close_books() -> str:
        """Close the books."""
        order.append("closed")
        return "closed"

    desk = Desk([PAY, ToolCall("close_books", {}), LOOK], [PAY], "done", tools=[close_books])
    async with desk.agent:
        session = await desk.agent.create_session("ada", "go")
        for expected in ("pay", "close_books", "pay"):
            await session.wait_idle()
            (approval,) = session.approvals
            assert approval.tool_name == expected
            await session.answer(approval, Approve())
        await session.wait_idle()
        assert session.status == "idle"
    assert desk.ran == [("pay", 5), ("look", "shop"), ("pay", 5)]
    assert order == ["closed"]


async def test_access_is_checked_again_when_the_call_starts():
    """An approved call does not run if the access rules reject it when it starts."""
    allowed = [True]

    class Guarded(BareAgent):
        def _access_rules(self):
            return [lambda *_: None if allowed[0] else "not now"]

    ran = []

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        ran.append(1)
        return "paid"

    llm = ScriptedLLM([[ToolCall("pay", {})], "done"])
    async with Guarded("desk", llm=llm, tools=[pay]) as agent:
        session = await agent.create_session("ada", "pay")
        await session.wait_idle()
        allowed[0] = False
        await session.answer(session.approvals[0], Approve())
        await session.wait_idle()
        assert session.history[2].tool_results[0].error == "not now"
    assert ran == []


# --- events during a suspension -----------------------------------------------------------


async def test_other_messages_wait_until_the_suspended_turn_ends():
    """A message to a suspended session is answered after the suspended turn; `wait_idle()` returns before that."""
    desk = Desk([PAY], "paid", "hello")
    async with desk.agent:
        session = await desk.agent.create_session("ada", "pay 5")
        replies = []
        session.on_conversation(lambda reply: replies.append(str(reply)))
        await session.wait_idle()
        await session.chat("hi")
        await session.wait_idle()
        assert (session.status, replies) == ("suspended", [])
        await session.answer(session.approvals[0], Approve())
        await session.wait_idle()
    assert replies == ["paid", "hello"]


async def test_an_urgent_message_withdraws_pending_approvals(listen):
    """An URGENT message cancels the pending calls, keeps finished results, and is then answered."""
    desk = Desk([PAY, LOOK], "at once")
    async with desk.agent:
        session = await desk.agent.create_session("ada", "pay 5")
        received = listen(session)
        await session.wait_idle()
        (approval,) = session.approvals
        await session.chat("stop", priority=Priority.URGENT)
        await session.wait_idle()
        with pytest.raises(ApprovalAlreadyDecided, match="withdrawn"):
            await session.answer(approval, Approve())
        assert session.status == "idle"
    assert desk.ran == [("look", "shop")]
    assert [(each.status, each.error or each.content) for each in received[:2]] == [
        ("cancelled", "withdrawn before the approval was decided: it did not run"),
        ("success", "seen shop"),
    ]
    assert received[2].kind == "interrupted"
    assert str(received[3]) == "at once"


@pytest.mark.parametrize("stop", ["interrupt", "aclose"])
async def test_interrupt_and_close_withdraw_pending_approvals(listen, stop):
    """`interrupt()` and `aclose()` return after the pending calls are cancelled."""
    desk = Desk([PAY])
    async with desk.agent:
        session = await desk.agent.create_session("ada", "pay 5")
        received = listen(session)
        await session.wait_idle()
        (approval,) = session.approvals
        await getattr(session, stop)()
        assert [each.status for each in received[:1]] == ["cancelled"]
        assert received[1].kind in ("interrupted", "stopped")
        with pytest.raises((ApprovalAlreadyDecided, SessionClosed)):
            await session.answer(approval, Approve())
        assert session.status == ("closed" if stop == "aclose" else "idle")
    assert desk.ran == []


async def test_exit_does_not_wait_for_approvals(listen, autojump_clock):
    """Without a journal, suspended turns end as stopped when the agent exits, without the grace period."""
    desk = Desk([PAY], grace=60)
    started = trio.current_time()
    async with desk.agent:
        session = await desk.agent.create_session("ada", "pay 5")
        received = listen(session)
        await session.wait_idle()
        await session.chat("and hello")
    assert trio.current_time() - started < 1
    assert [getattr(each, "status", None) or each.kind for each in received] == [
        "cancelled",
        "stopped",
        "stopped",
    ]
    assert desk.ran == []


async def test_suspended_session_occupies_no_slot():
    """Twenty suspended sessions occupy none of the two concurrency slots, so another session is answered."""
    desk = Desk(*[[PAY]] * 20, "hello", *["done"] * 20, max_concurrent_sessions=2)
    async with desk.agent:
        sessions = [await desk.agent.create_session("ada", "pay 5") for _ in range(20)]
        for session in sessions:
            await session.wait_idle()
        other = await desk.agent.create_session("bob", "hi")
        await other.wait_idle()
        assert other.history[-1].text == "hello"
        statistics = desk.agent._opener.running.inbox.statistics()
        assert (statistics.claimed, statistics.sessions) == (0, 0)
        for session in reversed(sessions):
            await session.answer(session.approvals[0], Approve())
        for session in sessions:
            await session.wait_idle()
            assert session.history[-1].text == "done"
    assert desk.ran == [("pay", 5)] * 20


async def test_a_call_that_waited_counts_once():
    """A call that waited for approval counts once towards the limit of identical calls."""
    desk = Desk([PAY], [PAY], [PAY], "done")
    async with desk.agent:
        session = await desk.agent.create_session("ada", "pay")
        for _ in range(3):
            await session.wait_idle()
            await session.answer(session.approvals[0], Approve())
        await session.wait_idle()
        assert session.history[-1].text == "done"
    assert desk.ran == [("pay", 5)] * 3


# --- run, resume, stream, follow -----------------------------------------------------------


async def test_resume_continues_a_suspended_run():
    """`run()` raises `Suspended` with the approval ids, and `resume()` continues to the reply."""
    desk = Desk([PAY, PAY], [PAY], "done")
    async with desk.agent:
        with pytest.raises(Suspended) as waits:
            await desk.agent.run("pay twice")
        one, two = waits.value.ids
        with pytest.raises(Suspended) as still:
            await desk.agent.resume({one: Approve()})
        assert still.value.ids == (two,)
        with pytest.raises(Suspended) as again:
            await desk.agent.resume({two: Approve()})
        (third,) = again.value.ids
        assert str(await desk.agent.resume({third: Reject()})) == "done"
        with pytest.raises(LookupError):
            await desk.agent.resume({third: Reject()})
        assert not desk.agent._opener.running.sessions
    assert desk.ran == [("pay", 5)] * 2


async def test_follow_continues_a_suspended_stream():
    """A stream ends when the turn is suspended. `follow()` delivers the rest after the decision."""
    desk = Desk([PAY, LOOK], "done")
    async with desk.agent:
        session = await desk.agent.create_session("ada")
        async with desk.agent.stream("pay", session=session) as deliveries:
            (approval,) = [each async for each in deliveries]
        assert session.status == "suspended"
        async with desk.agent.follow(session) as deliveries:
            await session.answer(approval, Approve())
            received = [type(each).__name__ async for each in deliveries]
        with pytest.raises(NotSuspended):
            async with desk.agent.follow(session):
                pass
    assert received[:2] == ["ToolResult", "ToolResult"]
    assert received[-1] == "Reply"


async def test_pending_approvals_are_listed_in_pages():
    """The list covers all sessions, ordered by session id."""
    desk = Desk(*[[PAY]] * 5)
    async with desk.agent:
        for number in range(5):
            session = await desk.agent.create_session("ada", "pay", session_id=f"s{number}")
            await session.wait_idle()
        page = await desk.agent.approvals(limit=3)
        assert [each.session_id for each in page] == ["s0", "s1", "s2"]
        page = await desk.agent.approvals(limit=3, after="s2")
        assert [each.session_id for each in page] == ["s3", "s4"]
        assert await desk.agent.approvals(after="s4") == ()


@pytest.mark.parametrize("rule", ["text", 3])
def test_approval_rule_has_to_be_a_function(rule):
    """An `approval=` value that is not a function raises `ConfigurationError`."""
    with pytest.raises(ConfigurationError, match="approval="):
        Desk(approval=rule)
