"""The path of a message in docs/architecture.md names the files that a chat passes."""

import re
import sys
from pathlib import Path

import actgent
from actgent import BareAgent, ScriptedLLM

PACKAGE = Path(actgent.__file__).parent
PAGE = PACKAGE.parent / "docs" / "architecture.md"


def listed_files() -> set[str]:
    """Return the files in the table of a chat."""
    section = PAGE.read_text(encoding="utf-8").split("A chat without tools")[1].split("A tool call adds")[0]
    return set(re.findall(r"`([\w/]+\.py)`", section))


class FileTrace(set[str]):
    """Profiler that collects the files of the package whose functions are called."""

    def __call__(self, frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            self.add(path.relative_to(PACKAGE).as_posix())


async def test_the_table_names_the_files_that_a_chat_passes():
    """The second message of a session is traced, so that no module is loaded on its way."""
    async with BareAgent("a", llm=ScriptedLLM(lambda _: "Done.")) as agent:
        session = await agent.create_session("ada")
        session.on_conversation(lambda _: None)
        await session.chat("warm up")
        await session.wait_idle()
        passed = FileTrace()
        sys.setprofile(passed)
        try:
            await session.chat("hello")
            await session.wait_idle()
        finally:
            sys.setprofile(None)
    assert passed - {"llm/scripted.py"} == listed_files()
