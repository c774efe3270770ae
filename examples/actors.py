"""Run actors without a model together with an agent. The program uses `tell` and `ask`, and the runtime supervises all actors.

The actor `Till` counts money. The tool of the agent `clerk` asks the till. The actor `Postman` sends letters to the
clerk. A message that an actor cannot process becomes a dead letter, which the program lists and redelivers.
"""

import trio

from actgent import BareAgent, ModelRequest, Runtime, ScriptedLLM, ToolCall, ToolResult, open_runtime, tool
from actgent.actors import Actor, Supervision


class Till(Actor):
    """Actor that sums payments. After a restart, the sum of the payments in `book` is the initial total."""

    book: list[int] = []  # noqa: RUF012 - a class attribute survives the restart of the actor
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
    """Actor that sends letters to the clerk in order, and prints each answer."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    async def receive(self, payload: str) -> None:
        clerk = self.runtime.find("clerk")
        if clerk is not None:
            print(f"{payload!r}:", await clerk.ask(payload))


def answer(chat: ModelRequest) -> list[ToolCall] | str:
    """Answer as a model would: call the tool, then write a sentence with the amount."""
    last = chat.messages[-1].parts[-1]
    if isinstance(last, ToolResult):
        return f"There are {last.content} crowns in the till."
    return [ToolCall("look_into_till", {})]


async def main() -> None:
    # by default, only the failed actor restarts (one_for_one), at most 5 times per minute
    async with open_runtime(supervision=Supervision(deliveries=1)) as runtime:
        till = await runtime.spawn(Till, name="till")

        @tool
        async def look_into_till() -> int:
            """Return the amount of money in the till."""
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
