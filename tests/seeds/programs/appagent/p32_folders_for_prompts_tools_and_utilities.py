"""The agent is in folders: `/prompts` for system prompts, `/tools` for tools, `/utils` for mode transitions and tool handling.

Document: Directory Structure; Tool Implementation.

Differs: Mode transitions and access are built in, so a program needs no `/utils`. `brain.md` is the prompt, and
`tools/*.py` has the tools. The program adds `modes=Modes(...)`, which names the tools of each mode.
"""

from pathlib import Path

import trio

from actgent import AgentBuilder, Modes, ScriptedLLM, ToolCall

FILES = {
    "app/brain.md": "---\nrole: an app agent\ngoal: run the shop\n---\nBe careful.\n",
    "app/tools/execution.py": '''\
from actgent import tool


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    return f"{service} is deployed"
''',
    "app/tools/universal.py": '''\
from actgent import tool


@tool(thread=False)
def browse(address: str) -> str:
    """Read a page."""
    return f"the page of {address}"
''',
}


async def main() -> None:
    for name, text in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    calls = [ToolCall("browse", {"address": "example.org"}), ToolCall("deploy", {"service": "shop"})]
    modes = Modes(universal=["browse"], execution=["deploy"], initial="plan")
    llm = ScriptedLLM([calls, "Planned."])
    async with AgentBuilder.from_folder("app").llm(llm).build(modes=modes) as app:
        assert "an app agent" in app.system_prompt and "Be careful." in app.system_prompt
        session = await app.create_session("ada", "Go.")
        results = []
        session.on_tool_result(lambda result: results.append((result.tool_name, result.status)))
        await session.wait_idle()
    assert results == [("browse", "success"), ("deploy", "error")], results


trio.run(main)
