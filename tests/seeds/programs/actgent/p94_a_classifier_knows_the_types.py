"""A classifier is created with the classification types of its agent (`new ClassifierClass(schemaTypes)`), and validates answers by them.

Document: How Pairs Work Together, Template-Classifier Alignment; BareClassifier, SimpleClassifier ("this.schemaTypes").
"""

import trio

from actgent import Agent, ParseError, Protocol, ScriptedLLM, SendReply


class Hash(Protocol):
    """`#type text` is an answer of that type."""

    name = "hash"
    template = "Answer as #TYPE TEXT. Types:{% for type in profile.types %} {{ type.name }}{% endfor %}"

    def read(self, answer, view):
        name, _, text = answer.text.partition(" ")
        known = {f"#{each.name}": each for each in view.profile.types}
        if name not in known:
            raise ParseError(f"{name} is not one of {', '.join(known)}")
        return [SendReply(text=text, message_type=known[name].name)]


TYPES = [{"name": "greeting", "description": "Hello"}, {"name": "farewell", "description": "Bye"}]


async def main() -> None:
    llm = ScriptedLLM(["#goodbye Bye", "#farewell Bye"])
    async with Agent("host", llm=llm, types=TYPES, protocol=Hash()) as agent:
        reply = await agent.run("I have to go.")
    assert (reply.message_type, str(reply)) == ("farewell", "Bye")
    assert llm.chats[0].system.endswith("Types: greeting farewell")
    assert "#goodbye is not one of #greeting, #farewell" in str(llm.chats[1].messages[-1])
    assert Hash().classify("#greeting Hello", TYPES) == "greeting"
    assert not Hash().validate_response("#goodbye Bye", TYPES)


trio.run(main)
