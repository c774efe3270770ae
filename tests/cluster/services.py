"""A database on a free port and in a separate folder, which a test may kill and restart.

As root, it runs as the user of its package, or as the user nobody. Its files are removed with the test.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import attrs
import psycopg
import pytest
import trio

PATIENCE = 300
"""Seconds within which a service starts on a loaded machine."""


STANDBY = "standby"
"""The name of the standby in the settings of its primary."""


def free_port():
    """Return a free loopback port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@attrs.define(eq=False)
class Service:
    """A server in a separate process group. As root, it runs as another user."""

    user: str
    host: str = "127.0.0.1"
    inside: tuple = ()
    """Command prefix that enters the network namespace of the server."""
    folder: Path = attrs.field(init=False)
    port: int = attrs.field(factory=free_port)
    ca: Path = attrs.field(init=False)
    """Path of the authority that signed its certificate; unset without TLS."""
    _processes: list = attrs.field(factory=list)
    _environment: dict = attrs.field(factory=dict)

    def __attrs_post_init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="actgent-"))
        if os.geteuid() == 0:
            with contextlib.suppress(KeyError):
                pwd.getpwnam(self.user)
                shutil.chown(self.folder, self.user)
                return
            self.user = "nobody"
            shutil.chown(self.folder, self.user)

    def give(self, name, text):
        """Write a file that the user of the server may read."""
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(0o600)
        if os.geteuid() == 0:
            shutil.chown(path, self.user)
        return path

    def command(self, *words):
        who = [
            "setpriv",
            f"--reuid={self.user}",
            f"--regid={pwd.getpwnam(self.user).pw_gid}",
            "--clear-groups",
        ]
        return [*self.inside, *(who if os.geteuid() == 0 else ()), *map(str, words)]

    def begin(self, *words):
        """Start a server process in a new process group."""
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen(
                self.command(*words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env={
                    "PATH": os.environ["PATH"],
                    "HOME": str(self.folder),
                    "LC_ALL": "C",
                    **self._environment,
                },
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def kill(self):
        """Kill all processes of the server with SIGKILL."""
        for process in self._processes:
            others = _below(process.pid)
            for kill, number in ((os.killpg, process.pid), *((os.kill, each) for each in others)):
                with contextlib.suppress(ProcessLookupError):
                    kill(number, signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def close(self):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def wait_ready(self):
        """Wait until the server answers. Raise with its output if it has ended."""
        with trio.fail_after(PATIENCE):
            while not await self.answers():
                ended = [each for each in self._processes if each.poll() is not None]
                assert not ended, (self.folder / "output").read_text(errors="replace")[-3000:]
                await trio.sleep(0.05)


def _below(pid):
    """Return the descendant process ids of a process."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in path.read_text(encoding="ascii").split():
                found += [int(child), *_below(int(child))]
    return found


@attrs.define(eq=False)
class Database(Service):
    """A PostgreSQL server that accepts all users of the trusted network."""

    user: str = "postgres"
    binaries: Path = Path()
    options: tuple = ()
    trusted: str = "127.0.0.1/32"
    """The network whose hosts may connect."""

    primary: "Database | None" = None
    """The running primary of this synchronous standby. None: the server is a primary with a new cluster."""

    def __attrs_post_init__(self):
        super().__attrs_post_init__()
        if self.primary is not None:
            source = f"host={self.primary.folder} port={self.primary.port} user=postgres application_name={STANDBY}"
            self._run("pg_basebackup", "-d", source, "-D", self.folder / "data", "-R", "-c", "fast")
            return
        self._run("initdb", "-D", self.folder / "data", *"-U postgres -A trust -N -E UTF8 --locale=C".split())
        rules = self.folder / "data" / "pg_hba.conf"
        trusted = f"host all all {self.trusted} trust\nlocal replication all trust\n"
        rules.write_text(f"local all all trust\n{trusted}", encoding="ascii")

    def _run(self, program, *words):
        command = self.command(self.binaries / program, *words)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder)

    def certify(self, ca, cert, key):
        """Offer TLS to clients from the next start on."""
        self.ca = ca
        files = {"cert": self.give("cert", cert.read_bytes()), "key": self.give("key", key.read_bytes())}
        named = (f"ssl_{name}_file={path}" for name, path in files.items())
        self.options = tuple(word for setting in ("ssl=on", *named) for word in ("-c", setting))

    @property
    def url(self):
        return f"postgresql://postgres@{self.host}:{self.port}/postgres"

    @property
    def near(self):
        """The address of the Unix socket in the server's folder, which needs no network."""
        return f"postgresql://postgres@/postgres?host={self.folder}&port={self.port}"

    async def start(self):
        places = ["-k", self.folder, "-h", self.host, "-p", self.port]
        self.begin(self.binaries / "postgres", "-D", self.folder / "data", *places, *self.options)
        await self.wait_ready()

    async def execute(self, sql):
        """Run a statement, and return its rows; None for a statement without rows."""
        return await trio.to_thread.run_sync(self._execute, sql)

    def _execute(self, sql):
        with psycopg.connect(self.near, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else None

    async def confirm_by_standby(self):
        """Wait until each transaction is confirmed only after the standby has it on disk."""
        await self.execute(f"ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 ({STANDBY})'")
        await self.execute("SELECT pg_reload_conf()")
        with trio.fail_after(PATIENCE):
            while await self.execute("SELECT sync_state FROM pg_stat_replication") != [("sync",)]:  # noqa: ASYNC110 - no event signals this state
                await trio.sleep(0.05)

    async def answers(self):
        with contextlib.suppress(psycopg.OperationalError):
            await trio.to_thread.run_sync(lambda: psycopg.connect(self.near, connect_timeout=5).close())
            return True
        return False


def make_database(**options):
    """Return a PostgreSQL server that is not started yet. Skip the test if PostgreSQL is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    initdb = found[-1] if found else shutil.which("initdb")
    if initdb is None or not shutil.which("setpriv"):
        pytest.skip("no PostgreSQL to start: initdb is neither below /usr/lib/postgresql nor in PATH")
    return Database(binaries=Path(initdb).parent, **options)
