"""Journals: durable, append-only records of sessions, in SQLite, in PostgreSQL or in memory.

- A *record* is one entry of a session. The records of a session are numbered from 1.
- A *batch* is a group of records of one session that is written in one transaction. A *row* stores a batch.
- A *series* is the name under which the rows of one session are stored.
- A *head* is the stored summary of a session.
- An *epoch* is the number of an ownership. The journal rejects writes with an old epoch, so only the owner can write.
- A *tree* is a session with all its child sessions. One process owns a tree.

docs/help/glossary.md has the other terms.
"""
