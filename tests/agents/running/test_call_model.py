"""`model=` of one call, the options of `process`, and context gathered before a stage."""

import json

import pytest

from actgent import (
    BareAgent,
    ConfigurationError,
    LimitReached,
    Limits,
    PlanAgent,
    Reply,
    ScriptedLLM,
    StepsAgent,
    tool,
)

STEP = {"id": "s", "description": "look it up", "stepType": "tool", "requiredTools": ["look"]}
PLAN = json.dumps({"intent": "know", "plan": "look", "todoList": [STEP]})
CALL = json.dumps({"toolCalls": [{"toolName": "look", "arguments": {"what": "x"}}]})
CONTENT = json.dumps({"content": "it is 42"})
WHOLE = [PLAN, CALL, CONTENT, "The answer is 42."]


@tool(effect="pure")
def look(what: str) -> str:
    """Look something up."""
    return f"found {what}"


def last_words(chat):
    """Return the text at the end of a request."""
    return chat.messages[-1].parts[-1].text


async def test_model_option_applies_to_one_turn():
    """All calls of the turn use the model of that role, the next turn uses the agent's own; an unknown role is rejected."""
    usual, fast = ScriptedLLM(["usual"]), ScriptedLLM(["fast", "faster"])
    async with BareAgent("clerk", llm=usual, models={"fast": fast}) as agent:
        session = await agent.create_session("ada")
        assert (await agent.run("a", session=session, model="fast")).text == "fast"
        assert (await agent.run("b", session=session)).text == "usual"
        async with agent.stream("c", session=session, model="fast") as told:
            assert [each.text async for each in told if isinstance(each, Reply)] == ["faster"]
        with pytest.raises(ConfigurationError, match="model='slow'"):
            await agent.run("d", session=session, model="slow")


async def test_steps_agent_accepts_a_model_for_one_call():
    """Its own stream accepts the argument as well."""
    fast = ScriptedLLM([json.dumps({"final_answer": "5"})])
    agent = StepsAgent("steps", llm=ScriptedLLM([]), models={"fast": fast})
    async with agent, agent.stream("2+3?", model="fast", metadata={"k": 1}) as told:
        assert [each.text async for each in told if isinstance(each, Reply)] == ["5"]


async def test_process_options_apply_to_one_request():
    """Model, prompt, temperature, length, sender and metadata of one `process` call; the next call uses those of the agent."""
    strong, usual = ScriptedLLM(WHOLE), ScriptedLLM(WHOLE)
    async with PlanAgent(
        "planner", llm=usual, models={"strong": strong}, tools=[look], temperature=0.7
    ) as agent:
        session = await agent.create_session("ada")
        tokens = []
        session.on_token(lambda token: tokens.append(token.text))
        result = await agent.process(
            "what is it?",
            session=session,
            model="strong",
            prompt="Be brief.",
            temperature=0.1,
            max_tokens=99,
            sender="bob",
            metadata={"ticket": 7},
        )
        assert (result.status, result.text) == ("success", "The answer is 42.")
        assert "".join(tokens) == "The answer is 42."
        assert {(chat.temperature, chat.max_tokens) for chat in strong.chats} == {(0.1, 99)}
        assert all("Be brief." in last_words(chat) for chat in strong.chats)
        assert (session.history[0].sender.name, session.history[0].metadata) == ("bob", {"ticket": 7})
        await agent.process("and now?", session=session)
        assert {chat.temperature for chat in usual.chats} == {0.7}
        assert not any("Be brief." in last_words(chat) for chat in usual.chats)


async def test_limits_of_one_request():
    """With one model call allowed, a plan with a step gives an error in the result."""
    async with PlanAgent("planner", llm=ScriptedLLM(WHOLE), tools=[look]) as agent:
        result = await agent.process("what is it?", limits=Limits(model_calls=1))
        assert (result.status, type(result.error)) == ("error", LimitReached)


async def test_context_is_gathered_before_the_synthesis():
    """Only the synthesis request has it. It includes the tools' results and is not stored."""
    llm = ScriptedLLM(WHOLE * 2)
    async with PlanAgent("planner", llm=llm, tools=[look]) as agent:
        gathered = []

        @agent.on_query(stage="synthesis")
        async def documents(message, session):
            found = [result.content for each in session.history for result in each.tool_results]
            gathered.append((message.text, found))
            return "Document 7 says 42."

        @agent.on_query
        def usual(message):
            return "It is Monday."

        session = await agent.create_session("ada")
        await agent.process("what is it?", session=session)
        assert gathered == [("what is it?", ["found x"])]
        with_document = ["Document 7" in last_words(chat) for chat in llm.chats]
        assert with_document == [False, False, False, True]
        assert ["Monday" in last_words(chat) for chat in llm.chats] == [True, False, False, False]
        assert "Document 7" not in repr(session.history)
        agent.remove_hook(documents)
        await agent.process("again?", session=session)
        assert len(gathered) == 1


async def test_context_of_a_stage_is_gathered_once_a_call():
    """A retried answer is requested with the same context."""
    llm = ScriptedLLM(["no plan at all {", json.dumps({"intent": "greet", "plan": "answer"}), "Hello."])
    async with PlanAgent("planner", llm=llm) as agent:
        gathered = []

        @agent.on_query(stage="planning")
        def notes(message):
            gathered.append(message.text)
            return "Note 1."

        result = await agent.process("hi")
        assert (result.status, gathered) == ("success", ["hi"])
        assert ["Note 1." in last_words(chat) for chat in llm.chats] == [True, True, False]


async def test_an_unknown_stage_is_rejected():
    """The error names the nearest stage, or says that the protocol has none."""
    agent = PlanAgent("planner", llm=ScriptedLLM([]))
    with pytest.raises(ConfigurationError, match="synthesis"):
        agent.on_query(stage="sythesis")(print)
    bare = BareAgent("clerk", llm=ScriptedLLM([]))
    with pytest.raises(ConfigurationError, match="it has no stages"):
        bare.on_query(stage="synthesis")(print)
