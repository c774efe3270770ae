"""Migrate a program of acton-agent: a custom client, a class and a function as tools, a custom memory, events and errors."""

import json
from collections.abc import Iterator
from typing import Any

import trio

from actgent import FunctionTool, LimitReached, Message, ModelError, StepsAgent


class Client:
    """Client that answers from a script. A real client sends the messages to a provider."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    def call(self, messages: list[Any], **kwargs: Any) -> str:
        if not self.answers:
            raise ConnectionError("no route to the model")
        return self.answers.pop(0)

    def call_stream(self, messages: list[Any], **kwargs: Any) -> Iterator[str]:
        yield self.call(messages, **kwargs)


class Calculator:
    """Adds two numbers."""

    def execute(self, parameters: dict[str, Any]) -> str:
        return str(parameters["a"] + parameters["b"])

    def get_schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}


def weather(city: str) -> str:
    return {"Turin": "sunny", "Oslo": "rain"}[city]


class LastTwenty:
    """Memory that includes the newest 20 messages in a request."""

    def manage_history(self, history: list[Message]) -> list[Message]:
        return history[-20:]


def agent(*answers: dict[str, Any], max_iterations: int = 10) -> StepsAgent:
    llm = Client(*map(json.dumps, answers))
    ask = FunctionTool("weather", "Tells the weather.", weather)
    return StepsAgent(
        "aide", llm=llm, memory=LastTwenty(), tools=[Calculator(), ask], max_iterations=max_iterations
    )


def use(tool: str, **parameters: Any) -> dict[str, Any]:
    return {"tool_calls": [{"id": "1", "tool_name": tool, "parameters": parameters}]}


async def main() -> None:
    streaming = agent({"plan": "Ask."}, use("weather", city="Turin"), {"final_answer": "It is sunny."})
    async with streaming, streaming.stream("How is Turin?") as events:
        print([type(event).__name__ async for event in events if getattr(event, "complete", True)])
    async with agent(use("weather", city="Atlantis"), {"final_answer": "Who knows?"}) as patient:
        talk = await patient.open_conversation()
        print(await talk.run("How is Atlantis?"))
        print([result.error for message in talk.history for result in message.tool_results])


if __name__ == "__main__":
    print(agent(use("Calculator", a=2, b=3), {"final_answer": "It is 5."}).run_sync("What is 2 + 3?"))
    trio.run(main)
    for failing in (agent(), agent(use("weather", city="Turin"), {"plan": "More."}, max_iterations=2)):
        try:
            failing.run_sync("How is Turin?")
        except LimitReached as error:
            print("too many iterations:", error)
        except ModelError as error:
            print("no answer:", error.__cause__)
