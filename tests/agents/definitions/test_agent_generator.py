"""`AgentGenerator`: an agent that registers it can write the folders of new agents."""

import json

import attrs
import pytest

from actgent import (
    AgentBuilder,
    AgentFolder,
    AgentGenerator,
    Instruction,
    InvalidFolder,
    ReActAgent,
    ScriptedLLM,
    SimpleAgent,
    ToolCall,
    read_folder,
)

NEW = {"name": "poet", "role": "a poet", "goal": "rhyme: always", "capabilities": ["sonnets"]}


def results_in(agent_chats):
    return str([message.parts for message in agent_chats[-1].messages])


async def test_an_agent_registers_the_generator(tmp_path):
    """`agent.tools.add(AgentGenerator(...))` lets an agent write the folder of a new agent, and the new agent runs."""
    output = tmp_path / "agents"
    agent = SimpleAgent(
        "smith",
        llm=ScriptedLLM(
            [ToolCall("AgentGenerator", NEW), '{"messageType": "DIRECT_RESPONSE", "content": "Done."}']
        ),
    )
    agent.tools.add(AgentGenerator(output))
    async with agent:
        assert str(await agent.run("Make me a poet.")) == "Done."
    made = read_folder(output / "poet")
    assert isinstance(made, AgentFolder)
    assert (made.name, made.role, made.goal, made.capabilities) == (
        "poet",
        "a poet",
        "rhyme: always",
        "sonnets",
    )
    async with AgentBuilder.from_folder(output / "poet").llm(ScriptedLLM(["Roses are red."])).build() as poet:
        assert str(await poet.run("A poem.")) == "Roses are red."


async def test_the_generator_is_mapped_to_an_instruction(tmp_path):
    """An instruction uses the generator's parameters as its schema. The new agent has instructions and a body."""
    generator = AgentGenerator(tmp_path)
    creation = Instruction("Creation", "A new agent.", generator.parameters, tool=generator.name)
    content = NEW | {"instructions": {"Greeting": "Someone says hello."}, "advice": "Be brief."}
    wrong = {"messageType": "Creation", "content": {"name": "poet"}}
    answers = [
        json.dumps({"primary_action": {"response_purpose": "DIRECT_RESPONSE", "response_content": each}})
        for each in (wrong, {"messageType": "Creation", "content": content}, "Done.")
    ]
    async with ReActAgent(
        "smith", llm=ScriptedLLM(answers), instructions=[creation], tools=[generator]
    ) as agent:
        assert str(await agent.run("Make me a poet.")) == "Done."
    made = read_folder(tmp_path / "poet")
    assert [(each.name, each.description) for each in made.instructions] == [
        ("Greeting", "Someone says hello.")
    ]
    assert made.body == "Be brief."


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "../poet"}, "write poet"),
        ({"name": "taken"}, "nothing is overwritten"),
        ({"instructions": {"Hi": "", "HI": ""}}, "two instructions are named"),
    ],
)
async def test_the_model_reads_why_no_agent_was_made(tmp_path, change, reason):
    """An invalid request writes no files, and the model reads the reason."""
    (tmp_path / "agents" / "taken").mkdir(parents=True)
    llm = ScriptedLLM(
        [ToolCall("AgentGenerator", NEW | change), '{"messageType": "DIRECT_RESPONSE", "content": "No."}']
    )
    async with SimpleAgent("smith", llm=llm, tools=[AgentGenerator(tmp_path / "agents")]) as agent:
        await agent.run("Make it.")
    assert reason in results_in(llm.chats)
    assert [each.name for each in (tmp_path / "agents").iterdir()] == ["taken"]
    assert [each.name for each in tmp_path.iterdir()] == ["agents"]


def test_a_generator_in_tools_py_is_known_to_the_check(tmp_path):
    """`read_folder()` finds a generator in tools.py, so an instruction can map to it."""
    folder = tmp_path / "smith"
    (folder / "instructions").mkdir(parents=True)
    (folder / "brain.md").write_text('---\ninstructions:\n    creation: "instructions/creation.md"\n---\n')
    (folder / "instructions" / "creation.md").write_text(
        '---\ninstructionName: Creation\nschemaTemplate: "creation.json"\ntool: "AgentGenerator"\n---\n'
    )
    (folder / "instructions" / "creation.json").write_text('{"name": "<name>"}')
    with pytest.raises(InvalidFolder, match="unknown tool 'AgentGenerator'"):
        read_folder(folder)
    (folder / "tools.py").write_text(
        'from actgent import AgentGenerator\n\ngenerator = AgentGenerator("agents")\n'
    )
    assert [(each.name, each.tool) for each in read_folder(folder).instructions] == [
        ("Creation", "AgentGenerator")
    ]
    agent = AgentBuilder.from_folder(folder).protocol("react").llm(ScriptedLLM([])).build()
    assert (agent.name, agent.tools.mapped) == ("smith", {"AgentGenerator"})
    changed = attrs.evolve(read_folder(folder), role="a maker of agents")
    assert AgentBuilder.from_folder(changed).llm(ScriptedLLM([])).build().profile.role == "a maker of agents"
