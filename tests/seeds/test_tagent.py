"""Translations of the 11 code blocks in the document of TAgent. Each translation is between `# block` and `# end`."""

import json
from typing import Any, Literal

from pydantic import BaseModel

from actgent import (
    BareAgent,
    CustomAction,
    GoalAgent,
    ScriptedLLM,
    Store,
    conversation_text,
    detect_action_loop,
    register_provider,
    run_agent,
    tool_documentation,
)


def external_api_call(*given):
    return list(given)


def act(name, **args):
    return json.dumps({"action": "execute", "params": {"tool": name, "args": args}, "reasoning": "r"})


EVALUATE = json.dumps({"action": "evaluate", "params": {"achieved": True, "feedback": "", "answer": "done"}})


def test_block_1_a_store():
    """Actions change the state of a store. Tools belong to the agent, and the conversation to the session."""
    # block 1
    store = Store({"input_data": 3})
    store.dispatch(lambda state: ("doubled", state["input_data"] * 2))
    # end
    assert dict(store) == {"input_data": 3, "doubled": 6}


def test_block_2_an_action():
    """The action is verbatim except for its docstring."""

    def process_data(value):
        return value + 1

    # block 2
    def example_action(state: dict[str, Any]) -> tuple[str, Any] | None:
        result = process_data(state.get("input_data"))
        return ("processed_result", result)

    # end
    store = Store({"input_data": 3})
    store.dispatch(example_action)
    assert store["processed_result"] == 4


async def test_blocks_3_and_5_a_tool_and_a_goal():
    """The tool is verbatim, and one call runs the loop."""

    # block 3
    def my_custom_tool(state: dict[str, Any], args: dict[str, Any]) -> tuple[str, Any] | None:
        param1 = args.get("param1")
        param2 = args.get("param2")
        result = external_api_call(param1, param2)
        return ("tool_result", result)

    # end
    goal = "call it"
    model = ScriptedLLM([act("my_custom_tool", param1=1, param2=2), EVALUATE])
    # block 5
    tools = {"my_custom_tool": my_custom_tool}
    result = await run_agent(goal, model, tools=tools, max_iterations=20)
    # end
    assert result.achieved
    assert result.raw_data == {"tool_result": [1, 2]}


async def test_block_4_a_validated_answer():
    """The class is verbatim. `query_llm` runs an agent with this class as its output."""
    llm = ScriptedLLM(["no JSON", '{"action": "plan", "params": {"steps": 2}, "reasoning": "why"}'])

    # block 4
    class StructuredResponse(BaseModel):
        action: Literal["plan", "execute", "summarize", "evaluate"]
        params: dict[str, Any] = {}
        reasoning: str = ""

    async def query_llm(prompt: str, model: Any) -> StructuredResponse:
        async with BareAgent("q", llm=model, output=StructuredResponse) as agent:
            return (await agent.run(prompt)).data

    # end
    assert await query_llm("What now?", llm) == StructuredResponse(
        action="plan", params={"steps": 2}, reasoning="why"
    )
    assert "StructuredResponse" in str(llm.chats[0].response_format)


def look(state, args):
    return ("seen", 1)


async def test_block_6_loops_are_detected():
    """The function has the name of the document. The agent warns the model of a loop, and ends a run that repeats it."""
    # block 6
    is_loop = detect_action_loop(["plan", "execute", "execute"], max_recent=3)
    # end
    assert is_loop
    assert not detect_action_loop(["plan", "execute"])
    assert not detect_action_loop([])
    llm = ScriptedLLM([act("look")] * 40)
    result = await run_agent("look", llm, tools={"look": look})
    assert not result.achieved
    assert result.iterations < 20
    assert any("circles" in each.parts[0].text for chat in llm.chats for each in chat.messages[-1:])


def test_block_7_a_conversation_as_text():
    """Each entry has a number and its role."""
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    # block 7
    text = conversation_text(history)
    # end
    assert text.startswith("=== CONVERSATION HISTORY ===")
    assert "USER [1]: Hi" in text
    assert "ASSISTANT [2]: Hello." in text


def test_block_8_the_documentation_of_tools():
    """Each tool has a line with its signature."""
    # block 8
    text = tool_documentation({"external": external, "look": look})
    # end
    assert text == (
        "Available tools:\n- external(city: str) -> str: Look up a city.\n"
        "- look(state, args): No documentation available"
    )


def external(city: str) -> str:
    """Look up a city."""
    return city


def test_block_9_an_action_of_ones_own():
    """A custom action has a name, a description and a function."""

    def wait(state, params):
        return ("waited", params)

    # block 9
    agent = GoalAgent("g", llm=ScriptedLLM([]), actions=[CustomAction("wait", "Wait a while.", wait)])
    # end
    assert list(agent.protocol.actions) == ["wait"]


async def test_block_10_an_output_of_ones_own():
    """The class is verbatim, and so is the function that creates it from the state."""

    # block 10
    class CustomOutputFormat(BaseModel):
        results: list[dict[str, Any]]
        metadata: dict[str, str]
        confidence: float

    def format_custom_output(state: dict[str, Any]) -> CustomOutputFormat:
        return CustomOutputFormat(
            results=state.get("results", []),
            metadata=state.get("metadata", {}),
            confidence=state.get("confidence", 0.0),
        )

    # end
    llm = ScriptedLLM([act("external", city="Oslo"), EVALUATE])
    result = await run_agent("look", llm, tools=[external], output=format_custom_output)
    found = [{"tool": "external", "result": "Oslo"}]
    assert result.data == CustomOutputFormat(results=found, metadata={}, confidence=0.0)
    value = {"results": [{"a": 1}], "metadata": {"b": "c"}, "confidence": 0.5}
    llm = ScriptedLLM([act("external", city="Oslo"), EVALUATE, json.dumps(value)])
    result = await run_agent("look", llm, tools=[external], output=CustomOutputFormat)
    assert result.data == CustomOutputFormat(**value)


async def test_block_11_a_provider_of_ones_own():
    """After its registration, a provider is selected by its name."""

    class Client:
        def __init__(self, model):
            self.name = model

        async def complete(self, chat):
            return f"{self.name} says hello"

    # block 11
    register_provider("seed-acme", Client)
    # end
    async with BareAgent("a", llm="seed-acme:small") as agent:
        assert str(await agent.run("Hi")) == "small says hello"
