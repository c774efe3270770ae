"""docs/architecture.md lists the files that process a chat message, and the number of files does not increase."""

import re
import sys
from pathlib import Path

import httpx2
import pytest

import actgent
from actgent import BareAgent, Labelled, ScriptedLLM, ToolCall, open_gateway, open_runtime, tool

PACKAGE = Path(actgent.__file__).parent
PAGE = PACKAGE.parent / "docs" / "architecture.md"
MAX_FILES = {"chat": 18, "tool call": 26, "chat with SQLite": 28, "POST with wait": 54}
"""Files of the package between the call and the handler. Lower a figure when a path gets shorter. A higher figure needs a reason."""


def listed_files() -> set[str]:
    """Return the files in the table of a chat."""
    section = PAGE.read_text(encoding="utf-8").split("A chat without tools")[1].split("A tool call adds")[0]
    return set(re.findall(r"`([\w/]+\.py)`", section))


class FileTrace(set[str]):
    """A profiler that collects the files of the package whose functions are called in its block."""

    def __enter__(self):
        self._former = sys.getprofile()
        sys.setprofile(self)
        return self

    def __exit__(self, *_):
        sys.setprofile(self._former)

    def __call__(self, frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            self.add(path.relative_to(PACKAGE).as_posix())


@tool(effect="pure", thread=False)
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def call_or_answer(request):
    """Return a tool call for the message "add", and a text for any other message."""
    last = request.messages[-1]
    is_asked = last.role == "user" and last.parts[0].text == "add"
    return ToolCall("add", {"a": 1, "b": 2}) if is_asked else "Done."


async def trace_chat(text: str, journal: str | None = None) -> FileTrace:
    """Return the files that process the second message of a session, so that the import of modules is not counted."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(call_or_answer), tools=[add]))
        session = await agent.create_session("ada")
        session.on_conversation(lambda _: None)
        await session.chat(text)
        await session.wait_idle()
        with FileTrace() as passed:
            await session.chat(text)
            await session.wait_idle()
    return passed


async def trace_post() -> FileTrace:
    """Return the files of the second `POST .../messages` with `Prefer: wait` to a session."""
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(BareAgent("a", llm=ScriptedLLM(call_or_answer)))
        async with (
            open_gateway(runtime, bind="127.0.0.1:0") as gateway,
            httpx2.AsyncClient(
                base_url=gateway.url, headers={"authorization": f"Bearer {gateway.key}", "prefer": "wait=30"}
            ) as client,
        ):
            await client.put("/v1/sessions/s", json={"agent": "a"})
            await client.post("/v1/sessions/s/messages", json={"input": "warm up"})
            with FileTrace() as passed:
                answer = await client.post("/v1/sessions/s/messages", json={"input": "hello"})
            assert answer.status_code == 200
    return passed


async def test_the_table_names_the_files_that_a_chat_passes():
    passed = await trace_chat("hello")
    assert passed - {"llm/scripted_model.py"} == listed_files()


@pytest.mark.parametrize("path", MAX_FILES)
async def test_a_path_passes_no_more_files_than_before(path, tmp_path, monkeypatch):
    monkeypatch.setattr(
        Labelled, "was_made", False
    )  # results are searched for labels after the first `Labelled` of a process
    if path == "POST with wait":
        passed = await trace_post()
    else:
        journal = f"sqlite:///{tmp_path}/j.db" if path == "chat with SQLite" else None
        passed = await trace_chat("add" if path == "tool call" else "hello", journal)
    assert len(passed) <= MAX_FILES[path], sorted(passed)
