"""Actors without a model next to agents: they use `tell` and `ask`, under one supervision.

A till counts money, and no model ever does; a clerk asks it by a tool. A postman hands letters to the clerk. What an
actor gives up is a dead letter, which can be listed and sent again.
"""

import trio

from actgent import BareAgent, ModelRequest, Runtime, ScriptedLLM, ToolCall, ToolResult, open_runtime, tool
from actgent.actors import Actor, Supervision


class Till(Actor):
    """Adds up what is paid in; a restart begins with what the book says."""

    book: list[int] = []  # noqa: RUF012 - what outlives a restart stands outside of the object
    is_locked = False

    def __init__(self) -> None:
        self.total = sum(self.book)

    async def receive(self, payload: object) -> int:
        if Till.is_locked:
            raise PermissionError("the till is locked")
        if isinstance(payload, int):
            self.book.append(payload)
            self.total += payload
        return self.total


class Postman(Actor):
    """Brings letters to the clerk, one after the other, and says what came of them."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    async def receive(self, payload: str) -> None:
        clerk = self.runtime.find("clerk")
        if clerk is not None:
            print(f"{payload!r}:", await clerk.ask(payload))


def answer(chat: ModelRequest) -> list[ToolCall] | str:
    """What a model would do: ask the till, and put the number into words."""
    last = chat.messages[-1].parts[-1]
    if isinstance(last, ToolResult):
        return f"There are {last.content} crowns in the till."
    return [ToolCall("look_into_till", {})]


async def main() -> None:
    # one_for_one is the default: an actor that fails restarts alone, at most 5 times in a minute
    async with open_runtime(supervision=Supervision(deliveries=1)) as runtime:
        till = await runtime.spawn(Till, name="till")

        @tool
        async def look_into_till() -> int:
            """Say how much money is there."""
            return int(await till.ask("how much?"))

        await runtime.start(BareAgent("clerk", llm=ScriptedLLM(answer), tools=[look_into_till]))
        postman = await runtime.spawn(lambda: Postman(runtime), name="postman")
        await till.tell(300)
        await till.tell(120)
        await postman.ask("What do we have?")

        Till.is_locked = True
        await till.tell(80)
        await till.wait_idle()
        for letter in runtime.dead_letters:
            print(f"not delivered: {letter.payload} to {letter.actor}, {letter.reason}")
        Till.is_locked = False
        for letter in runtime.dead_letters:
            await runtime.send_again(letter)
        await postman.ask("And now?")
        print(runtime)


trio.run(main)
