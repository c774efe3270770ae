"""A life that remembers until it is killed: `remembering.py URL FIRST`.

It remembers notes from FIRST on, in groups, updates each third and forgets each fifth of them, each under a key of its own, and prints
the numbers of those that were confirmed.
"""

import os
import sys

import trio

from actgent import LongTermMemory

WRITERS = 8


async def live(url, first):
    """Remember and tell, until somebody ends this process."""

    async def write(memories, number):
        while True:
            await one(memories, number)
            os.write(1, f"{number}\n".encode())
            number += WRITERS

    async with LongTermMemory(url) as memories, trio.open_nursery() as nursery:
        for writer in range(WRITERS):
            nursery.start_soon(write, memories, first + writer)


async def one(memories, number):
    """A note of this number: remembered, and then replaced or forgotten; a repetition does nothing a second time."""
    made = await memories.remember(f"note {number}", owner="ada", key=f"put {number}", metadata={"n": number})
    if number % 5 == 0:
        await memories.forget(made.id, owner="ada")
    elif number % 3 == 0:
        await memories.update(made.id, f"note {number} again", owner="ada", key=f"update {number}")


if __name__ == "__main__":
    trio.run(live, sys.argv[1], int(sys.argv[2]))
