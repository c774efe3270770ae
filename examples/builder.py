"""Create one agent in three ways: from a folder, with the builders, and with the constructor.

The folder is `agent_folder`. `actgent check examples/agent_folder` validates the folder, and `actgent run` starts a conversation.
"""

from pathlib import Path

import trio

from actgent import (
    Agent,
    AgentBuilder,
    ClassificationType,
    Instruction,
    SchemaBuilder,
    ScriptedLLM,
    SimpleAgent,
)

FOLDER = Path(__file__).parent / "agent_folder"
ADVICE = Instruction(
    "advice", "Someone asks how to grow something.", {"plant": "<the plant>", "content": "<your advice>"}
)
ANSWER = '{"messageType": "advice", "content": {"plant": "spinach", "content": "Sow it in August."}}'
PLAN = '{"messageType": "water_plan", "content": {"plant": "tomatoes", "square_metres": 4}}'
DONE = '{"messageType": "DIRECT_RESPONSE", "content": "Give them 100 litres a week."}'


def from_folder() -> Agent:
    """Load the agent from files, and add a model and a hook in code."""
    return (
        AgentBuilder.from_folder(FOLDER)
        .llm(ScriptedLLM([ANSWER, PLAN, DONE]), temperature=0)
        .on_query(lambda message: "It is the first week of August." if "now" in message.text else None)
        .build()
    )


def from_builders() -> Agent:
    """Build the agent in code. Each method returns a new builder and does not change its own."""
    builder = AgentBuilder("gardener").role("a gardener").goal("help people to grow what they eat")
    return builder.instructions(ADVICE).protocol("simple").llm(ScriptedLLM([ANSWER])).build()


def directly() -> Agent:
    """Create the agent with its constructor. Its answer types come from instructions or are written in code."""
    more = Instruction("farewell", "Someone says goodbye.", {"content": "<your goodbye>"})
    types = SchemaBuilder([ADVICE]).add(more).remove("farewell").build()
    written_out = ClassificationType("praise", "Someone shows a harvest.", {"content": "<your praise>"})
    return SimpleAgent("gardener", role="a gardener", types=[*types, written_out], llm=ScriptedLLM([ANSWER]))


async def main() -> None:
    for make in (from_folder, from_builders, directly):
        async with make() as agent:
            reply = await agent.run("What can I sow now?")
            print(f"{make.__name__}: {reply.message_type}: {reply}")

    async with from_folder() as agent:
        session = await agent.create_session("Ada", "What can I sow now?")
        session.on_event(lambda event: print("event:", event.name, dict(event.data)))
        session.on_tool_result(lambda result: print("tool:", result.tool_name, "->", result.content))
        session.on_conversation(lambda reply: print("gardener:", reply))
        await session.chat("How much water for 4 square metres of tomatoes?")
        await session.wait_idle()


if __name__ == "__main__":
    trio.run(main)
