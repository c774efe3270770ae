"""What a model without the base class costs a turn: an object with `complete`, and a function of messages."""

from contextlib import AsyncExitStack

import trio.lowlevel
from measure import ANSWER, Figures, Stopwatch, expect, short

from actgent import LLM, BareAgent, Text
from actgent.llm.model_interface import ModelRequest, ModelResponse, OnText

ROUNDS = 25


class Subclass(LLM):
    """Answers at once."""

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await trio.lowlevel.checkpoint()
        return ModelResponse(parts=(Text(ANSWER),))


class WithoutBase:
    """The same by its method alone."""

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await trio.lowlevel.checkpoint()
        return ModelResponse(parts=(Text(ANSWER),))


async def function(messages: list[dict[str, str]]) -> str:
    """The same by text."""
    expect(seen=messages[-1]["role"], wanted="user", what="roles")
    await trio.lowlevel.checkpoint()
    return ANSWER


async def measure_adapted(count: int) -> Figures:
    """CPU of a turn beyond that with a subclass: the least of each of many short rounds that take turns."""
    best = dict.fromkeys(("subclass", "object", "function"), float("inf"))
    agents = {
        "subclass": BareAgent("subclass", llm=Subclass()),
        "object": BareAgent("object", llm=WithoutBase()),
        "function": BareAgent("function", llm=function),
    }
    async with AsyncExitStack() as stack:
        for agent in agents.values():
            await stack.enter_async_context(agent)
        for _ in range(ROUNDS):
            for name, agent in agents.items():
                best[name] = min(best[name], await _turns(agent, max(1, count // ROUNDS)))
    return {
        "turn_us": best["subclass"],
        "object_us": max(0.0, best["object"] - best["subclass"]),
        "function_us": max(0.0, best["function"] - best["subclass"]),
    }


async def _turns(agent: BareAgent, count: int) -> float:
    """CPU of a turn of fresh sessions."""
    answers = 0

    def count_answer(_: object) -> None:
        nonlocal answers
        answers += 1

    sessions = [await agent.create_session("ada") for _ in range(count)]
    for session in sessions:
        session.on_conversation(count_answer)
    watch = Stopwatch()
    for number, session in enumerate(sessions):
        await session.chat(short(number))
    for session in sessions:
        await session.wait_idle()
    turn_us = watch.cpu_us(count)
    expect(seen=answers, wanted=count, what="answers")
    for session in sessions:
        await session.aclose()
    return turn_us
