"""Rate limits that several processes share through one table.

The sum is exact, nearly all of the limit is used, and a dead process keeps no units.
"""

import math
import random

import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from actgent import BareAgent, ModelRequest, Priority, RateLimited, RateLimitedModel, RateLimiter, ScriptedLLM
from actgent.errors import JournalFailed
from actgent.journal.postgres import rate_limit_leases
from actgent.journal.postgres.partitioned_journal import PartitionedJournal
from actgent.llm.rate_limiting import LimitLeaseClient
from actgent.llm.rate_limiting.shared_rate_limits import LeasedLimit
from actgent.llm.rate_limiting.token_buckets import Cost
from actgent.messages import Usage

CLOCK = "extract(epoch FROM clock_timestamp())"


class Node:
    """The model calls of one process."""

    def __init__(self, name, table, **limits):
        self.rate_limiter, self.name = RateLimiter(**limits), name
        self.lender = LimitLeaseClient(table)
        self.scope = trio.CancelScope()
        self.calls = []
        """Pairs of the admission time and the used tokens."""

    async def live(self, talk, *, task_status):
        with self.scope:
            async with self.lender.running():
                self.rate_limiter.share(self.lender, "provider")
                task_status.started()
                await talk(self)

    async def call(self, session="", *, tokens=0, guess=0, seconds=0.5, **options):
        chat = ModelRequest(messages=(), session=session, max_tokens=guess, **options)
        async with self.rate_limiter.admit(chat, model="m", size=0) as permit:
            self.calls.append((trio.current_time(), tokens))
            await trio.sleep(seconds)
            permit.report_usage(Usage(output_tokens=tokens or 1))


def excess(calls, rate, capacity):
    """Return the largest excess of calls over the rate and capacity in any window."""
    worst, level, last = 0.0, capacity, calls[0][0]
    for at, units in sorted(calls):
        level = min(capacity, level + rate * (at - last)) - units
        worst, last = max(worst, -level), at
    return worst


@pytest.fixture
async def table(postgres_url):
    """Yield the lease table of a cluster."""
    async with PartitionedJournal(postgres_url, node="n").running() as journal:
        await journal.acquire()
        yield journal.allowances


@pytest.fixture
def virtual(table, monkeypatch):
    """Return `lend` of the table. The server uses the clock of the test."""
    for name in ("_BEGIN", "_LEND"):
        monkeypatch.setattr(
            rate_limit_leases,
            name,
            getattr(rate_limit_leases, name).replace(CLOCK, "(SELECT t FROM virtual)"),
        )
    is_there = trio.Event()
    turn = trio.Lock()

    async def lend(*args, **options):
        async with turn:
            if not is_there.is_set():
                await table._table.execute("CREATE TABLE virtual (t float8)", {})
                await table._table.execute("INSERT INTO virtual VALUES (0)", {})
                is_there.set()
            await table._table.execute("UPDATE virtual SET t = %(t)s", {"t": trio.current_time()})
            return await table.lend(*args, **options)

    return lend


def crowd(sessions, seed, **call):
    """Return a function that runs sessions, each of which makes calls in sequence as fast as possible."""

    async def talk(node):
        dice = random.Random(seed)

        async def session(name):
            while True:
                await node.call(name, **call)
                await trio.sleep(dice.uniform(0, 0.5))

        async with trio.open_nursery() as nursery:
            for number in range(sessions):
                nursery.start_soon(session, f"{seed}-{number}")

    return talk


@pytest.mark.parametrize("limit", [5, 20, 400])
async def test_three_nodes_share_the_declared_rate(virtual, autojump_clock, limit):
    """No window has more calls than one process could make.

    Under load the nodes use nearly all of the limit, though one of them is killed.
    """
    rate, capacity = limit / 60, max(1.0, limit * 0.1)
    seconds = max(20.0, 10 / rate)
    nodes = [Node(f"n{each}", virtual, requests_per_minute=limit, max_wait=1e6) for each in range(3)]
    async with trio.open_nursery() as nursery:
        for seed, node in enumerate(nodes):
            await nursery.start(node.live, crowd(int(6 + rate), seed))
        await trio.sleep(seconds)
        nodes[0].scope.cancel()
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    calls = [(at, 1) for node in nodes for at, _ in node.calls]
    assert excess(calls, rate, capacity) < 1e-3
    assert len(calls) >= 0.9 * rate * 2 * seconds
    assert all(node.calls for node in nodes)


async def test_used_tokens_are_shared_between_nodes(virtual, autojump_clock):
    """All nodes pay for tokens beyond the estimate, and all nodes can use the tokens that an answer left over."""
    rate, capacity, seconds = 1000.0, 6000.0, 60
    nodes = [Node(f"n{each}", virtual, tokens_per_minute=60_000, max_wait=1e6) for each in range(3)]
    used = {"n0": 100, "n1": 250, "n2": 700}
    async with trio.open_nursery() as nursery:
        for seed, node in enumerate(nodes):
            await nursery.start(node.live, crowd(20, seed, tokens=used[node.name], guess=250, seconds=1.0))
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    total = sum(tokens for node in nodes for _, tokens in node.calls)
    assert total <= capacity + rate * seconds + 3 * 20 * 700
    assert total >= 0.9 * rate * seconds


async def test_urgent_call_precedes_waiting_calls_of_its_node(virtual, autojump_clock):
    """An urgent call precedes the waiting calls of its node."""
    node = Node("n0", virtual, requests_per_minute=60, burst=1 / 60, max_wait=1e6)
    done = []

    async def call(name, priority):
        await node.call(name, priority=priority)
        done.append(name)

    async def talk(node):
        await node.call("first")
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(call, f"low-{number}", Priority.LOW)
            await trio.sleep(1.5)
            nursery.start_soon(call, "urgent", Priority.URGENT)

    async with trio.open_nursery() as nursery:
        await nursery.start(node.live, talk)
    assert done.index("urgent") <= 2


async def test_unreachable_database_leases_nothing(virtual, autojump_clock):
    """The node makes only the calls of its lease, and continues when the database is reachable."""
    is_away = False

    async def lend(*args, **options):
        if is_away:
            raise JournalFailed("away")
        return await virtual(*args, **options)

    node = Node("n0", lend, requests_per_minute=600, max_wait=1e6)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.live, crowd(30, 1, seconds=0.1))
        await trio.sleep(10)
        is_away, away_at = True, trio.current_time()
        await trio.sleep(30)
        is_away, back_at = False, trio.current_time()
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    without = [at for at, _ in node.calls if away_at < at < back_at]
    assert len(without) <= 20
    assert all(at < away_at + 2 for at in without)
    assert max(at for at, _ in node.calls) > back_at
    assert excess([(at, 1) for at, _ in node.calls], 10, 60) < 1e-3


async def test_call_with_a_short_deadline_fails_immediately(virtual, autojump_clock):
    """As in one process, the call fails as soon as the table knows the time of the next permit."""
    node = Node("n0", virtual, requests_per_minute=6)

    async def talk(node):
        await node.call("a", seconds=0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.call, "b")
            await trio.sleep(2)
            now = trio.current_time()
            with pytest.raises(RateLimited, match="leaves no room for another"):
                await node.call("c", deadline=now + 4)
            assert trio.current_time() == now

    async with trio.open_nursery() as nursery:
        await nursery.start(node.live, talk)


async def test_rate_limiter_uses_its_own_limits_after_its_runtime(virtual, autojump_clock):
    """After its runtime has ended, it starts with an empty bucket, because other nodes may have spent the units."""
    node, times = Node("n0", virtual, requests_per_minute=60, burst=1 / 60), []

    async def call():
        async with node.rate_limiter.admit(ModelRequest(messages=()), model="m"):
            times.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        await nursery.start(node.live, lambda node: node.call())
    ended = trio.current_time()
    await call()
    await call()
    assert times == pytest.approx([ended + 1, ended + 2])


def asking(holder, *, held=0, charge=0, least=1, wanted=10, rate=10, capacity=10):
    """Return the arguments of `lend`."""
    options = {"held": held, "charge": charge, "least": least, "wanted": wanted}
    return ("door", "requests"), {
        "rate": rate,
        "capacity": capacity,
        "holder": holder,
        "lasts": 2.0,
        **options,
    }


async def test_leased_units_do_not_refill_the_bucket(virtual, autojump_clock):
    """The units return after the holder has spent them or the lease has expired, because they may be spent late."""

    async def lent(holder, **options):
        args, settings = asking(holder, **options)
        return (await virtual(*args, **settings)).lent

    assert await lent("a") == 10
    await trio.sleep(1)
    assert await lent("b") == 0
    await trio.sleep(1.5)
    assert await lent("b") == pytest.approx(5)  # half a second after the lease expired
    await trio.sleep(0.5)
    assert await lent("b", wanted=0, least=0) == 0  # the holder reports that it has spent all units
    await trio.sleep(0.3)
    assert await lent("c") == pytest.approx((5 + 3) / 2)  # its share if b also waits
    assert await lent("c", held=4, least=1) == pytest.approx(2)


async def test_debt_is_charged_before_a_lease(virtual, autojump_clock):
    """The response states the waiting time."""
    args, given = asking("a", charge=25)
    found = await virtual(*args, **given)
    assert (found.lent, found.wait) == (0, pytest.approx(1.6))


def test_lease_expires_two_seconds_after_its_request():
    """The lease ends two seconds after its request, not after its arrival. The debt stays."""
    share = LeasedLimit(kind="requests", rate=1, capacity=10, waiting=lambda _: 5)
    call = Cost()
    assert share.ready_at(call, 100.0) == math.inf
    asked = share.lease_request(100.0)
    assert (asked.least, asked.wanted) == (1, 5)
    share.renew(asked, lent=5, held=0, wait=0, room=0)
    assert share.ready_at(call, 101.9) == 101.9
    share.spend(call, 101.9)
    assert share.ready_at(call, 102.0) == math.inf
    share.spend(call, 102.0)
    assert share.lease_request(103.0).charge == 1


async def test_concurrent_statements_lease_each_unit_once(postgres_url):
    """Many connections lease concurrently by the clock of the server.

    Leases that are never returned expire.
    """
    started, lent = trio.current_time(), 0.0

    async def borrow(number):
        nonlocal lent
        async with PartitionedJournal(postgres_url, node=f"n{number}").running() as journal:
            await journal.acquire()
            for _ in range(40):
                found = await journal.allowances.lend(
                    "door",
                    "requests",
                    rate=100,
                    capacity=50,
                    holder=f"n{number}",
                    held=0,
                    charge=0,
                    least=1,
                    wanted=10,
                    lasts=0.05,
                )
                lent += found.lent

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(borrow, number)
    assert 50 <= lent <= 50 + 100 * (trio.current_time() - started)


async def test_nodes_share_limits_by_limiter_name(open_cluster):
    """The nodes share the limits by the name of the rate limiter.

    Units that one node uses are not available to others.
    """
    psycopg = pytest.importorskip("psycopg")
    rate_limiter = RateLimiter(requests_per_minute=600, tokens_per_minute=60_000)
    clerk = BareAgent("clerk", llm=RateLimitedModel(ScriptedLLM(["yes"] * 3), rate_limiter))
    async with open_cluster() as cluster:
        async with cluster.node(clerk) as runtime, cluster.connect() as client:
            session = await client.agent("clerk").create_session("ada")
            for _ in range(3):
                await session.chat("well?")
            await session.wait_idle()
            (door,) = runtime.rate_limiters()
            address, schema = cluster.journal.split("?schema=")
            with psycopg.connect(address) as database:
                rows = database.execute(
                    f"SELECT door, kind, level FROM {schema}.allowances ORDER BY kind"
                ).fetchall()
        assert [row[:2] for row in rows] == [(door.name, "requests"), (door.name, "tokens")]
        assert rows[0][2] <= 60 - 1
        assert {each.kind: each.capacity for each in door.buckets} == {"requests": 60, "tokens": 6000}


async def test_per_node_limit_is_logged_if_declared(caplog):
    """The limit is logged once with the name of the rate limiter.

    Limiters without a declared number are not logged.
    """
    lender = LimitLeaseClient(None)
    own, plain = RateLimiter(concurrency=4, requests_per_minute=60), RateLimiter(requests_per_minute=60)
    for rate_limiter in (own, plain, own):
        rate_limiter.share(lender, "api.example.com")
    (log_lines,) = [each.getMessage() for each in caplog.records]
    assert log_lines.startswith(
        "RateLimiter(concurrency=4) of api.example.com applies to each node of the cluster"
    )
