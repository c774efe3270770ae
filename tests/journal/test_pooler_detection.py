"""A journal behind PgBouncer: rejected in transaction mode, and safe in session mode."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.parse

import pytest

from actgent import BareAgent, ConfigurationError, ScriptedLLM, open_runtime
from actgent.errors import Fenced
from actgent.journal.postgres.connections import connection_to
from actgent.journal.postgres.partitioned_journal import PartitionedJournal


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def pooled(url, folder, mode, *lines):
    """Return the address of a PgBouncer in the given mode in front of a server."""
    command = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if command is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    parts, port = urllib.parse.urlsplit(url), free_port()
    place = f"host={parts.hostname} port={parts.port} user={parts.username}"
    settings = [
        "listen_addr = 127.0.0.1",
        f"listen_port = {port}",
        "unix_socket_dir =",
        "auth_type = any",
        *lines,
    ]
    config = folder / "pgbouncer.ini"
    folder.chmod(0o755)
    config.write_text(
        "\n".join(["[databases]", f"* = {place}", "[pgbouncer]", f"pool_mode = {mode}", *settings, ""])
    )
    config.chmod(0o644)
    other_user = ["-u", "nobody"] if os.getuid() == 0 else []
    if other_user:
        for parent in config.parents:  # PgBouncer reads its file as another user than root
            if parent.stat().st_uid == 0 and parent != parent.parent:
                parent.chmod(parent.stat().st_mode | 0o055)
    process = subprocess.Popen([command, *other_user, str(config)], stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        yield urllib.parse.urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}"))
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()


def make_agent():
    return BareAgent("clerk", llm=ScriptedLLM(["Yes."], repeat=True))


ONE = "default_pool_size = 1"
TURNS = "server_round_robin = 1"
IGNORES = "ignore_startup_parameters = options"


@pytest.mark.parametrize(
    "lines", [(), (ONE,), (TURNS,), (IGNORES,)], ids=["default", "one", "turns", "ignores"]
)
@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_pooler_in_transaction_mode_is_rejected(postgres_url, tmp_path, mode, lines):
    """The error names the address and the remedy, and the owner keeps the journal."""
    with pooled(postgres_url, tmp_path, mode, *lines) as address:
        async with open_runtime(journal=postgres_url) as runtime:
            clerk = await runtime.start(make_agent())
            with pytest.raises(ConfigurationError, match="pool_mode = session") as raised:
                async with open_runtime(journal=address):
                    pass
            assert "127.0.0.1" in str(raised.value)
            assert str(await clerk.run("Hello")) == "Yes."


async def test_busy_pooler_in_transaction_mode_is_rejected(postgres_url, tmp_path):
    """Other clients of the pooler run transactions at the same time."""
    import psycopg

    with pooled(postgres_url, tmp_path, "transaction", TURNS) as address, contextlib.ExitStack() as others:
        plain = address.partition("?")[0]
        for number in range(4):
            other = others.enter_context(psycopg.connect(plain, autocommit=True))
            other.execute("SELECT 1" if number % 2 else "BEGIN")
        for _ in range(5):
            with pytest.raises(ConfigurationError, match="pool_mode = session"):
                async with open_runtime(journal=address):
                    pass


@pytest.mark.parametrize(
    "lines", [(), (ONE,), (TURNS,), (IGNORES,)], ids=["default", "one", "turns", "ignores"]
)
async def test_a_pooler_in_session_mode_works(postgres_url, tmp_path, lines):
    """The journal works, its sessions have the journal's settings, and it can be opened again."""
    with pooled(postgres_url, tmp_path, "session", *lines) as address:
        async with open_runtime(journal=address) as runtime:
            clerk = await runtime.start(make_agent())
            session = await clerk.create_session("ada", session_id="s")
            assert str(await clerk.run("Hello", session=session)) == "Yes."
        async with open_runtime(journal=address) as runtime:
            clerk = await runtime.start(make_agent())
            assert (await clerk.open_session("s")).history[-1].text == "Yes."


def test_a_pool_in_session_mode_gets_the_settings_of_a_connection(postgres_url, tmp_path):
    """PgBouncer rejects or ignores `options`, so the settings are applied after the connection is open."""
    for lines in ((), (IGNORES,)):
        with contextlib.ExitStack() as stack:
            address = stack.enter_context(pooled(postgres_url, tmp_path, "session", *lines))
            connection = stack.enter_context(connection_to(address.partition("?")[0]))
            names = ("statement_timeout", "lock_timeout", "default_transaction_isolation", "TimeZone")
            found = [connection.execute(f"SHOW {name}").fetchone()[0] for name in names]
            assert found == ["30s", "10s", "read committed", "UTC"]


async def test_a_second_process_is_fenced_through_a_pooler_in_session_mode(postgres_url, tmp_path):
    """The owner's lock holds, with or without the pooler in front of the second process."""
    with pooled(postgres_url, tmp_path, "session") as address:
        async with open_runtime(journal=address) as runtime:
            clerk = await runtime.start(make_agent())
            for other in (address, postgres_url):
                with pytest.raises(Fenced):
                    async with open_runtime(journal=other):
                        pass
            assert str(await clerk.run("Hello")) == "Yes."


async def test_partitioned_journal_rejects_a_pooler_in_transaction_mode(postgres_url, tmp_path):
    """A node of a cluster is rejected as well."""
    with pooled(postgres_url, tmp_path, "transaction") as address:
        journal = PartitionedJournal(address, node="n", on_lost=lambda *_: None)
        with pytest.raises(ConfigurationError, match="pool_mode = session"):
            async with journal.running():
                await journal.acquire_partitions([0])


async def test_direct_connection_opens_no_second_connection(postgres_url, monkeypatch):
    """A server reports its own process id, so no pooler has to be detected."""
    from actgent.journal.postgres import connections

    def refuse(*_):
        raise AssertionError("a second connection was opened")

    monkeypatch.setattr(connections, "check_session", refuse)
    async with open_runtime(journal=postgres_url) as runtime:
        clerk = await runtime.start(make_agent())
        assert str(await clerk.run("Hello")) == "Yes."
