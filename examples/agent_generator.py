"""An agent that makes agents: its `creation` instruction is mapped to a tool that writes a new agent folder.

Only an answer that fits the instruction's schema runs the tool. What it writes goes into one output folder, passes the
check of `actgent check`, and never overwrites anything; what fails goes back to the model.
"""

import json
import tempfile
from pathlib import Path

import trio

from actgent import AgentBuilder, ConfigurationError, FunctionTool, Instruction, ScriptedLLM, ToolError
from actgent.definitions.scaffold import write_folder

CREATION = Instruction(
    "creation",
    "The user wants a new agent, and you know its role and goal.",
    {
        "type": "object",
        "properties": {
            **{name: {"type": "string"} for name in ("name", "role", "goal", "advice")},
            "capabilities": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        },
        "required": ["name", "role", "goal", "capabilities"],
        "additionalProperties": False,
    },
    tool="agent_generator",
)


def agent_generator(output: Path) -> FunctionTool[..., str]:
    """The tool, which writes below `output` and nowhere else."""

    def generate(name: str, role: str, goal: str, capabilities: list[str], advice: str = "") -> str:
        # JSON texts are YAML texts: whatever the model says stays a value.
        fields = {"name": name, "role": role, "goal": goal, "capabilities": capabilities}
        front = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items())
        try:
            made = write_folder(output, name, {"brain.md": f"---\n{front}\n---\n{advice}\n"})
        except ConfigurationError as error:
            raise ToolError(f"The agent was not made: {error}") from error
        return f"made {made.name}: try `actgent run {made.path.name}`"

    return FunctionTool("agent_generator", "Write the folder of a new agent.", generate)


def created(name: str) -> str:
    content = {"name": name, "role": "a poet", "goal": "rhyme: always", "capabilities": ["sonnets"]}
    return json.dumps({"messageType": "creation", "content": content})


SCRIPT = [
    created("../poet"),
    created("poet"),
    '{"messageType": "DIRECT_RESPONSE", "content": "Your poet is ready."}',
]


async def main() -> None:
    with tempfile.TemporaryDirectory() as output:
        smith = (
            AgentBuilder("smith").role("a maker of agents").instructions(CREATION).llm(ScriptedLLM(SCRIPT))
        )
        async with smith.tools(agent_generator(Path(output))).build() as agent:
            session = await agent.create_session("Ada", "Make me an agent that writes poems.")
            session.on_tool_result(lambda result: print(f"{result.tool_name}: {result.text}"))
            session.on_conversation(lambda reply: print("smith:", reply))
            await session.wait_idle()

        poet = AgentBuilder.from_folder(Path(output) / "poet").llm(ScriptedLLM(["Roses are red."])).build()
        async with poet:
            print(f"{poet.profile.role}, {poet.profile.goal}:", await poet.run("A poem, please."))


if __name__ == "__main__":
    trio.run(main)
