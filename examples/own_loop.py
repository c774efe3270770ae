"""Write a loop of two models: a cheap model writes drafts, until a strong model accepts a draft.

Each request names the role of its model, and `models=` maps roles to models. The loop stores its data in the state of the
session, so with a journal the loop resumes after a crash.
"""

import json
from typing import Any, ClassVar

import trio

from actgent import Agent, Event, ScriptedLLM
from actgent.llm.model_interface import ModelResponse
from actgent.protocols.protocol_interface import (
    Continue,
    Outcome,
    Protocol,
    Request,
    SendReply,
    TurnView,
    UpdateState,
)
from actgent.structured_output.extract_json import extract_only

ROUNDS = 3
"""Maximum number of drafts. The last draft is sent in any case, together with its flaws."""


class Reviewed(Protocol):
    """Protocol with the stages draft and review, which alternate."""

    name: ClassVar[str] = "reviewed"
    template: ClassVar[str] = "You are {{ profile.name }}, {{ profile.role }}."

    def request(self, view: TurnView) -> Request:
        if view.stage == "review":
            return Request(
                model="critic", tail='Judge the draft strictly, as JSON: {"good": true, "flaws": []}'
            )
        return Request(model="drafter", tail="Write the text, and nothing else.")

    def read(self, answer: ModelResponse, view: TurnView) -> list[Outcome]:
        if view.stage == "review":
            return self._judge(extract_only(answer.text, _what_is_wrong), view)
        number = view.state.get("drafts", 0) + 1
        kept = UpdateState(lambda _: [("draft", answer.text), ("drafts", number)])
        return [kept, Event(name="draft", data=number), Continue("review", "Here is the draft.")]

    def _judge(self, judged: dict[str, list[str]], view: TurnView) -> list[Outcome]:
        flaws, draft = "; ".join(judged["flaws"]), view.state["draft"]
        if judged["good"] or view.state["drafts"] == ROUNDS:
            said = SendReply(text=draft, message_type="good" if judged["good"] else f"still wrong: {flaws}")
            return [UpdateState(lambda _: ("drafts", 0)), said]
        return [Continue("draft", f"Mend these flaws: {flaws}.")]


def _what_is_wrong(value: Any) -> str | None:
    flaws = value.get("flaws") if isinstance(value, dict) else None
    if not isinstance(flaws, list) or not isinstance(value.get("good"), bool):
        return 'the answer must be {"good": true or false, "flaws": ["..."]}'
    return None if value["good"] or flaws else "say what is wrong with it"


async def main() -> None:
    cheap = ScriptedLLM(["Oslo is big.", "Oslo has 720,000 people and lies by a fjord."], name="cheap")
    flaw = {"good": False, "flaws": ["it does not say how big"]}
    strong = ScriptedLLM([json.dumps(flaw), '{"good": true, "flaws": []}'], name="strong")
    writer = Agent(
        "writer",
        role="a writer of short texts",
        llm=cheap,
        models={"drafter": cheap, "critic": strong},
        protocol=Reviewed(),
    )
    async with writer:
        reply = await writer.run("Describe Oslo.")
    print(f"{reply.message_type}: {reply}")
    print(f"calls: {len(cheap.chats)} of {cheap.name}, {len(strong.chats)} of {strong.name}")


if __name__ == "__main__":
    trio.run(main)
