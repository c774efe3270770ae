"""The helper classes are not mandatory: types, prompt template and AgentCore are combined directly, as in basic-agent.ts.

Document: Helper Classes, Direct Implementation.
"""

import json

import trio

from actgent import (
    Agent,
    AgentCore,
    ClassificationType,
    Classifier,
    PromptTemplate,
    Protocol,
    ScriptedLLM,
    SendReply,
)

TYPES = [ClassificationType("greeting", "A greeting."), ClassificationType("farewell", "A goodbye.")]
PASSES = []


class Template(PromptTemplate):
    name = "basic"
    template = "You are {{ profile.name }}. Answer as JSON, like {{ examples[0] }}. Types: {{ profile.types | map(attribute='name') | join(', ') }}"
    examples = ('{"type": "greeting", "text": "Hello"}',)


class Reader(Classifier):
    def read(self, answer, view):
        content = json.loads(answer.text)
        return [SendReply(text=content["text"], message_type=content["type"])]


class Core(AgentCore):
    def remember(self, context, turn, message):
        PASSES.append(message.text)
        super().remember(context, turn, message)


class BasicAgent(Agent):
    core_type = Core


async def main() -> None:
    llm = ScriptedLLM(['{"type": "farewell", "text": "Goodbye"}'])
    protocol = Protocol.pair(Template(), Reader())
    async with BasicAgent("host", llm=llm, types=TYPES, protocol=protocol) as agent:
        reply = await agent.run("Bye")
    assert (reply.message_type, str(reply)) == ("farewell", "Goodbye")
    assert PASSES == ["Bye"]
    assert llm.chats[0].system.endswith("Types: greeting, farewell"), llm.chats[0].system


trio.run(main)
