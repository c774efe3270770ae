"""Three nodes that serve conversations for a given time. One node is killed, drained or suspended each minute.

`python soak_lives.py DATABASE REPORT --seconds 3600 --sessions 50000 --every 60 --seed 1` writes a report as
JSON, first after a minute and then repeatedly.

Visitors arrive evenly over the time. Most visitors create a session, some return to an old session. Each
visitor sends some messages, and compares the answers and the journal with the sent messages.

The node `a` is never killed, so that its memory can be measured, but it also hangs. The nodes `b` and `c` are
killed, leave, or hang, in turn. The pool and its schema are removed at the end.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from array import array
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import psycopg
import trio

from actgent import ActgentError, connect
from tests.clusters import TOKEN, open_balancer, parse_address

LIFE = Path(__file__).with_name("node_process.py")
PATIENCE = 120
CUTS = (("b", "kill"), ("c", "kill"), ("b", "hang"), ("c", "leave"), ("b", "kill"), ("a", "hang"))
"""Pairs of a node and a fault, in turn."""
HANG = 8.0
"""Seconds for which a node hangs. Its lease is 5 seconds."""
LOOK = 10.0
"""Seconds between two samples."""
WARM = 0.25
"""Fraction of the time that is excluded from the memory figures."""
IDLE = """SELECT coalesce(max(extract(epoch FROM now() - state_change)), 0) FROM pg_stat_activity
    WHERE application_name = %s AND state LIKE 'idle in transaction%%'"""


def resident(pid):
    """Return the memory of a process in kB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


@attrs.define(eq=False)
class Soak:
    """The cluster, its visitors, and the collected figures."""

    options: argparse.Namespace
    pool: str = attrs.field(factory=lambda: f"soak-{os.getpid()}")
    nodes: dict = attrs.field(factory=dict)
    balancer: object = None
    """The load balancer in front of all gateways."""
    said: array = attrs.field(init=False)
    """Number of messages sent, by session."""
    dice: random.Random = attrs.field(init=False)
    database: psycopg.Connection = attrs.field(init=False)
    begun: int = 0
    messages: int = 0
    calls: int = 0
    visitors: int = 0
    most_visitors: int = 0
    late: int = 0
    """Visits that started late because too many visits ran."""
    wrong: list = attrs.field(factory=list)
    cuts: list = attrs.field(factory=list)
    samples: list = attrs.field(factory=list)
    started: float = attrs.field(factory=time.monotonic)

    def __attrs_post_init__(self):
        self.said = array("H", bytes(2 * self.options.sessions))
        self.dice = random.Random(self.options.seed)

    @property
    def schema(self):
        return self.pool.replace("-", "_")

    @property
    def journal(self):
        mark = "&" if "?" in self.options.database else "?"
        return f"{self.options.database}{mark}application_name={self.pool}&schema={self.schema}"

    def seconds(self):
        return time.monotonic() - self.started

    # --- nodes ---------------------------------------------------------------------------

    async def start(self, nursery, name):
        command = [sys.executable, LIFE, self.journal, self.pool, name]
        node = self.nodes[name] = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: ASYNC220 - starting a process is fast
        await nursery.start(self._listen, node)

    async def _listen(self, node, *, task_status):
        rest = b""
        async with trio.lowlevel.FdStream(os.dup(node.stdout.fileno())) as stream:
            async for data in stream:
                *lines, rest = (rest + data).split(b"\n")
                self.calls += sum(line.startswith(b"CALL") for line in lines)
                for line in lines:
                    if line.startswith(b"PORT "):
                        self.balancer.ports.append(parse_address(line.split()[1].decode()))
                if b"READY" in lines:
                    task_status.started()
        await trio.to_thread.run_sync(node.wait)
        node.stdout.close()

    async def cut_all(self, nursery):
        """Inject the faults of `CUTS` in turn, and restart each node."""
        number = 0
        while True:
            number += 1
            await trio.sleep(max(0, number * self.options.every - self.seconds()))
            name, how = CUTS[(number - 1) % len(CUTS)]
            node = self.nodes[name]
            began = time.monotonic()
            node.send_signal({"kill": signal.SIGKILL, "hang": signal.SIGSTOP, "leave": signal.SIGTERM}[how])
            with trio.move_on_after(self.options.every / 2) as limit:
                gone = await self._others_own(name, node.pid)
            took = None if limit.cancelled_caught else round(gone - began, 3)
            self.cuts.append(
                {"at": round(began - self.started), "node": name, "how": how, "taken_after": took}
            )
            if how == "hang":
                await trio.sleep(max(0, HANG - (time.monotonic() - began)))
                node.send_signal(signal.SIGCONT)
            else:
                await trio.to_thread.run_sync(node.wait)
                await self.start(nursery, name)

    async def _others_own(self, name, pid):
        """Wait until a node owns no partition. Return the time."""
        sql = f"SELECT count(*) FROM {self.schema}.partitions WHERE owner LIKE %s"
        while (await self.ask(sql, f"{name}-{pid}-%"))[0]:  # noqa: ASYNC110 - the state is in the database
            await trio.sleep(0.02)
        return time.monotonic()

    # --- the database -----------------------------------------------------

    async def ask(self, sql, *values):
        return await trio.to_thread.run_sync(self._ask, sql, values)

    def _ask(self, sql, values):
        return self.database.execute(sql, values).fetchone()

    async def sample(self):
        """Take a sample of all figures repeatedly."""
        schema = self.schema
        live = f"SELECT name FROM {schema}.nodes"
        while True:
            await trio.sleep(LOOK)
            (waiting,) = await self.ask(f"SELECT count(*) FROM {schema}.pending_messages")
            unserved = f"SELECT count(*) FROM {schema}.partitions WHERE clean OR owner NOT IN ({live})"
            (unserved,) = await self.ask(unserved)
            (suspects,) = await self.ask(f"SELECT count(*) FROM {self.schema}.suspects")
            (dead,) = await self.ask(f"SELECT count(*) FROM {self.schema}.dead")
            (idle,) = await self.ask(IDLE, self.pool)
            self.samples.append(
                {
                    "at": round(self.seconds()),
                    "waiting": waiting,
                    "unserved": unserved,
                    "suspects": suspects,
                    "dead": dead,
                    "idle_in_transaction": round(float(idle), 3),
                    "a": resident(self.nodes["a"].pid),
                    "client": resident(os.getpid()),
                    "visitors": self.visitors,
                }
            )
            self.tell(is_over=False)

    # --- visitors ------------------------------------------------------------------------

    async def talk(self):
        """Start visitors, evenly over the time."""
        visits = int(self.options.sessions * 1.25)
        async with (
            connect(self.balancer.url, token=TOKEN, retry_timeout=PATIENCE) as client,
            trio.open_nursery() as nursery,
        ):
            agent = client.agent("clerk")
            for number in range(visits):
                due = self.started + number * self.options.seconds / visits
                await trio.sleep(max(0, due - time.monotonic()))
                while self.visitors >= self.options.visitors:
                    self.late += 1
                    await trio.sleep(0.1)
                if self.seconds() > self.options.seconds:
                    break
                nursery.start_soon(self._come, agent, self._choose())

    def _choose(self):
        """Return a new session, or an old session with messages that no visitor uses now."""
        if self.begun > 100 and (self.dice.random() < 0.2 or self.begun == self.options.sessions):
            number = self.dice.randrange(self.begun)
            if self.said[number]:
                return number
        self.begun = min(self.begun + 1, self.options.sessions)
        return self.begun - 1

    async def _come(self, agent, number):
        self.visitors += 1
        self.most_visitors = max(self.most_visitors, self.visitors)
        try:
            await self._visit(agent, number)
        except ActgentError as error:
            self.wrong.append({"session": f"s{number}", "raised": repr(error), "at": self.seconds()})
        finally:
            self.visitors -= 1

    async def _visit(self, agent, number):
        """Send some messages, in sequence or concurrently, and check that each is answered once, in order."""
        before, self.said[number] = self.said[number], 0
        texts, received, more = [], [], trio.lowlevel.ParkingLot()

        def hear(reply):
            received.append(reply.text)
            more.unpark_all()

        session = await agent.ensure_session("ada", f"s{number}", after=None if before else 1)
        with_pause = self.dice.random() < 0.7
        with session.listening(on_conversation=hear), trio.move_on_after(2 * PATIENCE):
            for each in range(before, before + self.dice.randrange(1, 5)):
                texts.append(f"{session.id}-{each}")
                await session.chat(texts[-1], message_id=texts[-1])
                self.messages += 1
                while with_pause and len(received) < len(texts):
                    await more.park()
                await trio.sleep(self.dice.random() if with_pause else 0)
            while len(received) < len(texts):
                await more.park()
            if self.dice.random() < 0.1:
                await session.wait_idle()
        answers = [f"you said: {each}" for each in texts]
        if received != answers:
            self.wrong.append({"session": session.id, "heard": received, "said": texts, "at": self.seconds()})
        history = await session.history()
        kept = [each.text for each in history if each.sender.kind == "assistant"]
        if kept != [f"you said: {session.id}-{each}" for each in range(before + len(texts))]:
            self.wrong.append({"session": session.id, "kept": kept, "said": texts, "at": self.seconds()})
        self.said[number] = before + len(texts)

    # --- the whole run -------------------------------------------------------------------

    async def run(self):
        with psycopg.connect(self.options.database, autocommit=True) as self.database:
            try:
                async with self._open() as nursery:
                    self.started = time.monotonic()
                    nursery.start_soon(self.cut_all, nursery)
                    nursery.start_soon(self.sample)
                    await self.talk()
                    await trio.sleep(LOOK + 1)
                    self.tell(is_over=True)
            finally:
                with trio.CancelScope(shield=True):
                    await self._remove()

    @asynccontextmanager
    async def _open(self):
        async with open_balancer() as self.balancer, trio.open_nursery() as nursery:
            try:
                for name in "abc":
                    await self.start(nursery, name)
                yield nursery
            finally:
                for node in self.nodes.values():
                    node.send_signal(signal.SIGCONT)
                    node.kill()
                nursery.cancel_scope.cancel()

    async def _remove(self):
        await trio.lowlevel.checkpoint()
        self.database.execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")

    def tell(self, *, is_over):
        """Write the report with the figures so far."""
        report = {
            "is_over": is_over,
            "seconds": round(self.seconds()),
            "sessions": self.begun,
            "messages": self.messages,
            "calls": self.calls,
            "wrong": self.wrong[:20],
            "wrong_count": len(self.wrong),
            "most_visitors": self.most_visitors,
            "late": self.late,
            "cuts": self.cuts,
            **self._figures(),
            "samples": self.samples,
        }
        new = self.options.report.with_suffix(".new")
        new.write_text(json.dumps(report), encoding="utf-8")
        new.replace(self.options.report)

    def _figures(self):
        """Return the memory in kB and the maximum of each other figure.

        The memory is the median of the first and of the last quarter after the warm-up.
        """
        warm = [each for each in self.samples if each["at"] > WARM * self.options.seconds]
        quarter = max(1, len(warm) // 4)
        memory = {
            name: [
                statistics.median(each[name] for each in part) for part in (warm[:quarter], warm[-quarter:])
            ]
            for name in ("a", "client")
            if warm
        }
        worst = {
            name: max(each[name] for each in self.samples)
            for name in ("waiting", "suspects", "dead", "idle_in_transaction")
        }
        last = {name: self.samples[-1][name] for name in ("waiting", "suspects", "unserved")}
        return {"memory": memory, "worst": worst, "last": last}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("report", type=Path)
    defaults = {"seconds": 3600, "sessions": 50_000, "every": 60, "seed": 1, "visitors": 400}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    trio.run(Soak(parser.parse_args()).run)


if __name__ == "__main__":
    main()
