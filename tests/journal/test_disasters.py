"""kill -9, full disks, failing disks and power cuts: confirmed records survive."""

import contextlib
import itertools
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import apsw
import pytest
import trio

from actgent.errors import JournalError, JournalFailed, JournalFull
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import StateChangeRecord
from actgent.journal.sqlite import SQLiteJournal, find_problems

# --- kill -9 -----------------------------------------------------------------------------

WRITER = textwrap.dedent("""
    import sys, trio
    from actgent.journal.journal_interface import Entry
    from actgent.journal.journal_url import open_journal
    from actgent.journal.record_types import StateChangeRecord
    async def live(journal, epoch, name, number):
        while True:
            record = StateChangeRecord(changes={"n": number})
            await journal.commit(Entry(session_id=name, agent="a", records=(record,)), epoch=epoch)
            print(name, number, flush=True)
            number += 1
    async def main(url):
        async with open_journal(url) as journal, trio.open_nursery() as nursery:
            epoch = await journal.acquire()
            for name in ("s0", "s1", "s2", "s3", "s4"):
                number = len(await journal.load(name))
                nursery.start_soon(live, journal, epoch, name, number)
    trio.run(main, sys.argv[1])
""")


async def test_kill_9_loses_no_confirmed_record(lasting_url, times, process_server):
    """After each of many kills in one journal the record numbers of each session have no gap and no repeat."""
    dice = random.Random(4)
    confirmed = {}
    for _ in range(times(10, 150)):
        lines = await trio.to_thread.run_sync(
            _write_until_killed, process_server, lasting_url, dice.randrange(1, 200)
        )
        for line in lines:
            name, number = line.split()
            confirmed[name] = int(number) + 1
        async with open_journal(lasting_url) as journal:
            await journal.acquire()
            for name, count in confirmed.items():
                numbers = [record.changes["n"] for record in await journal.load(name)]
                assert numbers == list(range(len(numbers)))
                assert count <= len(numbers) <= count + 1
                confirmed[name] = len(numbers)  # a life that ends before its first line may add one more


def _write_until_killed(process_server, url, lines):
    process = process_server.popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True)
    read = [process.stdout.readline() for _ in range(lines)]
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    return [*read, *rest.rpartition("\n")[0].splitlines()]


# --- a disk that fails -------------------------------------------------------------------


class Disk(apsw.VFS):
    """A disk that can be full or fail, with its unsynced writes."""

    def __init__(self, name):
        self.name = name
        self.fails_after = None
        """So many writes and syncs still succeed; None: all do."""
        self.error = None
        self.unsynced = []
        """Path, place and bytes of each write since the last sync of its file."""
        self.synced = None
        """Files with such writes, as they were before the first of them; None where nobody will ask."""
        super().__init__(name, base="")

    def xOpen(self, name, flags):  # noqa: N802 - SQLite's name
        return DiskFile(self, name, flags)

    def step(self):
        """Count a write; after the allowed number raise, as a full disk does."""
        if self.fails_after is not None:
            self.fails_after -= 1
            if self.fails_after < 0:
                raise self.error


class DiskFile(apsw.VFSFile):
    def __init__(self, disk, name, flags):
        self.disk = disk
        self.path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "temporary")
        super().__init__("", name, flags)

    def xWrite(self, data, offset):  # noqa: N802 - SQLite's name
        self.disk.step()
        self.disk.unsynced.append((self.path, offset, bytes(data)))
        if self.disk.synced is not None and self.path not in self.disk.synced:
            self.disk.synced[self.path] = self.path.read_bytes()
        super().xWrite(data, offset)

    def xTruncate(self, size):  # noqa: N802 - SQLite's name
        self.disk.step()
        super().xTruncate(size)

    def xSync(self, flags):  # noqa: N802 - SQLite's name
        self.disk.step()
        self.disk.unsynced = [write for write in self.disk.unsynced if write[0] != self.path]
        if self.disk.synced is not None:
            self.disk.synced.pop(self.path, None)
        super().xSync(flags)


@pytest.fixture
def make_disk():
    """Return a function `make_disk(error)` that installs a disk that fails with that error until the test ends."""
    disks, numbers = [], itertools.count()

    def make(error):
        disks.append(Disk(f"disk {next(numbers)}"))
        disks[-1].error = error
        return disks[-1]

    yield make
    for disk in disks:
        disk.unregister()


FAILURES = [(apsw.FullError("disk full"), JournalFull), (apsw.IOError("input or output"), JournalFailed)]


@pytest.mark.parametrize("failure", FAILURES, ids=["full", "broken"])
async def test_failed_write_loses_no_confirmed_record(tmp_path, make_disk, make_writer, failure):
    """Each of the first hundred writes fails once with a typed error. Work continues when the disk works again."""
    error, expected = failure
    disk = make_disk(error)
    for number in range(100):
        path = tmp_path / f"{number}.db"
        async with SQLiteJournal(path, vfs=disk.name).running() as journal:
            writer = make_writer(journal, await journal.acquire())
            await writer.open()
            disk.fails_after = number
            with pytest.raises(expected):
                await _write_forever(writer)
            disk.fails_after = None
            writer.enqueue_write(StateChangeRecord(changes={"again": 1}))
            await writer.turn()
            assert await writer.load() == writer.confirmed
        async with open_journal(f"sqlite:///{path}") as journal:
            await journal.acquire()
            assert await journal.load("s") == writer.confirmed


@pytest.mark.parametrize("failure", FAILURES, ids=["full", "broken"])
async def test_failed_write_of_an_opening_raises_a_typed_error(tmp_path, make_disk, make_writer, failure):
    """A new and an existing file fail at each write. The next attempt succeeds."""
    error, _ = failure
    disk = make_disk(error)
    for number in range(40):
        path = tmp_path / f"{number}.db"
        confirmed = ()
        for _ in range(2):
            async with SQLiteJournal(path, vfs=disk.name).running() as journal:
                disk.fails_after = number
                with contextlib.suppress(JournalError):
                    await journal.acquire()
                disk.fails_after = None
                writer = make_writer(journal, await journal.acquire())
                await writer.turn()
                confirmed += writer.confirmed
                assert await writer.load() == confirmed


class ReadOnlyDisk(apsw.VFS):
    """A disk that rejects all writes."""

    def __init__(self):
        super().__init__("read-only disk", base="")

    def xOpen(self, name, flags):  # noqa: N802 - SQLite's name
        flags[0] = flags[0] & ~apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_READONLY
        return super().xOpen(name, flags)


async def test_error_names_a_file_that_cannot_be_written(tmp_path):
    """The file is unchanged."""
    path = tmp_path / "a.db"
    async with open_journal(f"sqlite:///{path}") as journal:
        await journal.acquire()
    before, disk = path.read_bytes(), ReadOnlyDisk()
    with pytest.raises(JournalFailed, match="read-only"):
        async with SQLiteJournal(path, vfs="read-only disk").running() as journal:
            await journal.acquire()
    disk.unregister()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "failure",
    [*FAILURES, (apsw.BusyError("in the way"), JournalFailed), (apsw.LockedError("locked"), JournalFailed)],
    ids=["full", "broken", "busy", "locked"],
)
async def test_steps_without_a_waiting_caller_are_retried_after_disk_failures(
    tmp_path, make_disk, make_writer, failure
):
    """The next commit raises the error. When the disk works again, it writes the steps in order without a gap."""
    error, expected = failure
    disk = make_disk(error)
    async with SQLiteJournal(tmp_path / "a.db", vfs=disk.name).running() as journal:
        writer = make_writer(journal, await journal.acquire())
        disk.fails_after = 0
        writer.enqueue_write(StateChangeRecord(changes={"n": 1}))
        with pytest.raises(expected):
            await writer.commit(StateChangeRecord(changes={"refused": 1}))
        writer.enqueue_write(StateChangeRecord(changes={"n": 2}))
        with pytest.raises(expected):
            await writer.load()
        disk.fails_after = None
        await writer.commit(StateChangeRecord(changes={"n": 3}))
        assert [record.changes["n"] for record in await writer.load()] == [1, 2, 3]


# --- power cuts --------------------------------------------------------------------------


async def test_power_cut_loses_no_confirmed_record(tmp_path, make_disk, make_writer, times):
    """Unsynced writes are lost, torn or stored in any order; each file is intact."""
    dice, hits, cuts = random.Random(7), 0, times(20, 200)
    for number in range(cuts):
        disk = make_disk(apsw.IOError("power"))
        disk.synced = {}
        live, after = tmp_path / f"live{number}.db", tmp_path / f"after{number}.db"
        writers = []
        async with SQLiteJournal(live, vfs=disk.name).running() as journal:
            disk.fails_after = dice.randrange(1, (30, 120, 120, 120, 4000)[number % 5])
            with contextlib.suppress(JournalError):
                epoch = await journal.acquire()
                writers = [make_writer(journal, epoch, f"s{index}") for index in range(3)]
            async with trio.open_nursery() as nursery:
                for writer in writers:
                    nursery.start_soon(_write_until_it_fails, writer)
            hits += bool(disk.unsynced)
            _cut(live, after, disk, dice)
        async with open_journal(f"sqlite:///{after}") as journal:
            epoch = await journal.acquire()
            for writer in writers:
                again = make_writer(journal, epoch, writer.session_id)
                loaded = await again.load()
                assert loaded[: len(writer.confirmed)] == writer.confirmed
                assert len(loaded) <= len(writer.confirmed) + 1
                await again.turn()
                assert await again.load() == loaded + again.confirmed
        assert find_problems(after) == []
    assert hits > cuts / 2  # cuts that left something unsynced


async def _write_until_it_fails(writer):
    with contextlib.suppress(JournalError):
        await _write_forever(writer)


async def _write_forever(writer):
    while True:
        await writer.commit(StateChangeRecord(changes={"text": "x" * 3000}))


SECTOR = 512


def _cut(live, after, disk, dice):
    """Return the files as they may be after a power cut. The lock file, which is never synced, may be missing."""
    for suffix in ("", "-journal", "-wal", "-lock"):
        source = Path(f"{live}{suffix}")
        if not source.exists() or (suffix == "-lock" and dice.random() < 1 / 4):
            continue
        data = bytearray(disk.synced.get(source, source.read_bytes()))
        for path, offset, written in disk.unsynced:
            for at, piece in _torn(offset, written, dice) if path == source else ():
                data.extend(bytes(max(0, at - len(data))))
                data[at : at + len(piece)] = piece
        Path(f"{after}{suffix}").write_bytes(data)


def _torn(offset, written, dice):
    """Return the remains of an unsynced write: all, nothing, its beginning, some sectors, or garbage in whole sectors."""
    places = range(offset - offset % SECTOR, offset + len(written), SECTOR)
    pieces = [(max(at, offset), written[max(0, at - offset) : at + SECTOR - offset]) for at in places]
    match dice.choice(["all", "nothing", "beginning", "some", "garbage"]):
        case "all":
            return pieces
        case "nothing":
            return []
        case "beginning":
            return pieces[: dice.randrange(len(pieces))]
        case "some":
            return [piece for piece in pieces if dice.random() < 1 / 2]
    return [(at, dice.randbytes(SECTOR) if len(piece) == SECTOR else piece) for at, piece in pieces]
