"""Programs that create their agent inside `main()`, opened by `actgent chat FILE`."""

import re
from pathlib import Path

import pytest

from actgent import ConfigurationError, NotRunning
from actgent.cli.chat_and_run_commands import open_agent, open_conversation
from actgent.cli.command_options import ChatOptions
from actgent.cli.console.conversation_output import TextView
from actgent.cli.terminal_io import Terminal
from actgent.messages import Text

README = Path(__file__).parents[1] / "README.md"
IMPORTS = "import sys, trio\nfrom actgent import *\n"


@pytest.fixture
def program(tmp_path):
    """Return a function that writes a program to a file: `program(code)`."""

    def write(code, name="program.py"):
        path = tmp_path / name
        path.write_text(IMPORTS + code, encoding="utf-8")
        return str(path)

    return write


def talking(place, **options):
    """Open a conversation with the agent of a program."""
    return open_conversation(ChatOptions(file=place, **options), TextView(Terminal()))


async def test_programs_of_the_readme_can_be_used(tmp_path, monkeypatch, no_keys):
    """Each program can be used for a conversation. The conversation in the program does not run."""
    no_keys.setenv("OPENAI_API_KEY", "none")
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    whole = [code for code in programs if "trio.run(" in code]
    assert len(whole) >= 2
    for number, code in enumerate(whole):
        path = tmp_path / f"readme_{number}.py"
        path.write_text(code, encoding="utf-8")
        async with talking(str(path)) as (agent, session):
            assert session.history == ()
            assert agent.name in code


async def test_resources_of_a_program_stay_open(program):
    """The `async with` block of the program exits when the conversation ends."""
    place = program("""
class Shop:
    is_open = False
    async def __aenter__(self):
        Shop.is_open = True
    async def __aexit__(self, *_):
        Shop.is_open = False

@tool
def look() -> str:
    "Look."
    return f"open: {Shop.is_open}"

async def main():
    async with Shop(), open_runtime() as runtime:
        llm = ScriptedLLM([ToolCall("look", {}), lambda chat: chat.messages[-1].parts[0].text])
        await runtime.start(BareAgent("other", llm=ScriptedLLM([])))
        agent = await runtime.start(BareAgent("clerk", llm=llm, tools=[look]))
        await agent.run("its own question")
        raise AssertionError("it goes on")

if __name__ == "__main__":
    trio.run(main)
""")
    async with talking(place) as (agent, session):
        reply = await agent.run("Look", session=session)
        assert "open: True" in reply.text
        tool, _ = agent.tools
        first = session.history[0]
        assert first.parts == (Text("Look"),)
    assert "open: False" in str(tool.function() if hasattr(tool, "function") else tool())


@pytest.mark.parametrize(
    ("talk", "name"),
    [
        ("await agent.run('x')", "clerk"),
        ("async with agent.stream('x') as events: pass", "clerk"),
        ("await agent.ensure_session('ada', 's')", "clerk"),
        ("await other.run('x'); await agent.run('x')", "other"),
    ],
)
async def test_first_used_agent_is_selected(program, talk, name):
    """Any call that starts a conversation selects its agent. A name selects another agent."""
    place = program(f"""
async def main(word):
    other = BareAgent("other", llm=ScriptedLLM(["I am other."]))
    agent = BareAgent("clerk", llm=ScriptedLLM(["I am the clerk."]))
    async with other, agent:
        {talk}

sys.exit(trio.run(main, "word"))
""")
    async with talking(place) as (agent, _):
        assert agent.name == name
    async with talking(f"{place}:{name}") as (agent, session):
        assert (await agent.run("Hello", session=session)).text.startswith("I am")


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("async def main():\n    1 / 0\ntrio.run(main)", "ZeroDivisionError in line 4"),
        ("async def main():\n    pass\ntrio.run(main)", "ended without starting a conversation"),
        ("x = 1", "defines no agent at its top level: write `agent = BareAgent"),
        ("import asyncio\nasync def main():\n    pass\nasyncio.run(main())", "runs on asyncio"),
        ("raise SystemExit(3)", "SystemExit in line 3"),
        (
            "async def main():\n    await BareAgent('a', llm=ScriptedLLM(['x'])).run('x')\ntrio.run(main)",
            "not running",
        ),
    ],
)
async def test_unusable_programs_are_reported(program, code, answer):
    """The line states the reason."""
    with pytest.raises((ConfigurationError, NotRunning), match=answer):
        async with talking(program(code)):
            pass


async def test_options_not_supported_for_programs(program):
    """Options for the journal and the model are rejected, because the program sets both."""
    place = program(
        "async def main():\n    async with BareAgent('a', llm=ScriptedLLM(['x'])) as a:\n        await a.run('x')\ntrio.run(main)"
    )
    for options in ({"journal": "x.db"}, {"offline": True}, {"model": "openai:x"}):
        with pytest.raises(ConfigurationError, match=r"its own agent|own model"):
            async with talking(place, **options):
                pass
    with pytest.raises(ConfigurationError, match="top level"):
        async with open_agent(ChatOptions(file=place)):
            pass
