"""Translations of the 8 code blocks in the document of acton. Each translation is between `# block` and `# end`."""

from typing import Literal

import pytest
import trio
from pydantic import BaseModel

from actgent import (
    BareAgent,
    Message,
    ProviderUnavailable,
    Retry,
    RetryingModel,
    ScriptedLLM,
    StepsAgent,
    Token,
    Tool,
    ToolCall,
)
from actgent.agents.steps.stream_events import FinalEvent, StreamStart


async def test_blocks_1_and_6_a_client_of_ones_own():
    """A client inherits from no class and has three lines, as in the document."""

    # block 1
    class LLMClient:
        def call(self, messages, **kwargs) -> str:
            return "Hello."

    # end
    # block 6
    class MyLLMClient:
        def call(self, messages, **kwargs) -> str:
            return f"I heard {messages[-1].content}"

    # end
    for client, said in ((LLMClient(), "Hello."), (MyLLMClient(), "I heard Hi")):
        async with BareAgent("a", llm=client) as agent:
            assert str(await agent.run("Hi")) == said


async def test_block_2_an_agent_is_made_of_parts():
    """An agent is created with a client, a memory and retry settings, and has an empty tool registry."""
    requests = []

    def llm_client(messages):
        requests.append(len(messages))
        return "Hello."

    # block 2
    def make_agent(llm_client, memory, retry_config):
        return BareAgent("a", llm=RetryingModel(llm_client, retry_config), memory=memory)

    # end
    async with make_agent(llm_client, lambda history: history[-1:], Retry.exponential()) as agent:
        session = await agent.create_session("ada")
        for _ in range(3):
            await agent.run("Hi", session=session)
        assert len(agent.tools.list()) == 0
    assert requests == [2, 2, 2]


async def test_block_3_data_of_pydantic():
    """The pydantic model is verbatim and can be the output of an agent."""

    # block 3
    class Message(BaseModel):
        role: Literal["user", "assistant", "system"]
        content: str

    # end
    llm = ScriptedLLM(['{"role": "user", "content": "Hi"}'])
    async with BareAgent("a", llm=llm, output=Message) as agent:
        assert (await agent.run("Hi")).data == Message(role="user", content="Hi")


async def test_block_4_a_call_is_repeated(autojump_clock):
    """A failing call has three attempts with the pauses of the document."""
    times = []

    async def fails(messages):
        times.append(trio.current_time())
        raise ConnectionError("gone")

    # block 4
    call_llm = RetryingModel(
        fails, Retry.exponential(3, multiplier=2, least=1, most=60), retry_on=(ConnectionError,)
    )
    # end
    async with BareAgent("a", llm=call_llm) as agent:
        with pytest.raises(ProviderUnavailable, match="gone"):
            await agent.run("Hi")
    assert [round(each - times[0]) for each in times] == [0, 2, 6]


async def test_block_5_a_stream_of_typed_events():
    """The stream has a start event, tokens and a final event."""
    agent = StepsAgent("a", llm=ScriptedLLM(['{"final_answer": "It is 42."}'], chunk=4))
    # block 5
    async with agent, agent.stream("What is it?") as stream:
        events = [event async for event in stream]
    # end
    kinds = [type(event) for event in events]
    assert (kinds[0], FinalEvent in kinds) == (StreamStart, True)
    assert "".join(event.text for event in events if isinstance(event, Token)) == "It is 42."


async def test_block_7_a_tool_of_ones_own():
    """The base class and the two methods are verbatim. The name of the tool is the name of the class."""

    # block 7
    class MyTool(Tool):
        def execute(self, parameters: dict) -> str:
            return f"in {parameters['city']}"

        def get_schema(self) -> dict:
            return {"type": "object", "properties": {"city": {"type": "string"}}}

    # end
    llm = ScriptedLLM([ToolCall("MyTool", {"city": "Oslo"}), lambda chat: chat.messages[-1].parts[0].content])
    async with BareAgent("a", llm=llm, tools=[MyTool()]) as agent:
        assert str(await agent.run("Where?")) == "in Oslo"


async def test_block_8_a_memory_of_ones_own():
    """A memory has the method of the document and inherits from no class."""

    # block 8
    class MyMemory:
        def manage_history(self, history: list[Message]) -> list[Message]:
            return history[-3:]

    # end
    llm = ScriptedLLM(lambda chat: f"{len(chat.messages)}")
    async with BareAgent("a", llm=llm, memory=MyMemory()) as agent:
        session = await agent.create_session("ada")
        texts = [str(await agent.run("Hi", session=session)) for _ in range(4)]
    assert texts[-1] == texts[-2]
