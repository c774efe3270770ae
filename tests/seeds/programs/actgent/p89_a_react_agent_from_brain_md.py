"""`new ReActAgent({instructions: loadInstructions("brain.md"), tools: [new FileSearchTool(), new AgentGenerator()]})` is an agent with reasoning.

Document: Appendix, ReAct Agent Implementation; Common Use Cases, Complex Reasoning Agent.

Differs: `loadInstructions("brain.md")` is `read_folder("brain.md", tools=names).instructions`. The call also checks
that `names` contains the tools of the instructions.
"""

import json
from pathlib import Path

import trio

from actgent import AgentGenerator, ReActAgent, ScriptedLLM, read_folder, tool

BRAIN = '---\nname: smith\ninstructions:\n    creation: "instructions/creation.md"\n---\n'
CREATION = '---\ninstructionName: Creation\nschemaTemplate: "creation.json"\ntool: "AgentGenerator"\n---\n'
FORM = '{"name": "<its name>", "role": "<its role>", "goal": "<its goal>", "capabilities": ["<one>"]}'


@tool(thread=False)
def file_search(name: str) -> str:
    """Search for a file."""
    return "no such file"


def act(purpose: str, content: object) -> str:
    return json.dumps({"primary_action": {"response_purpose": purpose, "response_content": content}})


POET = {
    "messageType": "Creation",
    "name": "poet",
    "role": "a poet",
    "goal": "rhyme",
    "capabilities": ["odes"],
}
SCRIPT = [
    act("TOOL_INVOCATION", {"name": "file_search", "parameters": {"name": "poet"}}),
    act("DIRECT_RESPONSE", POET),
    act("DIRECT_RESPONSE", "Your poet is ready."),
]


async def main() -> None:
    Path("instructions").mkdir()
    Path("brain.md").write_text(BRAIN)
    Path("instructions/creation.md").write_text(CREATION)
    Path("instructions/creation.json").write_text(FORM)
    tools = [file_search, AgentGenerator("agents")]
    folder = read_folder("brain.md", tools=[each.name for each in tools])
    agent = ReActAgent(folder.name, llm=ScriptedLLM(SCRIPT), instructions=folder.instructions, tools=tools)
    async with agent:
        assert str(await agent.run("Make a poet, unless there is one.")) == "Your poet is ready."
    assert Path("agents/poet/brain.md").exists()


trio.run(main)
