"""Changes to one protocol do not affect others, and agents with different protocols run in the same process.

Document: Encapsulated Protocol Pattern, Protocol Independence and Protocol Isolation.
"""

import json

import trio

from actgent import Agent, BareAgent, ReActAgent, ScriptedLLM, SendReply, SimpleAgent, open_runtime


class Shout(type(BareAgent("x", llm=ScriptedLLM([])).protocol)):
    """The bare protocol, changed."""

    name = "shout"
    template = "Shout."

    def read(self, answer, view):
        return [SendReply(text=answer.text.upper())]


DIRECT = {"response_purpose": "DIRECT_RESPONSE", "response_content": {"message": "hello"}}
ANSWERS = {
    BareAgent: "hello",
    SimpleAgent: json.dumps({"messageType": "DIRECT_RESPONSE", "content": "hello"}),
    ReActAgent: json.dumps({"question_nature": "SIMPLE", "primary_action": DIRECT}),
}


async def main() -> None:
    before = {kind: kind("a", llm=ScriptedLLM([])).system_prompt for kind in ANSWERS}
    async with open_runtime() as runtime:
        own = await runtime.start(Agent("own", llm=ScriptedLLM(["hello"]), protocol=Shout()))
        agents = [
            await runtime.start(kind(kind.__name__, llm=ScriptedLLM([text])))
            for kind, text in ANSWERS.items()
        ]
        assert str(await own.run("Hello")) == "HELLO"
        assert [str(await agent.run("Hello")) for agent in agents] == ["hello"] * 3
    assert {kind: kind("a", llm=ScriptedLLM([])).system_prompt for kind in ANSWERS} == before
    assert len(set(before.values())) == 3


trio.run(main)
