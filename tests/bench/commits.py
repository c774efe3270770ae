"""What SQLite itself takes to keep something: the floor of everything that is durable."""

import time

import apsw


def open_table(path: str) -> apsw.Connection:
    """A new file with a table of one column, set up as safe as a journal's."""
    db = apsw.Connection(path)
    for text in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE said (body BLOB)"):
        db.execute(text)
    return db


def time_two_commits(db: apsw.Connection, message: str, answer: str) -> float:
    """Milliseconds to keep a message, and then its answer."""
    begun = time.perf_counter()
    for text in (message, answer):
        db.execute("INSERT INTO said VALUES (?)", (text.encode(),))
    return (time.perf_counter() - begun) * 1e3
