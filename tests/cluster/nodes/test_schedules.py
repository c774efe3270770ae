"""Disasters by chance: `schedules.py` draws them from seeds, and says what is to be so afterwards.

`ACTGENT_SEEDS=7` or `ACTGENT_SEEDS=20-39` chooses the seeds; else there is one, with ACTGENT_SOAK=1 there are 20.
"""

import os

import pytest
import trio

from .schedules import draw, live_through, open_world
from .talks import open_nodes

SEEDS = os.environ.get("ACTGENT_SEEDS", "0-19" if os.environ.get("ACTGENT_SOAK") else "1")
FIRST, _, LAST = SEEDS.partition("-")
LIMIT = 600
"""Seconds for a schedule, on a machine that does much else."""


@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST or FIRST) + 1))
async def test_each_accepted_message_has_one_end_whatever_befalls_the_cluster(
    seed, lives, services, open_cluster, open_relay
):
    """Nothing is lost, done twice or out of order, and the cluster comes to rest, usable."""
    broker, database = services
    schedule = draw(seed)
    print(schedule)  # noqa: T201 - shown where it fails
    with trio.fail_after(LIMIT):
        async with (
            open_cluster(database.url, broker.url) as cluster,
            open_relay(port=broker.port) as relay,
            open_nodes(lives, cluster) as nodes,
            open_world(nodes, services, relay) as world,
        ):
            try:
                await live_through(world, schedule)
            finally:
                with trio.CancelScope(shield=True):
                    await world.mend()
