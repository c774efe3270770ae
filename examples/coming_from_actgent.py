"""Migrate a program of actgent (TypeScript): a ReAct agent from `brain.md`, a mapped and a direct tool, handlers of two sessions."""

import json
import tempfile
from pathlib import Path
from typing import Any

import trio

from actgent import AgentBuilder, AgentGenerator, ModelError, ScriptedLLM, Session, tool

FILES = {
    "brain.md": """\
---
instructions: {creation: "instructions/creation.md", clarification: "instructions/clarification.md"}
---
You make agents.
""",
    "instructions/creation.md": """\
---
instructionName: Creation
schemaTemplate: "creation.json"
tool: "AgentGenerator"
---
The user wants a new agent.
""",
    "instructions/creation.json": '{"name": "<name>", "role": "<role>", "goal": "<goal>", "capabilities": ["<one>"]}',
    "instructions/clarification.md": '---\nschemaTemplate: "questions.json"\n---\nYou need to know more.\n',
    "instructions/questions.json": '{"questions": ["<question>"]}',
}


def answer(content: object, purpose: str = "DIRECT_RESPONSE") -> str:
    return json.dumps({"primary_action": {"response_purpose": purpose, "response_content": content}})


POET = {"name": "poet", "role": "a poet", "goal": "rhyme", "capabilities": ["odes"]}
SCRIPT: list[Any] = [
    answer({"name": "search_files", "parameters": {"pattern": "*.md"}}, "TOOL_INVOCATION"),
    answer("I have three files."),
    answer({"messageType": "Creation"} | POET),
    answer("Your poet is ready."),
    answer({"messageType": "clarification", "questions": ["Which role?"]}),
    ModelError("the provider does not answer"),
]


async def ask(session: Session, *questions: str) -> None:
    session.on_conversation(lambda reply: print(f"{session.owner}, reply: {reply}"))
    session.on_event(lambda event: print(f"{session.owner}, event: {event.name} {event.data}"))
    session.on_tool_result(lambda result: print(f"{session.owner}, {result.tool_name}: {result.text}"))
    session.on_exception(lambda failure: print(f"{session.owner}, failed: {failure}"))
    for question in questions:
        await session.chat(question)
        await session.wait_idle()


async def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "smith"
        (folder / "instructions").mkdir(parents=True)
        for name, text in FILES.items():
            (folder / name).write_text(text, encoding="utf-8")

        @tool
        def search_files(pattern: str) -> list[str]:
            """Find files by a pattern, e.g. *.md."""
            return sorted(path.name for path in folder.rglob(pattern))

        generator = AgentGenerator(Path(place) / "agents")
        builder = AgentBuilder.from_folder(folder, tools=[generator, search_files]).protocol("react")
        async with builder.llm(ScriptedLLM(SCRIPT)).build() as smith:
            await ask(await smith.create_session("ada"), "Which files do you have?", "Make me a poet.")
            await ask(await smith.create_session("bob"), "Make me an agent.", "Are you there?")


if __name__ == "__main__":
    trio.run(main)
