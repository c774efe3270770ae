"""Random faults: `schedules.py` draws them from seeds and checks the result.

`ACTGENT_SEEDS=7` or `ACTGENT_SEEDS=20-39` chooses the seeds. The default is one seed, or 20 with
ACTGENT_SOAK=1. A chaos run takes `ACTGENT_CHAOS_SECONDS`. The default is 10 s, or 180 s with ACTGENT_SOAK=1.
"""

import json
import os
import statistics
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from .schedules import SHORT, draw, draw_long, live_through, open_world

SOAK = os.environ.get("ACTGENT_SOAK")
SEEDS = os.environ.get("ACTGENT_SEEDS", "0-19" if SOAK else "1")
FIRST, _, LAST = SEEDS.partition("-")
LIMIT = 600
"""Seconds for a schedule on a loaded machine."""
CHAOS_SECONDS = float(os.environ.get("ACTGENT_CHAOS_SECONDS", "180" if SOAK else "10"))
SAMPLE_SECONDS = 2.0
WARM = 0.25
"""Fraction of a chaos run that is excluded from the memory figures."""
MAX_GROWTH = 1.05
"""Maximum growth of the surviving node: memory in the last quarter per memory in the first quarter after the warm-up."""
every_seed = pytest.mark.parametrize("seed", range(int(FIRST), int(LAST or FIRST) + 1))


@every_seed
async def test_each_accepted_message_ends_once_under_random_faults(
    *, seed, process_server, database, open_cluster, open_relay, tmp_path
):
    """No message is lost, repeated or reordered. The cluster settles and stays usable."""
    schedule = draw(seed)
    print(schedule)  # noqa: T201 - shown if the test fails
    with trio.fail_after(LIMIT):
        async with open_world(
            database, open_cluster, open_relay, process_server, tmp_path / "tokens"
        ) as world:
            try:
                await live_through(world, schedule)
            finally:
                with trio.CancelScope(shield=True):
                    await world.mend()


@attrs.define(eq=False)
class Pair:
    """A primary server and its synchronous standby. The address names both."""

    make: object
    """Function that makes a server."""
    active: object = None
    standby: object = None
    url: str = ""

    @property
    def port(self):
        return self.active.port

    async def open(self):
        trusted = "127.0.0.1/32"
        self.active = self.make(trusted=trusted)
        await self.active.start()
        self.standby = self.make(trusted=trusted, primary=self.active)
        await self.standby.start()
        await self.active.confirm_by_standby()
        ports = self.active.port, self.standby.port
        self.url = f"postgresql://postgres@{','.join(f'127.0.0.1:{each}' for each in ports)}/postgres"

    async def fail_over(self, pause):
        """Kill the primary server, and promote the standby after some seconds."""
        self.active.kill()
        await trio.sleep(pause)
        assert await self.standby.execute("SELECT pg_promote()") == [(True,)]
        self.active, self.standby = self.standby, None

    def kill(self):
        self.active.kill()

    async def start(self):
        await self.active.start()

    async def answers(self):
        return await self.active.answers()


def resident(pid):
    """Return the memory of a process in kB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


@asynccontextmanager
async def sampled_memory(world, seconds):
    """Yield a list, and append the memory of the surviving node to it until the deeds are over."""
    samples, (crew, _) = [], world.crews

    async def sample():
        await trio.sleep(WARM * seconds)
        while trio.current_time() - world.begun < seconds:
            if crew.survivor:
                samples.append(resident(crew.nodes.running[crew.survivor].pid))
            await trio.sleep(SAMPLE_SECONDS)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sample)
        yield samples


@every_seed
async def test_cluster_survives_a_chaos_run(
    *, seed, process_server, make_services, open_cluster, open_relay, tmp_path
):
    """Clients send messages all the time, and each fault happens.

    No message is lost, repeated or reordered, and the memory does not grow.
    """
    schedule, database = draw_long(seed, CHAOS_SECONDS), Pair(make_services)
    print(schedule)  # noqa: T201 - shown if the test fails
    await database.open()
    with trio.fail_after(LIMIT + CHAOS_SECONDS):
        async with (
            open_world(database, open_cluster, open_relay, process_server, tmp_path / "tokens") as world,
            sampled_memory(world, CHAOS_SECONDS) as samples,
        ):
            try:
                await live_through(world, schedule, has_survivor=True)
                accepted = [
                    await crew.count_accepted(name)
                    for crew, name in zip(world.crews, ("clerk", "miner"), strict=True)
                ]
            finally:
                with trio.CancelScope(shield=True):
                    await world.mend()
    assert (
        world.crews[0].nodes.running[world.crews[0].survivor].poll() is not None
    )  # the survivor is killed with the block, not before
    quarter = max(1, len(samples) // 4)
    first, last = (statistics.median(part) for part in (samples[:quarter], samples[-quarter:]))
    report = {
        "seed": seed,
        "deeds": Counter(name for _, name in schedule.deeds),
        "stories": len(schedule.stories),
        "messages": sum(each.total() for each in accepted),
        "model_calls": world.calls.total(),
        "memory": [first, last],
    }
    print(f"CHAOS {json.dumps(report)}")  # noqa: T201 - the figures of the run
    assert CHAOS_SECONDS <= SHORT or last <= MAX_GROWTH * first, report
