"""Run an agent on two nodes, and kill one node during conversations. Each message is answered exactly once.

Start the program with `.venv/bin/python examples/cluster`. The program needs no API key, but a PostgreSQL server on this
machine or at the URL in ACTGENT_JOURNAL. The program creates a separate schema, and drops the schema at the end.
"""

import math
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from urllib.parse import parse_qsl, urlencode, urlsplit

import attrs
import psycopg
import trio

from actgent import Client, connect
from actgent.web.access_tokens import new_token, write_tokens

POOL = f"example-{secrets.token_hex(4)}"
SCHEMA = POOL.replace("-", "_")
PLACE = urlsplit(os.environ.get("ACTGENT_JOURNAL", "postgresql://postgres@127.0.0.1:5432/postgres"))
OPTIONS = {name: value for name, value in parse_qsl(PLACE.query) if name != "schema"}
DATABASE = PLACE._replace(query=urlencode(OPTIONS)).geturl()
JOURNAL = PLACE._replace(query=urlencode({**OPTIONS, "schema": SCHEMA})).geturl()
NODES = ("web-1", "web-2")
SESSIONS = 16
BEFORE, AFTER = 5, 5
"""Minimum number of answers in each session before the kill, and number of messages after the kill."""


@attrs.define
class Talk:
    """Messages and answers of one session, as the client sent and received them."""

    sent: list[str] = attrs.field(factory=list)
    replies: list[str] = attrs.field(factory=list)
    nodes: list[str] = attrs.field(factory=list)
    """Name of the node that gave each answer."""
    times: list[float] = attrs.field(factory=list)
    """Time at which each answer arrived, in seconds of the monotonic clock."""

    def add_reply(self, answer: str) -> None:
        node, _, text = answer.partition(": ")
        self.replies.append(text)
        self.nodes.append(node)
        self.times.append(time.monotonic())


@attrs.define
class Story:
    """All sessions of the client, and the time at which a node was killed."""

    talks: dict[str, Talk] = attrs.field(factory=lambda: {f"desk-{each}": Talk() for each in range(SESSIONS)})
    killed_at: float = 0.0

    def served_by(self, node: str) -> list[str]:
        """Return the names of the sessions whose last answer came from the node."""
        return [name for name, talk in self.talks.items() if talk.nodes and talk.nodes[-1] == node]

    async def talk(self, client: Client, name: str) -> None:
        session, talk = await client.agent("clerk").create_session(session_id=name), self.talks[name]
        session.on_conversation(lambda reply: talk.add_reply(reply.text))
        left = AFTER
        while left:
            left -= self.killed_at > 0
            talk.sent.append(f"question {len(talk.sent)} of {name}")
            await session.chat(talk.sent[-1], message_id=f"{name}-{len(talk.sent)}")
            await trio.sleep(0.25)
        await session.wait_idle()

    def waiting_for(self, node: str) -> int:
        """Return the number of sessions of the node that wait for an answer."""
        return sum(
            len(self.talks[each].sent) > len(self.talks[each].replies) for each in self.served_by(node)
        )

    def is_in_the_middle(self, node: str) -> bool:
        """Return True if each session has `BEFORE` answers, both nodes serve sessions, and the node has an open question."""
        has_begun = all(len(each.replies) >= BEFORE for each in self.talks.values())
        return has_begun and all(map(self.served_by, NODES)) and self.waiting_for(node) > 0

    async def kill(self, node: str, process: trio.Process) -> None:
        began = time.monotonic()
        while not self.is_in_the_middle(node):  # noqa: ASYNC110 - only the counts of answers show it
            await trio.sleep(0.05)
        for each in NODES:
            print(f"{each} serves {len(self.served_by(each))} sessions: {', '.join(self.served_by(each))}")
        process.kill()
        self.killed_at = time.monotonic()
        print(
            f"kill -9 {node} after {self.killed_at - began:.1f} s: "
            f"{self.waiting_for(node)} of its sessions wait for an answer"
        )

    def takeovers(self) -> list[float]:
        """Return the seconds from the kill to the first answer of the other node, for each session of the killed node."""
        seconds = []
        for talk in self.talks.values():
            answers = list(zip(talk.nodes, talk.times, strict=True))
            before = [node for node, at in answers if at < self.killed_at]
            after = [at for node, at in answers if node == NODES[1] and at > self.killed_at]
            if before[-1] == NODES[0]:
                seconds.append(min(after, default=math.inf) - self.killed_at)
        return sorted(seconds)

    async def check(self, client: Client) -> bool:
        """Compare the sent messages, the received answers and the journal, and print the result. Return True if they match."""
        missing, twice, in_order = 0, 0, 0
        for name, talk in self.talks.items():
            session = await client.agent("clerk").open_session(name)
            history = [each for each in await session.history() if each.sender.kind == "assistant"]
            kept = [each.text.partition(": ")[2] for each in history]
            for answers in (talk.replies, kept):
                missing += len(set(talk.sent) - set(answers))
                twice += len(answers) - len(set(answers))
            in_order += talk.replies == kept == talk.sent
        total = sum(len(talk.sent) for talk in self.talks.values())
        served = Counter(node for talk in self.talks.values() for node in talk.nodes)
        print(
            f"{total} messages: {', '.join(f'{count} answered by {node}' for node, count in sorted(served.items()))}"
        )
        print(
            f"{missing} without an answer, {twice} answered twice, {in_order} of {SESSIONS} sessions in order"
        )
        seconds = self.takeovers()
        print(
            f"takeover: {seconds[0]:.2f} s to the first answer, {seconds[-1]:.2f} s until each session had one"
        )
        return in_order == SESSIONS


@asynccontextmanager
async def open_node(name: str, tokens: Path) -> AsyncGenerator[trio.Process, None]:
    """Run a node in a separate process, which is killed when the block exits."""
    options = [str(Path(__file__).with_name("clerk.py")), "--cluster", POOL, "--node", name]
    options += ["--bind", "127.0.0.1:0", "--tokens", str(tokens)]
    places = {"ACTGENT_JOURNAL": JOURNAL, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment = {**os.environ, **places, "CLERK_NODE": name}
    command = [sys.executable, "-m", "actgent", "serve", *options]
    process = await trio.lowlevel.open_process(command, stdout=PIPE, env=environment)
    try:
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def wait_started(name: str, process: trio.Process) -> str:
    """Wait until a node accepts requests, and return its URL."""
    output = await process.stdout.receive_some() if process.stdout else b""
    if not output:
        sys.exit("a node did not start; the reason is above")
    url = output.decode().partition(" at ")[2].partition("/v1;")[0]
    print(f"node {name} of cluster {POOL} at {url}")
    return url


def ask_database(sql: str) -> None:
    with psycopg.connect(DATABASE, connect_timeout=3) as connection:
        connection.execute(sql.encode())


async def look_for_database() -> None:
    """Exit with code 69 if PostgreSQL is not reachable."""
    try:
        await trio.to_thread.run_sync(ask_database, "SELECT 1")
    except psycopg.Error as error:
        print(f"PostgreSQL is missing, start one or set ACTGENT_JOURNAL: {error}", file=sys.stderr)
        sys.exit(os.EX_UNAVAILABLE)


async def hold_conversations(folder: Path) -> bool:
    """Run two nodes and a client of both, and kill one node. Return True if each message was answered once, in order."""
    story, tokens = Story(), folder / "tokens.toml"
    token, known = new_token("example", owner="user", scopes=("chat",))
    write_tokens(tokens, [known])
    async with open_node(NODES[0], tokens) as first, open_node(NODES[1], tokens) as second:
        urls = [await wait_started(NODES[0], first), await wait_started(NODES[1], second)]
        async with connect(urls, token=token, retry_timeout=60) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(story.kill, NODES[0], first)
                for name in story.talks:
                    nursery.start_soon(story.talk, client, name)
            return await story.check(client)


async def main() -> None:
    await look_for_database()
    try:
        with trio.fail_after(480), tempfile.TemporaryDirectory() as folder:
            is_fine = await hold_conversations(Path(folder))
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(ask_database, f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    if not is_fine:
        sys.exit(1)


if __name__ == "__main__":
    trio.run(main)
