"""MEMORY: time of remember and recall among many memories of one owner, and recall quality of paraphrased questions."""

import os
import tempfile
import time

import trio
from measure import Figures, expect
from recalled_facts import RECALLS, embed, facts, sentences, times

from actgent import LongTermMemory

WRITERS = 100
"""Concurrent tasks that store memories."""


async def remember_and_recall(size: int) -> Figures:
    """Measure `LongTermMemory`."""
    with tempfile.TemporaryDirectory() as folder:
        figures = await _measure(f"sqlite:///{folder}/memories.db", size)
        if server := os.environ.get("BENCH_POSTGRES"):
            found = await _measure(server, size)
            figures |= {f"postgres_{name}": value for name, value in found.items()}
        plain = await _quality(f"sqlite:///{folder}/plain.db", has_vectors=False)
        both = await _quality(f"sqlite:///{folder}/both.db", has_vectors=True)
    return figures | plain | {f"vectors_{name}": value for name, value in both.items()}


async def _measure(url: str, size: int) -> Figures:
    said = sentences(1)
    async with LongTermMemory(url) as memories:

        async def write(count: int) -> None:
            for _ in range(count):
                await memories.remember(said(14), owner="ada")

        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(WRITERS):
                nursery.start_soon(write, size // WRITERS)
        written = time.perf_counter() - started
        took = []
        for _ in range(RECALLS):
            question = said(6)
            started = time.perf_counter()
            found = await memories.recall(question, owner="ada")
            took.append(time.perf_counter() - started)
            expect(seen=len(found), wanted=10, what="memories of a recall")
    return {"remember_us": written / (size // WRITERS * WRITERS) * 1e6, **times(took)}


async def _quality(url: str, *, has_vectors: bool) -> Figures:
    async with LongTermMemory(url, embed=embed if has_vectors else None) as memories:
        first = five = 0
        known = list(facts())
        for fact, _ in known:
            await memories.remember(fact, owner="ada")
        for fact, question in known:
            found = [each.memory.text for each in await memories.recall(question, owner="ada", limit=5)]
            first += found[:1] == [fact]
            five += fact in found
    return {"found_first": 100 * first / len(known), "found_in_5": 100 * five / len(known)}
