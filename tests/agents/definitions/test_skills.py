"""Skills: listed in the prompt and read by a tool, only from their own folder."""

import pytest

from actgent import AgentBuilder, InvalidFolder, ScriptedLLM, ToolCall
from actgent.definitions.folder_creation import write_folder

FILES = {
    "brain.md": "---\nname: x\n---\n",
    "skills/pdf-reading/SKILL.md": "---\nname: pdf-reading\ndescription: Read PDF files.\nversion: 3\n---\nOpen it first.",
    "skills/pdf-reading/reference/forms.md": "All about forms.",
    "skills/notes/README.md": "no skill",
}


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path, "x", FILES).path


async def loaded(folder, **arguments):
    """Run an agent that calls `load_skill`. Return its model and the tool result."""
    llm = ScriptedLLM([ToolCall("load_skill", arguments), "done"])
    agent = AgentBuilder.from_folder(folder).llm(llm).build()
    async with agent:
        session = await agent.create_session("ada")
        results = []
        session.on_tool_result(results.append)
        await session.chat("hi")
        await session.wait_idle()
    return llm, results[0]


async def test_skill_is_read_at_the_request_of_the_model(folder):
    """The prompt has name and description of a skill. Only the tool result has its body."""
    llm, result = await loaded(folder, name="pdf-reading")
    assert "- pdf-reading: Read PDF files." in llm.chats[0].system
    assert "Open it first." not in llm.chats[0].system
    assert (result.status, result.content) == ("success", "Open it first.")


async def test_a_further_file_is_read(folder):
    """`load_skill` reads a file of the skill by its path."""
    _, result = await loaded(folder, name="pdf-reading", file="reference/forms.md")
    assert result.content == "All about forms."


@pytest.mark.parametrize("file", ["../../brain.md", "/etc/passwd", "link.md", "nothing.md", "reference"])
async def test_a_skill_reads_only_its_own_folder(folder, file):
    """A path or a link out of the skill's folder gives an error result."""
    (folder / "skills/pdf-reading/link.md").symlink_to(folder / "brain.md")
    _, result = await loaded(folder, name="pdf-reading", file=file)
    assert result.status == "error"
    assert "name: x" not in result.text


async def test_an_unknown_skill_is_refused(folder):
    """An unknown skill name gives an error result."""
    _, result = await loaded(folder, name="cooking")
    assert result.status == "error"


@pytest.mark.parametrize(
    "text",
    [
        "---\nname: other\ndescription: d\n---\n",
        "---\nname: Pdf_Reading\ndescription: d\n---\n",
        "---\nname: pdf-reading\n---\n",
        "---\nname: pdf-reading\ndescription: 3\n---\n",
        "no front matter",
    ],
)
def test_a_skill_is_named_like_its_folder_and_described(tmp_path, text):
    """SKILL.md must have the name of its folder and a text description."""
    with pytest.raises(InvalidFolder, match=r"skills/pdf-reading/SKILL.md:\d"):
        write_folder(tmp_path, "x", {**FILES, "skills/pdf-reading/SKILL.md": text})
