"""Time of SQLite's own commits: the floor of all durable workloads."""

import time

import apsw
import trio


def open_table(path: str) -> apsw.Connection:
    """Create a file with a table of one column and the durability settings of a journal."""
    db = apsw.Connection(path)
    for text in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE said (body BLOB)"):
        db.execute(text)
    return db


async def time_commits(db: apsw.Connection, *texts: str) -> float:
    """Return milliseconds to commit a message and its answer from a thread, while the event loop keeps running."""
    started = time.perf_counter()
    for text in texts:
        await trio.to_thread.run_sync(_commit, db, text)
    return (time.perf_counter() - started) * 1e3


def time_blocking_commits(db: apsw.Connection, *texts: str) -> float:
    """Return the same for commits in the thread of the event loop, which block all tasks."""
    started = time.perf_counter()
    for text in texts:
        _commit(db, text)
    return (time.perf_counter() - started) * 1e3


def _commit(db: apsw.Connection, text: str) -> None:
    db.execute("INSERT INTO said VALUES (?)", (text.encode(),))
