"""Pipeline with two concurrent searches, a condition and a retried step. Then the program repeats the run from one step.

Each step is a task of an agent, in a child session of the run.
"""

import json
from typing import TypedDict

import trio

from actgent import BareAgent, ModelRequest, Pipeline, PipelineStep, ScriptedLLM, Text, When, open_runtime


class Source(TypedDict):
    """Address of a source, and the depth of the lake in metres."""

    url: str
    depth: int


def find(chat: ModelRequest) -> str:
    """Answer as a model would: return the source as JSON."""
    lake = _told(chat).removeprefix("Find out about ")
    return json.dumps(
        {"url": f"https://lakes.example/{lake}", "depth": {"Baikal": 1642, "Geneva": 310}[lake]}
    )


def write(chat: ModelRequest) -> str:
    """Answer as a model would: repeat the task as a sentence."""
    return f"{_told(chat)}."


def _told(chat: ModelRequest) -> str:
    part = chat.messages[0].parts[0]
    return part.text if isinstance(part, Text) else ""


finder = BareAgent("finder", llm=ScriptedLLM(find))
# The first attempt of the writer fails.
writer = BareAgent(
    "writer", llm=ScriptedLLM([ConnectionError("the line is dead"), write, write, write, write])
)
pipeline = Pipeline(
    "lakes",
    steps=[
        PipelineStep("first", agent=finder, message="Find out about {lake}", output=Source),
        PipelineStep("second", agent=finder, message="Find out about {other}", output=Source),
        PipelineStep(
            "deeper",
            agent=writer,
            message="{lake} is {first.depth} m deep, {other} only {second.depth}",
            when=When.greater("first.depth", "{second.depth}"),
            retries=2,
            timeout=60,
        ),
        PipelineStep("flat", agent=writer, message="Both", when=When.equal("first.depth", "{second.depth}")),
        PipelineStep("page", agent=writer, message="{deeper?}{flat?} See {first.url}"),
    ],
)


async def main() -> None:
    async with (
        open_runtime() as runtime
    ):  # with journal="sqlite:///runs.db", a run survives a restart of the process
        await runtime.start(pipeline)
        result = await pipeline.process({"lake": "Baikal", "other": "Geneva"}, session_id="monday")
        print(pipeline.draw(result))
        print(f"{result.status}: {result}")
        print("deeper took", result.steps["deeper"].tries, "tries")
        again = await pipeline.retry("monday", "deeper")
        print("again:", *(each.session_id for each in again.steps.values()))


if __name__ == "__main__":
    trio.run(main)
