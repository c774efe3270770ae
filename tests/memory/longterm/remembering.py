"""A process that writes memories until it is killed: `remembering.py URL FIRST`.

It writes notes from FIRST on in concurrent writers, updates each third note and forgets each fifth note, all with
keys. It prints the numbers of the confirmed notes.
"""

import os
import sys

import trio

from actgent import LongTermMemory

WRITERS = 8


async def live(url, first):
    """Write notes and print the confirmed numbers until the process is killed."""

    async def write(memories, number):
        while True:
            await one(memories, number)
            os.write(1, f"{number}\n".encode())
            number += WRITERS

    async with LongTermMemory(url) as memories, trio.open_nursery() as nursery:
        for writer in range(WRITERS):
            nursery.start_soon(write, memories, first + writer)


async def one(memories, number):
    """Remember a note of this number, then update or forget it. A repeated call changes nothing."""
    made = await memories.remember(f"note {number}", owner="ada", key=f"put {number}", metadata={"n": number})
    if number % 5 == 0:
        await memories.forget(made.id, owner="ada")
    elif number % 3 == 0:
        await memories.update(made.id, f"note {number} again", owner="ada", key=f"update {number}")


if __name__ == "__main__":
    trio.run(live, sys.argv[1], int(sys.argv[2]))
