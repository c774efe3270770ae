"""Generate agents with an agent: its instruction `Creation` is mapped to a tool that writes a new agent folder.

The tool runs only if the answer matches the schema of the instruction. The tool writes into one output folder, never
overwrites a file, and writes only folders that pass `actgent check`. Otherwise the model receives the error.
"""

import json
import tempfile
from pathlib import Path

import trio

from actgent import AgentBuilder, AgentGenerator, Instruction, ScriptedLLM


def created(name: str) -> str:
    content = {"name": name, "role": "a poet", "goal": "rhyme: always", "capabilities": ["sonnets"]}
    return json.dumps({"messageType": "Creation", "content": content})


SCRIPT = [
    created("../poet"),
    created("poet"),
    '{"messageType": "DIRECT_RESPONSE", "content": "Your poet is ready."}',
]


async def main() -> None:
    with tempfile.TemporaryDirectory() as output:
        generator = AgentGenerator(output)
        creation = Instruction(
            "Creation",
            "The user wants a new agent, and you know its role and goal.",
            generator.parameters,
            tool=generator.name,
        )
        smith = AgentBuilder("smith").role("a maker of agents").llm(ScriptedLLM(SCRIPT))
        async with smith.instructions(creation).tools(generator).build() as agent:
            session = await agent.create_session("Ada", "Make me an agent that writes poems.")
            session.on_tool_result(lambda result: print(f"{result.tool_name}: {result.text}"))
            session.on_conversation(lambda reply: print("smith:", reply))
            await session.wait_idle()

        poet = AgentBuilder.from_folder(Path(output) / "poet").llm(ScriptedLLM(["Roses are red."])).build()
        async with poet:
            print(f"{poet.profile.role}, {poet.profile.goal}:", await poet.run("A poem, please."))


if __name__ == "__main__":
    trio.run(main)
