"""Cost per turn of models without the base class: an object with `complete`, and a function of messages."""

from contextlib import AsyncExitStack

import trio.lowlevel
from measure import ANSWER, Figures, Stopwatch, expect, short

from actgent import LLM, BareAgent, Text
from actgent.llm.model_interface import ModelRequest, ModelResponse, OnText

ROUNDS = 25


class Subclass(LLM):
    """A subclass that answers immediately."""

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await trio.lowlevel.checkpoint()
        return ModelResponse(parts=(Text(ANSWER),))


class WithoutBase:
    """An object with the same method and without the base class."""

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await trio.lowlevel.checkpoint()
        return ModelResponse(parts=(Text(ANSWER),))


async def function(messages: list[dict[str, str]]) -> str:
    """Return the same answer as text."""
    expect(seen=messages[-1]["role"], wanted="user", what="roles")
    await trio.lowlevel.checkpoint()
    return ANSWER


async def measure_adapted(count: int) -> Figures:
    """Return the CPU of a turn beyond a turn with a subclass: the minimum of many short alternating rounds."""
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
    """Return the CPU of a turn in new sessions."""
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
