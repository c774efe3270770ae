"""`actgent serve --cluster` and `actgent cluster` as commands with a real database."""

import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from actgent import LLM, BareAgent, ModelResponse, Text, connect
from actgent.journal.postgres.cluster_pool_layout import READS
from actgent.journal.session_list_queries import SessionKey

from .pairs import wait_balanced

ACTGENT = Path(sys.executable).with_name("actgent")
PATIENCE = 90
"""Seconds for a whole test on a loaded machine."""
AGENT = """
from actgent import BareAgent, ScriptedLLM

clerk = BareAgent("clerk", llm=ScriptedLLM(["It is 42."]))
"""


@attrs.define
class Mended(LLM):
    """A model that fails at first, and repeats the message after it is corrected."""

    name = "mended"
    is_mended: bool = False

    async def complete(self, chat, on_text=None):
        await trio.lowlevel.checkpoint()
        if not self.is_mended:
            raise RuntimeError("not yet")
        return ModelResponse(parts=(Text(f"you said: {chat.messages[-1].parts[0].text}"),))


@pytest.fixture
def command(commands):
    """Run `actgent cluster` with these arguments against the cluster of the test, until it ends."""

    async def run(cluster, *words):
        done = await trio.to_thread.run_sync(
            partial(
                commands.run,
                [ACTGENT, "cluster", *words],
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                env=environment(cluster),
            )
        )
        assert "Traceback" not in done.stderr
        return done

    return run


def environment(cluster):
    return {**os.environ, "ACTGENT_JOURNAL": cluster.journal, "COLUMNS": "200"}


async def give_up(runtime, session, message_id, words="2 + 2?"):
    """Send a message that fails and becomes a dead letter."""
    await session.chat(words, message_id=message_id)
    await session.wait_idle()
    key = SessionKey("clerk", session.id)
    await runtime.journal.suspects.dead_letter(key, message_id, "5 processes died")


async def test_dead_letters_are_listed_redelivered_and_dropped(open_cluster, command):
    """A redelivered message has a new id and is answered once, even after repeated commands. A dropped one leaves the list."""
    llm = Mended()
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(BareAgent("clerk", llm=llm)) as runtime,
            cluster.connect() as client,
        ):
            place = ("--cluster", cluster.pool)
            nothing = await command(cluster, "dead-letters")
            assert (nothing.returncode, nothing.stdout) == (0, "no dead-lettered messages\n")
            session = await client.agent("clerk").create_session("ada")
            await give_up(runtime, session, "m1")
            listed = await command(cluster, "dead-letters", "--json")
            (row,) = json.loads(listed.stdout)
            assert listed.returncode == 1
            assert (row["message_id"], row["session_id"], row["reason"]) == (
                "m1",
                session.id,
                "5 processes died",
            )

            llm.is_mended = True
            again = await command(cluster, "dead-letters", "redeliver", "m1", *place)
            assert again.returncode == 0, again.stderr
            assert (await command(cluster, "dead-letters", "redeliver", "m1", *place)).stdout == again.stdout
            new_id = again.stdout.strip()
            await session.wait_idle()
            history = await session.history()
            messages = [(each.id, each.sender.name) for each in history if each.sender.kind == "user"]
            answers = [each.text for each in history if each.sender.kind == "assistant"]
            assert new_id != "m1"
            assert messages.count((new_id, "ada")) == 1
            assert answers == ["you said: 2 + 2?"]
            listed = await command(cluster, "dead-letters")
            assert (listed.returncode, listed.stdout.count(f"; redelivered as {new_id}\n")) == (0, 1)

            dropped = await command(cluster, "dead-letters", "drop", "m1")
            assert dropped.returncode == 0, dropped.stderr
            assert (await command(cluster, "dead-letters")).stdout == "no dead-lettered messages\n"


async def test_ambiguous_message_ids_are_rejected(open_cluster, command):
    """Cases: no message, a slightly different id, and messages of several sessions.

    One line lists the candidates.
    """
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(BareAgent("clerk", llm=Mended())) as runtime,
            cluster.connect() as client,
        ):
            for verb in ("redeliver", "drop"):
                refused = await command(cluster, "dead-letters", verb, "m1")
                assert refused.returncode == 2
                assert refused.stderr == (
                    "actgent: message 'm1' is not dead-lettered: the cluster has no dead-lettered message\n"
                )
            for session_id in ("s1", "s2"):
                session = await client.agent("clerk").create_session("ada", session_id=session_id)
                await give_up(runtime, session, "m1")
            near = await command(cluster, "dead-letters", "drop", "m11")
            assert (near.returncode, "did you mean 'm1'?" in near.stderr) == (2, True)
            several = await command(cluster, "dead-letters", "drop", "m1")
            assert (several.returncode, "--session" in several.stderr) == (2, True)
            assert (await command(cluster, "dead-letters", "drop", "m1", "--session", "s2")).returncode == 0
            (left,) = json.loads((await command(cluster, "dead-letters", "--json")).stdout)
            assert left["session_id"] == "s1"


async def test_database_without_a_cluster_is_reported_in_one_line(open_cluster, command):
    """If no node ever ran, the command prints one line with the remedy."""
    async with open_cluster() as cluster:
        for arguments in (["dead-letters"], ["status", "--cluster", cluster.pool]):
            refused = await command(cluster, *arguments)
            assert refused.returncode == 2
            assert "has no cluster tables: start a node" in refused.stderr


async def test_drain_without_nodes_is_an_error(open_cluster, command):
    """The error states that no node is running, even if none ever was."""
    with trio.fail_after(PATIENCE):
        async with open_cluster() as cluster:
            place = ("--cluster", cluster.pool)
            refused = await command(cluster, "drain", "web", *place)
            assert (refused.returncode, "has no cluster tables" in refused.stderr) == (2, True)
            async with cluster.node(BareAgent("clerk", llm=Mended())):
                pass
            refused = await command(cluster, "drain", "web", *place)
    assert (refused.returncode, refused.stderr) == (
        2,
        "actgent: the cluster has no node 'web': the list of valid names is empty\n",
    )


async def test_node_is_started_listed_and_drained(open_cluster, command, commands, tmp_path):
    """Separate commands start, list and drain the node.

    It serves all partitions, answers, and exits with 0 after the drain.
    """
    file = tmp_path / "agents.py"
    file.write_text(AGENT)
    with trio.fail_after(PATIENCE):
        async with open_cluster() as cluster:
            place = ("--cluster", cluster.pool)
            command_words = [ACTGENT, "serve", file, "--node", "web", "--bind", "127.0.0.1:0", *place]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            with commands.popen(command_words, **pipes, env=environment(cluster)) as node:
                try:
                    await check_a_node(cluster, node, partial(command, cluster), place)
                finally:
                    node.kill()
            gone = await command(cluster, "status", *place)
            assert (gone.returncode, gone.stdout.splitlines()[0]) == (1, "no node is running")
            assert "256 not served; 0 messages wait" in gone.stdout
            changed = await command(cluster, "repartition", "16", *place)
            assert (changed.returncode, "the cluster has 16 partitions; it had 256" in changed.stderr) == (
                0,
                True,
            )
            expected = f"16 partitions in generation 2; record format {READS}"
            assert expected in (await command(cluster, "status", *place)).stdout


async def test_node_command_has_a_longer_grace_period(open_cluster, commands, tmp_path):
    """Turns have 30 seconds to end, and the node has more time to hand over the rest."""
    file = tmp_path / "agents.py"
    file.write_text(AGENT)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with trio.fail_after(PATIENCE):
        async with open_cluster() as cluster:
            command = [ACTGENT, "serve", file, "--bind", "127.0.0.1:0", "--cluster", cluster.pool]
            with commands.popen(command, **pipes, env=environment(cluster)) as node:
                try:
                    await read_line(node)
                    node.send_signal(signal.SIGTERM)
                    assert await end(node) == 128 + signal.SIGTERM
                    assert b"for at most 35 s" in node.stderr.read()
                finally:
                    node.kill()


async def check_a_node(cluster, node, command, place):
    line, token = [await read_line(node) for _ in range(2)]
    assert line.startswith(b"clerk at http://"), await trio.to_thread.run_sync(node.stderr.read)
    url = line.split(b" at ")[1].split(b"/v1;")[0].decode()
    async with connect(url, token=token.split()[-1].decode(), retry_timeout=PATIENCE) as client:
        session = await client.agent("clerk").create_session("ada")
        assert (await client.agent("clerk").run("6 * 7?", session=session)).text == "It is 42."
    while (seen := await command("status", "--json", *place)).returncode:
        assert seen.returncode == 1, seen.stderr
    status = json.loads(seen.stdout)
    (there,) = status["nodes"]
    assert there["name"].startswith("web-")
    assert there["address"].startswith("http://127.0.0.1:")
    assert there["agents"] == ["clerk"]
    assert {each["owner"] for each in status["partitions"]} == {there["name"]}
    assert "web-" in (await command("status", *place)).stdout
    refused = await command("repartition", "16", *place)
    assert (refused.returncode, f"but {there['name']} run" in refused.stderr) == (2, True)
    finished = await command("finish-upgrade", *place)
    assert (finished.returncode, f"write record format {READS}" in finished.stderr) == (0, True)
    unknown = await command("drain", "wob", *place)
    assert (unknown.returncode, "the cluster has no node 'wob'" in unknown.stderr) == (2, True)
    drained = await command("drain", "web", *place)
    assert drained.returncode == 0, drained.stderr
    assert f"{there['name']} has handed over" in drained.stderr
    assert await trio.to_thread.run_sync(partial(node.wait, PATIENCE), abandon_on_cancel=True) == 0
    assert b"the node was drained" in node.stderr.read()


@asynccontextmanager
async def serving(commands, cluster, *words):
    """Run `actgent serve` with these arguments. Yield its process, its first output line and a client."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [ACTGENT, "serve", *words, "--bind", "127.0.0.1:0"]
    with commands.popen(command, **pipes, env=environment(cluster)) as process:
        try:
            line, token = [await read_line(process) for _ in range(2)]
            assert b" at http://" in line, process.stderr.read().decode()
            url = line.split(b" at ")[1].split(b"/v1;")[0].decode()
            async with connect(url, token=token.split()[-1].decode(), retry_timeout=PATIENCE) as client:
                yield process, line, client
        finally:
            process.kill()


async def read_line(process):
    return await trio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)


async def end(process):
    return await trio.to_thread.run_sync(partial(process.wait, PATIENCE), abandon_on_cancel=True)


async def test_a_node_serves_its_cluster_over_http(open_cluster, commands, command, tmp_path):
    """One command runs a node and a gateway.

    It serves sessions of both nodes, and ends after it was drained.
    """
    file = tmp_path / "agents.py"
    file.write_text(AGENT)
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(BareAgent("clerk", llm=Mended(is_mended=True))) as runtime,
            serving(commands, cluster, file, "--cluster", cluster.pool, "--node", "web") as (
                process,
                line,
                client,
            ),
        ):
            assert line.startswith(b"clerk at http://")
            await wait_balanced(runtime, nodes=2)
            here = runtime.journal.new_session_id()
            there = next(each for each in map(str, range(10_000)) if not runtime.journal.owns(each))
            for session_id, answer in ((here, "you said: 6 * 7?"), (there, "It is 42.")):
                session = await client.agent("clerk").create_session(session_id=session_id)
                assert (await client.agent("clerk").run("6 * 7?", session=session)).text == answer
            drained = await command(cluster, "drain", "web", "--cluster", cluster.pool)
            assert drained.returncode == 0, drained.stderr
            assert await end(process) == 0
            assert b"the node was drained" in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--node", "web"), "--node and --advertise require --cluster"),
        (("--advertise", "http://h:1"), "--node and --advertise require --cluster"),
        (
            ("--cluster", "x"),
            "the journal of the cluster is not set: use --journal or the variable ACTGENT_JOURNAL",
        ),
        (("--cluster", "x", "--journal", "a.db"), "a cluster node requires a journal in PostgreSQL"),
        (
            ("--cluster", "x y", "--journal", "postgres://127.0.0.1/test"),
            "must be a name of 1 to 64 letters, digits, '-' and '_'",
        ),
        (
            ("--cluster", "x", "--journal", "postgres://127.0.0.1/test", "--advertise", "https://h"),
            "must be the URL at which other nodes reach this one, http://HOST:PORT",
        ),
    ],
)
async def test_invalid_node_options_are_rejected(commands, tmp_path, arguments, why):
    """The command prints one line with the remedy before it opens any resource."""
    (tmp_path / "agents.py").write_text(AGENT)
    known = {key: value for key, value in os.environ.items() if not key.startswith("ACTGENT_")}
    line = [ACTGENT, "serve", "agents.py", "--bind", "127.0.0.1:0", *arguments]
    run = partial(commands.run, line, capture_output=True, text=True, timeout=PATIENCE)
    refused = await trio.to_thread.run_sync(partial(run, env=known, cwd=tmp_path))
    assert (refused.returncode, why in refused.stderr) == (2, True), refused.stderr
