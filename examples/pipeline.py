"""A pipeline: two searches side by side, a condition, a draft that is tried again, and a run that goes on from a step.

Each step is a task for an agent, in a session of its own below that of the run.
"""

import json
from typing import TypedDict

import trio

from actgent import BareAgent, ModelRequest, Pipeline, PipelineStep, ScriptedLLM, Text, When, open_runtime


class Source(TypedDict):
    """Where something stands, and how deep the lake is."""

    url: str
    depth: int


def find(chat: ModelRequest) -> str:
    """What a model would do: look it up, in the form that was asked for."""
    lake = _told(chat).removeprefix("Find out about ")
    return json.dumps(
        {"url": f"https://lakes.example/{lake}", "depth": {"Baikal": 1642, "Geneva": 310}[lake]}
    )


def write(chat: ModelRequest) -> str:
    """The same, for words."""
    return f"{_told(chat)}."


def _told(chat: ModelRequest) -> str:
    part = chat.messages[0].parts[0]
    return part.text if isinstance(part, Text) else ""


finder = BareAgent("finder", llm=ScriptedLLM(find))
# The first try of the writer fails.
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
    async with open_runtime() as runtime:  # with journal="sqlite:///runs.db" a run outlives the process
        await runtime.start(pipeline)
        result = await pipeline.process({"lake": "Baikal", "other": "Geneva"}, session_id="monday")
        print(pipeline.draw(result))
        print(f"{result.status}: {result}")
        print("deeper took", result.steps["deeper"].tries, "tries")
        again = await pipeline.retry("monday", "deeper")
        print("again:", *(each.session_id for each in again.steps.values()))


if __name__ == "__main__":
    trio.run(main)
