"""Write a protocol: a template for the prompt, and a classifier that reads the answer.

This protocol has two stages. First the model writes an outline as JSON. Then, with another prompt, the model writes
the text. If the outline cannot be parsed, the model is called again with the error.
"""

from collections.abc import Sequence
from typing import ClassVar

import trio

from actgent import (
    Agent,
    Continue,
    ModelResponse,
    Protocol,
    Request,
    ScriptedLLM,
    SendReply,
    TurnView,
    extract_only,
)


class Drafted(Protocol):
    """Protocol with two stages: an outline, then the text."""

    name: ClassVar[str] = "drafted"
    template: ClassVar[str] = "You are {{ profile.name }}, {{ profile.role }}."

    def request(self, view: TurnView) -> Request:
        if view.stage == "write":
            return Request(tail="Now write the text, a sentence for each point.")
        return Request(tail='First give an outline, as JSON: {"points": ["...", "..."]}')

    def read(self, answer: ModelResponse, view: TurnView) -> Sequence[Continue | SendReply]:
        if view.stage == "write":
            return [SendReply(text=answer.text)]
        points = extract_only(answer.text, self._what_is_wrong)["points"]
        return [Continue("write", note="The outline:\n" + "\n".join(f"- {point}" for point in points))]

    @staticmethod
    def _what_is_wrong(value: object) -> str | None:
        points = value.get("points") if isinstance(value, dict) else None
        return None if points else 'the answer must be {"points": [...]}, with at least one point'


SCRIPT = [
    "Sure, I will write about Oslo!",  # without a valid outline, the model is asked again
    'Here you are: {"points": ["the fjord", "the hills"]}',
    "Oslo lies at the end of a fjord. Behind it rise the hills.",
]


async def main() -> None:
    model = ScriptedLLM(SCRIPT)
    writer = Agent("writer", role="a writer of short texts", llm=model, protocol=Drafted())
    async with writer:
        reply = await writer.run("Write about Oslo.")
    print(reply)
    print(f"{len(model.chats)} model calls: no outline, an outline, the text")


if __name__ == "__main__":
    trio.run(main)
