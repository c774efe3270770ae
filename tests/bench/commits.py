"""What SQLite itself takes to keep something: the floor of everything that is durable."""

import time

import apsw
import trio


def open_table(path: str) -> apsw.Connection:
    """A new file with a table of one column, set up as safe as a journal's."""
    db = apsw.Connection(path)
    for text in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE said (body BLOB)"):
        db.execute(text)
    return db


async def time_commits(db: apsw.Connection, *texts: str) -> float:
    """Milliseconds to keep a message, and then its answer, from a thread: the loop goes on meanwhile."""
    begun = time.perf_counter()
    for text in texts:
        await trio.to_thread.run_sync(_commit, db, text)
    return (time.perf_counter() - begun) * 1e3


def time_blocking_commits(db: apsw.Connection, *texts: str) -> float:
    """The same in the loop's own thread: all tasks stand still until the disk has it."""
    begun = time.perf_counter()
    for text in texts:
        _commit(db, text)
    return (time.perf_counter() - begun) * 1e3


def _commit(db: apsw.Connection, text: str) -> None:
    db.execute("INSERT INTO said VALUES (?)", (text.encode(),))
