"""`PlanAgent`: the plan protocol in the core, with tools, failures and options of sessions."""

import json

import attrs
import pytest
import trio

from actgent import (
    Agent,
    AgentCore,
    BareAgent,
    ConfigurationError,
    Instruction,
    LimitReached,
    Limits,
    ModelResponse,
    ParseError,
    PlanAgent,
    ProviderUnavailable,
    ReActAgent,
    Reply,
    ScriptedLLM,
    SimpleAgent,
    SlidingWindow,
    StepsAgent,
    Suspended,
    Text,
    Token,
    ToolCall,
    Truncation,
    Usage,
    tool,
)
from actgent.protocols.plan import Planning, plan_of

STEP = {"id": "step_1", "description": "look it up"}
PLAN = json.dumps({"intent": "know", "plan": "look", "todoList": [STEP]})
DIRECT = json.dumps({"intent": "greet", "plan": "answer"})
CONTENT = json.dumps({"content": "it is 42"})


def calls(*named, **more):
    return json.dumps({"toolCalls": [{"toolName": name, "arguments": args} for name, args in named]} | more)


@tool(effect="pure")
def search(query: str) -> str:
    """Search the web."""
    return f"found {query}"


@tool(effect="pure")
def offline(query: str) -> str:
    """Search a service that is offline."""
    raise ConnectionError("no net")


@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@pytest.fixture
def plan_agent(make):
    def build(*answers, **options):
        options = {"tools": [search, offline, add]} | options
        return make(*answers, kind=PlanAgent, **options)

    return build


# --- one request: cases 32 to 36 -------------------------------------------------------------------


async def test_request_limits_replace_the_agent_limits_once(plan_agent):
    """The result reports the limit. The next request uses the agent's limits."""
    agent, llm = plan_agent(PLAN, PLAN, CONTENT, CONTENT, "It is 42.", limits=Limits(model_calls=9))
    async with agent:
        session = await agent.create_session("ada")
        result = await agent.process("What is it?", session=session, limits=Limits(model_calls=1))
        assert (result.status, type(result.error), result.error.value) == ("error", LimitReached, 1)
        assert len(llm.chats) == 1
        assert (await agent.process("What is it?")).status == "success"


@pytest.mark.parametrize("native", [True, False])
async def test_case_36_plain_flow_takes_one_call_per_stage(plan_agent, native):
    """The stages are one plan call, one batch of tools, and one synthesis call."""
    wish = [ToolCall("search", {"query": "a"}), ToolCall("add", {"a": 1, "b": 2})]
    text = calls(("search", {"query": "a"}), ("add", {"a": 1, "b": 2}), intent="i", plan="p")
    agent, _ = plan_agent(wish if native else text, "It is 3.")
    async with agent:
        result = await agent.process("What is it?")
    assert str(result) == "It is 3."
    assert (result.status, result.model_calls, result.tool_calls, result.error) == ("success", 2, 2, None)


async def test_case_36_result_has_calls_tokens_and_time(autojump_clock):
    """The result counts all calls of all stages of this request only."""

    @tool(effect="pure")
    async def wait(seconds: int) -> str:
        """Wait."""
        await trio.sleep(seconds)
        return "waited"

    def answer(*parts, tokens):
        text = [Text(part) if isinstance(part, str) else part for part in parts]
        return ModelResponse(parts=tuple(text), usage=Usage(input_tokens=tokens, output_tokens=1))

    waiting = [ToolCall("wait", {"seconds": 2}), ToolCall("wait", {"seconds": 3})]
    script = [answer(PLAN, tokens=10), answer(*waiting, tokens=20), answer(waiting[0], tokens=40)]
    script += [answer(CONTENT, tokens=80), answer("It is 42.", tokens=160)]
    llm = ScriptedLLM(script * 2)
    async with PlanAgent("tutor", llm=llm, tools=[wait]) as agent:
        session = await agent.create_session("ada")
        results = [await agent.process("q", session=session) for _ in range(2)]
    for result in results:
        assert (result.model_calls, result.tool_calls) == (5, 3)
        assert result.usage == Usage(input_tokens=310, output_tokens=5)
        assert result.seconds == pytest.approx(5)


async def test_case_32_synthesis_sees_a_failed_tool(plan_agent):
    """The other tools run, and the answer can mention the error."""
    agent, llm = plan_agent(calls(("offline", {"query": "a"}), ("search", {"query": "b"})), "Half of it.")
    async with agent:
        result = await agent.process("What is it?")
    assert (result.status, result.reply.message_type, result.error) == ("partial", "partial", None)
    failed, found = result.tool_results
    assert (failed.name, failed.arguments, failed.status) == ("offline", {"query": "a"}, "error")
    assert "no net" in failed.error
    assert (found.name, found.arguments, found.status) == ("search", {"query": "b"}, "success")
    assert (found.content, found.error) == ("found b", None)
    seen = llm.chats[1].messages[-2].parts[0].text
    assert "no net" in seen
    assert "found b" in seen


async def test_case_33_failing_model_is_reported(plan_agent, listen):
    """The handlers receive the failure, and the result has its reason."""
    error = ProviderUnavailable("down")
    agent, _ = plan_agent(error)
    async with agent:
        session = await agent.create_session("ada")
        received = listen(session)
        result = await agent.process("q", session=session)
    assert (result.status, result.error, result.reply, result.plan) == ("error", error, None, None)
    assert [failure.error for failure in received] == [error]
    assert result.turn_id == received[0].message_id


async def test_an_unreadable_plan_is_an_error(plan_agent):
    """Without a plan there is no synthesis. The plan is requested again, and then the turn fails."""
    agent, llm = plan_agent("no plan", '{"todoList": [', "[]")
    async with agent:
        result = await agent.process("q")
    assert (result.status, type(result.error), result.model_calls) == ("error", ParseError, 3)
    assert "truncated" in llm.chats[2].messages[-2].parts[0].text


async def test_case_34_history_and_events(plan_agent, listen):
    """The history has the user's message and then the answers.

    Each event is delivered once: intent and plan, then a result for each call.
    """
    agent, _ = plan_agent(PLAN, ToolCall("search", {"query": "a"}), CONTENT, "It is 42.")
    async with agent:
        session = await agent.create_session("ada")
        received = listen(session)
        await agent.process("q", session=session)
        history = session.history
    assert [getattr(h, "name", getattr(h, "tool_name", "reply")) for h in received] == [
        "intent",
        "plan",
        "item",
        "search",
        "item",
        "reply",
    ]
    assert (history[0].sender.kind, history[0].text) == ("user", "q")
    assert (history[-1].sender.kind, history[-1].text) == ("assistant", "It is 42.")


async def test_case_35_all_results_have_the_message_id(plan_agent):
    """All results of a request have the id of its message, which is generated if the caller passes none."""
    agent, _ = plan_agent(PLAN, CONTENT, "It is 42.")
    async with agent:
        session = await agent.create_session("ada")
        result = await agent.process("q", session=session)
        first, *rest = session.history
    assert result.turn_id == first.id
    assert {message.correlation_id for message in rest} == {first.id}


async def test_a_failed_step_is_partial(plan_agent):
    """If a required tool of an item fails, the reply is partial, and dependent items do not run."""
    items = [
        STEP | {"requiredTools": ["offline"]},
        {"description": "then", "dependencies": ["step_1"]},
        {"id": "step_3", "description": "also", "requiredTools": ["search"]},
    ]
    again = json.dumps({"content": "cannot"})
    wish, found = ToolCall("offline", {"query": "a"}), ToolCall("search", {"query": "b"})
    script = [json.dumps({"todoList": items}), wish, again, again, again, found, again, "Half of it."]
    agent, llm = plan_agent(*script)
    async with agent:
        result = await agent.process("q")
    assert result.status == result.reply.message_type == result.plan.status == "partial"
    assert [item.status for item in result.plan.items] == ["failed", "cancelled", "completed"]
    assert "[-] step_2" in llm.chats[-1].messages[-1].parts[0].text


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("count", [1, 4])
async def test_turn_with_only_failed_tools_is_an_error(plan_agent, native, count):
    """The answer exists nevertheless, and the error names the tools."""
    queries = [str(n) for n in range(count)]
    wish = [ToolCall("offline", {"query": query}) for query in queries]
    text = calls(*[("offline", {"query": query}) for query in queries], intent="i", plan="p")
    agent, _ = plan_agent(wish if native else text, "Could not look it up.")
    async with agent:
        result = await agent.process("q")
    assert (result.status, result.reply.message_type) == ("error", "error")
    assert str(result) == "Could not look it up."
    assert "offline" in str(result.error)
    assert "no net" in str(result.error)
    assert [each.arguments for each in result.tool_results] == [{"query": query} for query in queries]
    assert {each.status for each in result.tool_results} == {"error"}


async def test_item_with_only_a_failed_tool_is_an_error(plan_agent):
    """This holds also if the model calls the item completed."""
    agent, _ = plan_agent(PLAN, ToolCall("offline", {"query": "a"}), CONTENT, "I guess 42.")
    async with agent:
        result = await agent.process("q")
    assert (result.status, result.plan.status) == ("error", "error")


async def test_a_completed_reasoning_step_makes_failed_tools_partial(plan_agent):
    """The reasoning step was completed without tools."""
    items = [STEP, {"description": "think", "stepType": "reasoning"}]
    plan = json.dumps({"todoList": items})
    agent, _ = plan_agent(plan, ToolCall("offline", {"query": "a"}), CONTENT, CONTENT, "So.")
    async with agent:
        assert (await agent.process("q")).status == "partial"


async def test_repaired_call_is_a_success(plan_agent):
    """An earlier call of the same tool failed."""
    wrong, right = ToolCall("add", {"a": "x", "b": 1}), ToolCall("add", {"a": 1, "b": 1})
    agent, _ = plan_agent(PLAN, wrong, right, CONTENT, "It is 2.")
    async with agent:
        result = await agent.process("q")
    assert (result.status, [each.status for each in result.tool_results]) == ("success", ["error", "success"])


async def test_the_result_names_session_owner_and_turn(plan_agent):
    """The result has the ids of ART's metadata."""
    agent, _ = plan_agent(DIRECT, "Hello.")
    async with agent:
        session = await agent.create_session("ada", session_id="t1")
        result = await agent.process("hi", session=session)
        assert (result.session_id, result.owner, result.turn_id) == ("t1", "ada", session.history[0].id)


# --- other cores behind the same `process` ----------------------------------------------------------


def react(text):
    return json.dumps(
        {"primary_action": {"response_purpose": "DIRECT_RESPONSE", "response_content": {"message": text}}}
    )


class Loud(AgentCore):
    """A core of a user that answers in capitals."""

    async def reply(self, context, turn, deliveries):
        shout = [
            attrs.evolve(each, text=each.text.upper()) if isinstance(each, Reply) else each
            for each in deliveries
        ]
        await super().reply(context, turn, shout)


class LoudAgent(BareAgent):
    core_type = Loud


CORES = [
    (BareAgent, ["It is 3."], "It is 3."),
    (LoudAgent, ["It is 3."], "IT IS 3."),
    (PlanAgent, ["It is 3."], "It is 3."),
    (SimpleAgent, [json.dumps({"messageType": "DIRECT_RESPONSE", "content": "It is 3."})], "It is 3."),
    (ReActAgent, [react("It is 3.")], "It is 3."),
    (StepsAgent, [json.dumps({"final_answer": "It is 3."})], "It is 3."),
]


@pytest.mark.parametrize(("kind", "answer", "text"), CORES, ids=[kind.__name__ for kind, *_ in CORES])
async def test_process_returns_the_same_result_for_each_agent_kind(make, kind, answer, text):
    """Equal are the status, tool results, counts and the error of a failed turn."""
    script = [[ToolCall("add", {"a": 1, "b": 2}), ToolCall("offline", {"query": "a"})], *answer]
    agent, _ = make(*script, ToolCall("add", {"a": 1, "b": 2}), *answer, kind=kind, tools=[add, offline])
    async with agent:
        session = await agent.create_session("ada")
        result = await agent.process("What is 1+2?", session=session)
        assert (result.status, result.text, result.model_calls, result.tool_calls) == ("partial", text, 2, 2)
        assert [(each.name, each.status) for each in result.tool_results] == [
            ("add", "success"),
            ("offline", "error"),
        ]
        assert (await agent.process("again", session=session)).status == "success"
        failed = await agent.process("and again", session=session, limits=Limits(model_calls=1))
        assert failed.status == "error"
        assert failed.error is not None


async def test_an_agent_that_answers_by_an_event_is_processed(make):
    """The data of the event is the data of the reply, as with `run`."""
    kind = Instruction("Look", schema={"type": "object", "properties": {"what": {"type": "string"}}})
    answer = json.dumps({"messageType": "Look", "content": {"what": "x"}})
    agent, _ = make(answer, kind=SimpleAgent, instructions=[kind])
    async with agent:
        result = await agent.process("q")
    assert (result.status, result.data) == ("success", {"what": "x"})


async def test_case_30_thoughts_of_each_stage_are_events(plan_agent, listen):
    """Thoughts of each stage are events in their order, and never a part of the answer."""
    agent, _ = plan_agent(
        json.dumps({"thoughts": "of the plan", "todoList": [STEP]}),
        json.dumps({"thoughts": "of the item", "content": "it is 42"}),
        "<think>of the answer</think>It is 42.",
    )
    async with agent:
        session = await agent.create_session("ada")
        received = listen(session, tokens=True)
        result = await agent.process("q", session=session)
    thoughts = [each.data for each in received if getattr(each, "name", "") == "thoughts"]
    assert thoughts == ["of the plan", "of the item", "of the answer"]
    assert str(result) == "It is 42."
    assert not any("of the" in each.text for each in received if isinstance(each, Token | Reply))


async def test_models_by_stage():
    """Planning, execution and synthesis may have a model each."""
    models = {
        "planning": ScriptedLLM([PLAN]),
        "execution": ScriptedLLM([CONTENT]),
        "synthesis": ScriptedLLM(["So."]),
    }
    agent = PlanAgent("tutor", llm=ScriptedLLM(["never asked"]), models=models)
    async with agent:
        assert (await agent.process("q")).status == "success"
    assert [len(model.chats) for model in models.values()] == [1, 1, 1]


async def test_system_prompt_never_changes(plan_agent):
    """Instructions of stages are at the end of the conversation."""
    agent, llm = plan_agent(PLAN, CONTENT, "So.", goal="find out")
    async with agent:
        await agent.process("q")
    assert len({chat.system for chat in llm.chats}) == 1
    assert llm.chats[0].tools == llm.chats[2].tools


async def test_a_turn_that_waits_is_suspended(plan_agent):
    """An item or the whole turn may wait for external input."""
    waits = json.dumps({"content": "which city?", "nextStepDecision": "wait"})
    agent, _ = plan_agent(PLAN, waits, "Which city?", Suspended(["approval"]))
    async with agent:
        assert (await agent.process("q")).status == "suspended"
        result = await agent.process("q")
    assert (result.status, type(result.error)) == ("suspended", Suspended)


async def test_answer_at_the_protocol_limit_is_partial(plan_agent):
    """At the agent's own limit the turn fails, as every turn does."""
    items = json.dumps({"todoList": [{"description": "d"}] * 9})
    script = [items, CONTENT, CONTENT, "Two of nine."]
    agent, _ = plan_agent(*script, protocol=Planning(model_calls=4))
    async with agent:
        result = await agent.process("q")
        assert (result.status, str(result)) == ("partial", "Two of nine.")
    agent, _ = plan_agent(*script, limits=Limits(model_calls=3))
    async with agent:
        result = await agent.process("q")
        assert (result.status, type(result.error)) == ("error", LimitReached)


async def test_follow_up_refines_the_plan(plan_agent):
    """The request has the plan. Completed items keep their results and are not repeated."""
    items = [STEP | {"status": "completed"}, {"id": "step_2", "description": "more"}]
    agent, llm = plan_agent(PLAN, CONTENT, "42.", json.dumps({"todoList": items}), CONTENT, "And 42.")
    async with agent:
        session = await agent.create_session("ada")
        await agent.process("q", session=session)
        result = await agent.process("and more?", session=session)
    assert "[x] step_1: look it up" in llm.chats[3].messages[-1].parts[0].text
    assert [(i.id, i.status, i.result) for i in result.plan.items] == [
        ("step_1", "completed", "it is 42"),
        ("step_2", "completed", "it is 42"),
    ]
    assert (result.status, result.model_calls) == ("success", 3)


async def test_an_interrupted_plan_is_refined(plan_agent):
    """Items in progress at the end of a turn are pending again."""
    items = {"todoList": [STEP | {"status": "in_progress"}]}
    agent, _ = plan_agent(PLAN, ProviderUnavailable("down"), json.dumps(items), CONTENT, "42.")
    async with agent:
        session = await agent.create_session("ada")
        assert (await agent.process("q", session=session)).status == "error"
        assert plan_of(session.state).current.id == "step_1"
        assert (await agent.process("go on", session=session)).status == "success"


# --- structured answers ----------------------------------------------------------------------------


@attrs.frozen
class City:
    name: str
    people: int


async def test_output_is_the_synthesis(plan_agent):
    """The output type is requested only in the synthesis, and only its answer is the output."""
    city = '{"name": "Oslo", "people": 718000}'
    agent, llm = plan_agent(city, PLAN, CONTENT, "Oslo!", city, output=City)
    async with agent:
        result = await agent.process("q")
    assert result.data == result.reply.data == City("Oslo", 718000)
    assert (result.text, result.usage) == (result.reply.text, result.reply.usage)
    assert (result.status, result.reply.message_type) == ("success", "success")
    assert [chat.response_format is not None for chat in llm.chats] == [False, False, False, True, True]


async def test_plan_agent_accepts_output_of_one_run(plan_agent):
    """The output may be a text. An unreadable plan is never the output."""
    agent, _ = plan_agent("no plan", DIRECT, "plain words")
    async with agent:
        assert (await agent.run("q", output=str)).data == "plain words"


async def test_protocol_handles_its_output_option():
    city = '{"name": "Oslo", "people": 718000}'
    llm = ScriptedLLM([PLAN, city, CONTENT, city])
    async with Agent("planner", llm=llm, protocol=Planning().with_output(City)) as agent:
        reply = await agent.run("q")
    assert (reply.data, reply.message_type) == (City("Oslo", 718000), "success")
    assert len(llm.chats) == 4


# --- a session's configuration: case 31 -------------------------------------------------------------


async def test_case_31_each_invalid_call_has_an_error_result(plan_agent):
    """Calls are disabled, unknown or have wrong arguments. The valid call runs."""
    wish = calls(
        ("search", {"query": "a"}), ("nowhere", {}), ("add", {"a": "x", "b": 1}), ("offline", {"query": "b"})
    )
    agent, llm = plan_agent(wish, "So.")
    async with agent:
        session = await agent.create_session("ada", session_id="t")
        agent.configure(session, tools=["offline", "add"])
        results = []
        session.on_tool_result(results.append)
        await agent.process("q", session=session)
    disabled, unknown, wrong, failed = [result.error for result in results]
    assert disabled == 'Tool "search" is not enabled for session "t".'
    assert "nowhere" in unknown
    assert "not found" in unknown
    assert "/a" in wrong
    assert "no net" in failed
    assert "Tools enabled here: offline, add." in llm.chats[0].messages[-1].parts[0].text


async def test_tools_are_enabled_and_disabled_by_session(plan_agent):
    """The list of tools that the model receives does not change."""
    agent, llm = plan_agent(
        calls(("search", {"query": "a"})), "So.", calls(("search", {"query": "a"})), "So."
    )
    async with agent:
        session, other = [await agent.create_session("ada") for _ in range(2)]
        agent.disable_tools(session, "search")
        assert agent.enabled_tools(session) == ("offline", "add", "read_result")
        assert agent.enabled_tools(other) == ("search", "offline", "add", "read_result")
        results = []
        session.on_tool_result(results.append)
        await agent.process("q", session=session)
        agent.enable_tools(session, "search")
        await agent.process("q", session=session)
    assert [result.status for result in results] == ["error", "success"]
    assert all(chat.tools == llm.chats[0].tools for chat in llm.chats)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("serach",), "did you mean 'search'|search"),
        (("search", "nope"), "no tool 'nope'"),
        ((["search"],), "separate arguments"),
        (("read_result",), "every session"),
    ],
)
async def test_disabling_fails_closed(plan_agent, names, expected):
    """A name that disables no tool is rejected, and no tool of that call is disabled."""
    agent, _ = plan_agent()
    async with agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match=expected):
            agent.disable_tools(session, *names)
        assert agent.enabled_tools(session) == ("search", "offline", "add", "read_result")
        with pytest.raises(ConfigurationError):
            agent.enable_tools(session, ["search"])
        with pytest.raises(ConfigurationError, match="list of tool names"):
            agent.configure(session, tools="add")


async def test_a_session_of_another_agent_is_not_configured(plan_agent):
    """The configuration would have no effect."""
    agent, _ = plan_agent()
    async with agent, BareAgent("other", llm=ScriptedLLM([])) as other:
        session = await other.create_session("ada")
        with pytest.raises(ConfigurationError, match="belongs to agent 'other'"):
            agent.disable_tools(session, "search")


async def test_model_of_a_session():
    """A session may use another model than its agent."""
    big, small = ScriptedLLM([DIRECT, "big"], repeat=True), ScriptedLLM([DIRECT, "small"], repeat=True)
    agent = PlanAgent("tutor", llm=big, models={"small": small})

    @agent.on_session
    def prepare(session):
        if session.owner.name == "ada":
            agent.configure(session, model="small")

    async with agent:
        session = await agent.create_session("ada")
        assert [str(await agent.run("q", session=session)) for _ in range(2)] == ["small"] * 2
        assert str(await agent.run("q")) == "big"


@pytest.mark.parametrize(("history", "shown"), [(0, 0), (1, 0), (2, 3), (3, 3), (4, 6)])
async def test_history_of_a_session(plan_agent, history, shown):
    """The limit counts user messages and final answers; plans between them are included, and a notice counts the rest."""
    agent, llm = plan_agent(*[DIRECT, "So."] * 3)
    async with agent:
        session = await agent.create_session("ada")
        agent.configure(session, history=history)
        for number in range(3):
            await agent.process(f"q{number}", session=session)
    turns = ["q0", DIRECT, "So.", "q1", DIRECT, "So."]
    texts = [message.parts[0].text for message in llm.chats[4].messages][:-1]
    before = turns[6 - shown :]
    left_out = [f"({6 - shown} earlier messages are not shown.)"] if shown < 6 else []
    assert texts == [*left_out, *before, "q2"]


@pytest.mark.parametrize("memory", [lambda history: history, Truncation(), SlidingWindow(turns=50)])
async def test_history_of_a_session_counts_the_same_with_every_memory(plan_agent, memory):
    """This includes a memory that rebuilds its view in each turn, and a limit that is set between two turns."""
    agent, llm = plan_agent(*[DIRECT, "So."] * 4, memory=memory)
    async with agent:
        session = await agent.create_session("ada")
        for number in range(4):
            await agent.process(f"q{number}", session=session)
            agent.configure(session, history=2)
    shown = [[f"q{number}" in str(chat.messages) for number in range(4)] for chat in llm.chats[::2]]
    assert shown[1] == [True, True, False, False]
    assert shown[2] == [False, True, True, False]
    assert shown[3] == [False, False, True, True]


@pytest.mark.parametrize(
    "config", [{"model": "huge"}, {"models": {"thinking": "default"}}, {"tools": ["fly"]}, {"history": -1}]
)
async def test_a_configuration_is_checked(plan_agent, config):
    """An unknown name raises immediately."""
    agent, _ = plan_agent("never asked")
    async with agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError):
            agent.configure(session, **config)
        assert "plan.config" not in session.state


async def test_case_19_delegated_answer_is_the_default_content(make):
    """If the model returns no content, the answer of the delegated task is the result of the item."""
    helper = BareAgent("helper", llm=ScriptedLLM(["helped out"]))
    script = [PLAN, ToolCall("helper", {"task": "t"}), json.dumps({"content": ""}), "So."]
    agent, llm = make(*script, kind=PlanAgent, tools=[helper.as_tool()])
    async with agent:
        result = await agent.process("q")
    (item,) = result.plan.items
    assert (item.status, item.result, item.called_tools) == ("completed", "helped out", ("helper",))
    assert "helped out" in llm.chats[-1].messages[-1].parts[0].text


async def test_agents_as_tools_are_started(make):
    """A guarded tool still counts as an agent."""
    helper = BareAgent("helper", llm=ScriptedLLM(["helped"]))
    agent, llm = make(calls(("helper", {"task": "t"})), "So.", kind=PlanAgent, tools=[helper.as_tool()])
    async with agent:
        session = await agent.create_session("ada")
        results = []
        session.on_tool_result(results.append)
        await agent.process("q", session=session)
    assert len(results) == 1
    assert len(llm.chats) == 2


async def test_disabled_tools_return_no_result_of_another_session():
    """The tool may keep its results, or may be added to a running agent."""
    texts = []

    @tool(effect="pure", cache=10)
    def lookup(word: str) -> str:
        """Look a word up."""
        texts.append(word)
        return "known"

    wish = calls(("lookup", {"word": "a"}))
    llm = ScriptedLLM([wish, "So.", wish, "So.", wish, "No."])
    async with PlanAgent("tutor", llm=llm) as agent:
        agent.tools.add(lookup)
        free, bound = await agent.create_session("ada"), await agent.create_session("bob")
        agent.disable_tools(bound, "lookup")
        results = []
        bound.on_tool_result(results.append)
        for session in (free, free, bound):
            await agent.process("a?", session=session)
    assert texts == ["a"]
    assert [result.error for result in results] == [f'Tool "lookup" is not enabled for session "{bound.id}".']
