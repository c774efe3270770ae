"""Events are emitted as they occur: the tokens of an answer are available before the answer is complete.

Document: Performance Considerations, 3. Streaming (no buffering of the complete response).
"""

import json

import trio

from actgent import FinalEvent, StepsAgent, StreamEnd, Token

FINAL = json.dumps({"final_answer": "One, two, three, four."})


class Client:
    """A client of one's own that streams: it waits after its first half until the program has seen it."""

    def call(self, messages, **kwargs) -> str:
        return FINAL

    async def call_stream(self, messages, **kwargs):
        yield FINAL[:25]
        with trio.fail_after(1):
            await seen.wait()
        yield FINAL[25:]


async def main() -> None:
    text, complete, kinds = "", None, []
    async with StepsAgent("clerk", llm=Client()) as agent, agent.stream("Count.") as events:
        async for event in events:
            kinds.append(type(event))
            match event:
                case Token():
                    text += event.text
                    seen.set()
                case FinalEvent():
                    complete = event
    assert text
    assert kinds.index(Token) < kinds.index(StreamEnd)
    assert (complete.text, complete.complete) == ("One, two, three, four.", True)


seen = trio.Event()
trio.run(main)
