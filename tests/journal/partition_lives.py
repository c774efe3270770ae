"""A process that writes to all partitions of a journal until it is killed or stopped: `partition_lives.py URL NODE`.

It prints a line for each confirmed step, and the error if another process owns its partitions.
"""

import sys

import trio

from actgent.journal.journal_interface import Entry
from actgent.journal.postgres.partitioned_journal import PartitionedJournal
from actgent.journal.postgres.session_partitioning import PartitionsLost
from actgent.journal.record_types import MessageAcceptedRecord, SessionCreatedRecord, StateChangeRecord
from actgent.messages import Message, Sender, Text

SESSIONS = [f"s{number}" for number in range(12)]


def say(*texts):
    sys.stdout.write(" ".join(map(str, texts)) + "\n")
    sys.stdout.flush()


async def write(journal, session_id):
    """Write one step after the other, each after the last record of the session."""
    epoch = journal.epoch_of(session_id)
    message = Message(session_id=session_id, sender=Sender("ada"), parts=(Text("hi"),), id=f"{session_id} hi")
    records = (
        SessionCreatedRecord(owner=Sender("ada"), created_at=1.0),
        MessageAcceptedRecord(message=message),
    )
    number = len(await journal.load(session_id, agent="a"))
    while True:
        entry = Entry(session_id=session_id, agent="a", records=records if number == 0 else changed(number))
        try:
            await journal.commit(entry, epoch=epoch)
        except PartitionsLost:
            say("lost", session_id)
            return
        number += len(entry.records)
        say("wrote", session_id, number)


def changed(number):
    return (StateChangeRecord(changes={"n": number}),)


async def main(url, node):
    async with PartitionedJournal(url, node=node, partitions=8).running() as journal:
        await journal.acquire()
        await journal.acquire_partitions(range(8))
        async with trio.open_nursery() as nursery:
            for session_id in SESSIONS:
                nursery.start_soon(write, journal, session_id)
    say("left")


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
