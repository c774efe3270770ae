"""Disasters by chance: `schedules.py` draws them from seeds, and says what is to be so afterwards.

`ACTGENT_SEEDS=7` or `ACTGENT_SEEDS=20-39` chooses the seeds; else there is one, with ACTGENT_SOAK=1 there are 20.
"""

import os

import pytest
import trio

from .schedules import draw, live_through, open_world

SEEDS = os.environ.get("ACTGENT_SEEDS", "0-19" if os.environ.get("ACTGENT_SOAK") else "1")
FIRST, _, LAST = SEEDS.partition("-")
LIMIT = 600
"""Seconds for a schedule, on a machine that does much else."""


@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST or FIRST) + 1))
async def test_each_accepted_message_has_one_end_whatever_befalls_the_cluster(
    *, seed, lives, database, open_cluster, open_relay, tmp_path
):
    """Nothing is lost, done twice or out of order, and the cluster comes to rest, usable."""
    schedule = draw(seed)
    print(schedule)  # noqa: T201 - shown where it fails
    with trio.fail_after(LIMIT):
        async with open_world(database, open_cluster, open_relay, lives, tmp_path / "tokens") as world:
            try:
                await live_through(world, schedule)
            finally:
                with trio.CancelScope(shield=True):
                    await world.mend()
