"""Processes that remember, killed with SIGKILL at random moments."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from actgent import Memories, MemoryNotFound

SCRIPT = Path(__file__).with_name("remembering.py")
KILLS = 100 if os.environ.get("ACTGENT_SOAK") else 8


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request, tmp_path):
    """The address of a store that other processes can open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/memories.db"
    return request.getfixturevalue("postgres_url")


async def test_kills_lose_nothing_that_was_confirmed_and_double_nothing(shared_url, lives):
    """Each life repeats what the one before had under way; at the end each note is there once, as it was confirmed.

    8 kills of each store in the tests, and 100 with the soak switch.
    """
    rng = random.Random(3)
    confirmed = set()
    for _ in range(KILLS):
        first = _unconfirmed(confirmed)
        with lives.popen(
            [sys.executable, str(SCRIPT), shared_url, str(first)], stdout=subprocess.PIPE
        ) as life:
            told = [life.stdout.readline() for _ in range(rng.randrange(1, 150))]
            os.kill(life.pid, signal.SIGKILL)
            told += life.stdout.readlines()
        confirmed |= {int(line) for line in told if line.endswith(b"\n")}
    assert len(confirmed) > 10 * KILLS
    async with Memories(shared_url) as memories:
        known = {}
        for each in await memories.export("ada"):
            known.setdefault(each.metadata["n"], []).append(each)
        wrong = [number for number in confirmed if not _is_right(number, known.get(number, []))]
        assert wrong == []
        assert [number for number, each in known.items() if len(each) > 2] == []
        for each in [one for some in known.values() for one in some if one.replaced_by is None][:50]:
            found = await memories.recall(each.text, owner="ada", limit=100)
            assert each.id in {one.memory.id for one in found}
        with pytest.raises(MemoryNotFound):
            await memories.get("m0", owner="ada")


def _unconfirmed(numbers):
    """The first number that is not confirmed: from there on all is repeated."""
    number = 0
    while number in numbers:
        number += 1
    return number


def _is_right(number, found):
    if number % 5 == 0:
        return found == []
    texts = [f"note {number}"] + ([f"note {number} again"] if number % 3 == 0 else [])
    return [each.text for each in found] == texts
