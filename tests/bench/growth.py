"""Cost of a chunk, a turn and a query as an answer in JSON, the number of child sessions or the history grows."""

import json
import time
from collections.abc import Awaitable, Callable

import trio
from measure import ANSWER, Figures, Stopwatch, expect, percentile

from actgent import BareAgent, ReActAgent, RouterAgent, ScriptedLLM, Session, SimpleAgent, StepsAgent

PIECE = 4
"""Characters of a chunk, about one token."""
TURNS = 200
SHARE = 16
"""Divisor of the size for the smaller comparison."""


def _simple(text: str) -> object:
    return {"messageType": "DIRECT_RESPONSE", "content": text}


def _react(text: str) -> object:
    action = {"response_purpose": "DIRECT_RESPONSE", "response_description": text, "response_content": "text"}
    return {"question_nature": "SIMPLE", "context": {}, "primary_action": action}


def _router(text: str) -> object:
    return {"top_level_intent": "CONVERSATION", "response": text}


def _steps(text: str) -> object:
    return {"final_answer": text, "thought": "so it is"}


FORMS = {
    "simple": (SimpleAgent, _simple),
    "react": (ReActAgent, _react),
    "router": (RouterAgent, _router),
    "steps": (StepsAgent, _steps),
}


async def measure_streams(characters: int) -> Figures:
    """Return CPU per chunk of a JSON answer by protocol, and the ratio of a long answer to a short one."""
    figures: Figures = {}
    for name in FORMS:
        short, long = await _chunk_us(name, characters // SHARE), await _chunk_us(name, characters)
        figures |= {f"{name}_us": long, f"{name}_growth": long / short}
    return figures | {
        "chunk_us": max(figures[f"{name}_us"] for name in FORMS),
        "growth": max(figures[f"{name}_growth"] for name in FORMS),
    }


async def _chunk_us(name: str, characters: int) -> float:
    kind, form = FORMS[name]
    content = ("word " * (characters // 5 + 1))[:characters]
    text, seen = json.dumps(form(content)), []
    llm = ScriptedLLM([text], chunk=PIECE)
    options = {"routes": {"NOBODY": BareAgent("nobody", llm=llm)}} if kind is RouterAgent else {}
    async with kind("bench", llm=llm, **options) as agent:
        session, done = await agent.create_session("ada"), trio.Event()
        session.on_token(lambda token: seen.append(token.text))
        session.on_conversation(lambda _: done.set())
        watch = Stopwatch()
        await session.chat("go")
        await done.wait()
        chunk_us = watch.cpu_us(len(text) // PIECE)
    expect(seen="".join(seen), wanted=content, what="the streamed text")
    return chunk_us


async def measure_tree(count: int) -> Figures:
    """Compare a turn of a session with many child sessions, and queries of its children and history, with the same without children."""
    async with BareAgent("bench", llm=ScriptedLLM([ANSWER], repeat=True, keep=0)) as agent:
        session = await agent.create_session("ada")
        alone_us = await _turn_us(session)
        for _ in range(count):
            await agent.create_session("ada", parent=session)
        turn_us = await _turn_us(session)
        approvals_us = _each_us(lambda: session.approvals)
        history_us = _each_us(lambda: session.history)
    return {
        "turn_us": turn_us,
        "growth": turn_us / alone_us,
        "approvals_us": approvals_us,
        "history_us": history_us,
    }


async def _turn_us(session: Session) -> float:
    async def turn() -> None:
        await session.chat("hi")
        await session.wait_idle()

    return await _median_us(turn)


async def _median_us(act: Callable[[], Awaitable[None]]) -> float:
    times = []
    for _ in range(TURNS):
        started = time.process_time()
        await act()
        times.append((time.process_time() - started) * 1e6)
    return percentile(times, 0.5)


def _each_us(look: Callable[[], object]) -> float:
    watch = Stopwatch()
    for _ in range(1000):
        look()
    return watch.cpu_us(1000)
