"""Write an agent class with a custom prompt template, classifier and core.

The system prompt is rendered once per agent, the assistant prompt once per session, and the user prompt in each pass.
The classifier parses `VERDICT: reason`. The core is the pipeline of an agent. This core overrides one step, and counts
the refusals in the state of the session.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import trio

from actgent import (
    Agent,
    AgentCore,
    Classifier,
    ModelResponse,
    PromptTemplate,
    Protocol,
    ScriptedLLM,
    SendReply,
    TurnView,
)
from actgent.errors import ParseError

VERDICTS = ("approve", "refuse")


class Verdicts(PromptTemplate):
    """Prompt template that asks for a verdict and its reason."""

    name: ClassVar[str] = "verdicts"
    template: ClassVar[str] = """\
You are {{ profile.name }}, {{ profile.role }}. Answer with a verdict and a reason on one line, for example:
{% for example in examples %}
{{ example }}
{% endfor %}
"""
    assistant_template: ClassVar[str] = "I judge what {{ session.owner }} asks for."
    user_template: ClassVar[str] = "requests refused so far: {{ state.get('refused', 0) }}"
    examples: ClassVar[Sequence[str]] = ("approve: it is cheap", "refuse: it is not needed")


class VerdictReader(Classifier):
    """Classifier that parses the verdict and its reason."""

    def read(self, answer: ModelResponse, view: TurnView) -> list[SendReply]:
        verdict, colon, reason = (part.strip() for part in answer.text.partition(":"))
        if verdict not in VERDICTS or not colon:
            raise ParseError("a verdict comes first: approve or refuse, a colon, the reason", answer.text)
        return [SendReply(text=reason, message_type=verdict)]


class CountingCore(AgentCore):
    """Core that counts the refusals in the state of the session."""

    async def act(self, context: Any, turn: Any, message: Any, outcomes: Sequence[Any]) -> None:
        if refused := [each for each in outcomes if getattr(each, "message_type", None) == "refuse"]:
            context.state.dispatch(lambda state: ("refused", state.get("refused", 0) + len(refused)))
        await super().act(context, turn, message, outcomes)


class Judge(Agent):
    """Agent that approves or refuses requests."""

    core_type = CountingCore

    @staticmethod
    def default_protocol() -> Protocol:
        return Protocol.pair(Verdicts(), VerdictReader())


async def main() -> None:
    model = ScriptedLLM(["refuse: we have two printers", "Sure!", "approve: paper is used up"])
    async with Judge("judge", role="who decides over purchases", llm=model) as judge:
        session = await judge.create_session("Ada")
        for wish in ("a printer", "paper"):
            reply = await judge.run(wish, session=session)
            print(f"{wish}: {reply.message_type}, {reply}")
        print("refused:", session.state["refused"])
    last = model.chats[-1]
    print("assistant:", last.messages[0].parts[0].text)  # type: ignore[union-attr]
    print("user:", last.messages[-1].parts[0].text)  # type: ignore[union-attr]


if __name__ == "__main__":
    trio.run(main)
