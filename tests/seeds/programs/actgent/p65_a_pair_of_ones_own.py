"""A new interaction pattern is a response format, a classifier and a template for it, and an agent class that uses both.

Document: Implementing New Pairs; Extensibility Model.
"""

import json

import trio

from actgent import Agent, Classifier, Event, ParseError, PromptTemplate, Protocol, ScriptedLLM, SendReply


class CustomTemplate(PromptTemplate):
    name = "custom"
    template = "You are {{ profile.name }}. Answer like {{ examples[0] }} or {{ examples[1] }}"
    examples = ('{"messageType": "say", "words": "Hello"}', '{"messageType": "ring", "times": 1}')


class CustomClassifier(Classifier):
    def read(self, answer, view):
        try:
            content = json.loads(answer.text)
            if content["messageType"] == "ring":
                return [Event(name="ring", data=content["times"])]
            return [SendReply(text=content["words"], message_type=content["messageType"])]
        except (ValueError, KeyError) as error:
            raise ParseError(f"not in the form of the example: {error!r}") from error


class CustomAgent(Agent):
    default_protocol = staticmethod(lambda: Protocol.pair(CustomTemplate(), CustomClassifier()))


async def main() -> None:
    llm = ScriptedLLM(
        ["Hello!", '{"messageType": "say", "words": "Hi"}', '{"messageType": "ring", "times": 2}']
    )
    async with CustomAgent("porter", llm=llm) as agent:
        session = await agent.create_session("ada", "Hello")
        replies, events = [], []
        session.on_conversation(lambda reply: replies.append((reply.message_type, str(reply))))
        session.on_event(lambda event: events.append((event.name, event.data)))
        await session.wait_idle()
        await session.chat("Ring twice.")
        await session.wait_idle()
    assert replies == [("say", "Hi")]
    assert events == [("ring", 2)]
    assert "not in the form of the example" in str(llm.chats[1].messages[-1].parts)
    assert '{"messageType": "say", "words": "Hello"}' in llm.chats[0].system


trio.run(main)
