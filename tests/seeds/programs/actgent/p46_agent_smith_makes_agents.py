"""After `AgentSmith.registerTool(new AgentGenerator())`, an answer of the instruction Creation creates an agent, and the model gets the
result.

Document: Tool Registration and Instruction Mapping, How Tool Mapping Works and Design Rationale.

Differs: The tool of an instruction is an argument: `tools=[AgentGenerator(folder)]`. Therefore the constructor of the
agent finds a missing tool. You can add other tools later.
"""

import json

import trio

from actgent import AgentBuilder, AgentGenerator, ReActAgent, ScriptedLLM

POET = {"name": "poet", "role": "a poet", "goal": "rhyme", "capabilities": ["sonnets"]}


def direct(content: object) -> str:
    action = {"response_purpose": "DIRECT_RESPONSE", "response_content": content}
    return json.dumps({"question_nature": "COMPLEX", "primary_action": action})


SCRIPT = [
    direct({"messageType": "Creation", "name": "poet"}),
    direct({"messageType": "Creation", **POET}),
    direct({"message": "Your poet is ready."}),
]


async def main() -> None:
    generator = AgentGenerator("agents")
    creation = {"name": "Creation", "schemaTemplate": generator.parameters, "tool": "AgentGenerator"}
    smith = ReActAgent("AgentSmith", llm=ScriptedLLM(SCRIPT), instructions=[creation], tools=[generator])
    called = []
    async with smith:
        session = await smith.create_session("ada", "Make me a poet.")
        session.on_event(lambda event: called.append(event.name))
        session.on_tool_result(lambda result: called.append(result.tool_name))
        session.on_conversation(lambda reply: called.append(str(reply)))
        await session.wait_idle()
    assert called == ["Creation", "AgentGenerator", "Your poet is ready."], called
    async with AgentBuilder.from_folder("agents/poet").llm(ScriptedLLM(["Roses are red."])).build() as poet:
        assert (poet.profile.role, poet.profile.goal) == ("a poet", "rhyme")
        assert str(await poet.run("A poem, please.")) == "Roses are red."


trio.run(main)
