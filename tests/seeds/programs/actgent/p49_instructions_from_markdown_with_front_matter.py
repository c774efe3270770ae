"""Instructions are defined in markdown files with front matter, and loaded by AgentCoreConfigurator into an AgentCoreConfig.

Document: Instructions and Classification Types, Initial Configuration.

Differs: `read_folder("host")` loads the files into an `AgentFolder`. `AgentBuilder.from_folder` takes an
`AgentFolder`, also after the program changed it.
"""

from pathlib import Path

import attrs

from actgent import AgentBuilder, Instruction, ScriptedLLM, read_folder

BRAIN = """\
---
name: host
role: a host
goal: make guests feel at home
capabilities: [tell of rooms, order taxis]
instructions:
    greeting: "instructions/greeting.md"
---
Be brief.
"""
GREETING = """\
---
description: A greeting.
schemaTemplate: {"content": "<your greeting>"}
---
Greet each guest by name.
"""


def main() -> None:
    (Path("host") / "instructions").mkdir(parents=True)
    Path("host/brain.md").write_text(BRAIN)
    Path("host/instructions/greeting.md").write_text(GREETING)
    config = read_folder("host")
    assert (config.name, config.role, config.goal) == ("host", "a host", "make guests feel at home")
    [greeting] = config.instructions
    assert greeting.name == "greeting"
    assert greeting.schema == {"content": "<your greeting>"}
    assert "A greeting." in greeting.description
    assert "Greet each guest by name." in greeting.description

    changed = attrs.evolve(config, instructions=(*config.instructions, Instruction("farewell")))
    agent = AgentBuilder.from_folder(changed).llm(ScriptedLLM([])).build()
    assert [each.name for each in agent.profile.types] == ["greeting", "farewell"]
    for part in ("a host", "make guests feel at home", "tell of rooms", "order taxis", "Be brief."):
        assert part in agent.system_prompt, part


main()
