"""brain.md and the file of its instruction, as the document prints them, define an agent with the instruction Creation and its mapped tool.

Document: Tool Registration and Instruction Mapping, Instruction-Mapped Tools.
"""

import json
from pathlib import Path

from actgent import AgentBuilder, AgentGenerator, ScriptedLLM, read_folder

FILES = {
    "brain.md": """\
---
instructions:
    creation: "instructions/creation.md"
---
""",
    "instructions/creation.md": """\
---
instructionName: Creation
schemaTemplate: "creation.json"
tool: "AgentGenerator"  # Maps tool to instruction
---
""",
    "instructions/creation.json": json.dumps({"name": "<its name>", "role": "<its role>"}),
}


def main() -> None:
    for name, text in FILES.items():
        path = Path("smith") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    folder = read_folder("smith/brain.md", tools=["AgentGenerator"])
    [creation] = folder.instructions
    assert folder.name == "smith"
    assert (creation.name, creation.tool) == ("Creation", "AgentGenerator")
    assert creation.schema == {"name": "<its name>", "role": "<its role>"}
    builder = AgentBuilder.from_folder("smith", tools=[AgentGenerator("agents")])
    smith = builder.protocol("react").llm(ScriptedLLM([])).build()
    assert smith.name == "smith"
    assert smith.tools.mapped == {"AgentGenerator"}


main()
