"""Processes that write memories, killed with SIGKILL at random moments."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from actgent import LongTermMemory, MemoryNotFound
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import AgentMessageRecord, MessageAcceptedRecord, MessageAppendedRecord

CONVERSING = Path(__file__).with_name("conversing.py")
SCRIPT = Path(__file__).with_name("remembering.py")
KILLS = 100 if os.environ.get("ACTGENT_SOAK") else 8


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request, tmp_path):
    """Return the URL of a store that other processes can open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/memories.db"
    return request.getfixturevalue("postgres_url")


async def test_kills_lose_and_double_no_confirmed_memory(shared_url, process_server):
    """Each process repeats the unconfirmed notes of the previous one. In the end each note exists once, as confirmed.

    8 kills of each store in the tests, and 100 with the soak switch.
    """
    rng = random.Random(3)
    confirmed = set()
    for _ in range(KILLS):
        first = _unconfirmed(confirmed)
        with process_server.popen(
            [sys.executable, str(SCRIPT), shared_url, str(first)], stdout=subprocess.PIPE
        ) as life:
            output = [life.stdout.readline() for _ in range(rng.randrange(1, 150))]
            os.kill(life.pid, signal.SIGKILL)
            output += life.stdout.readlines()
        confirmed |= {int(line) for line in output if line.endswith(b"\n")}
    assert len(confirmed) > 10 * KILLS
    async with LongTermMemory(shared_url) as memories:
        known = {}
        for each in await memories.export("ada"):
            known.setdefault(each.metadata["n"], []).append(each)
        wrong = [number for number in confirmed if not _is_right(number, known.get(number, []))]
        assert wrong == []
        assert [number for number, each in known.items() if len(each) > 2] == []
        for each in [one for some in known.values() for one in some if one.replaced_by is None][:50]:
            found = await memories.recall(each.text, owner="ada", limit=100)
            assert each.id in {one.memory.id for one in found}
        with pytest.raises(MemoryNotFound):
            await memories.get("m0", owner="ada")


def _unconfirmed(numbers):
    """Return the first unconfirmed number, from which the next process repeats."""
    number = 0
    while number in numbers:
        number += 1
    return number


def _is_right(number, found):
    if number % 5 == 0:
        return found == []
    texts = [f"note {number}"] + ([f"note {number} again"] if number % 3 == 0 else [])
    return [each.text for each in found] == texts


async def test_kills_during_conversations_lose_no_message(tmp_path, process_server):
    """No answered message is lost or duplicated, and no summary covers unread messages.

    8 kills in the tests, 100 with the soak switch, at any moment of an agent with memories, summaries and
    consolidation.
    """
    rng = random.Random(5)
    confirmed = set()

    def command(last):
        return [sys.executable, str(CONVERSING), str(tmp_path), str(_unconfirmed(confirmed)), str(last)]

    for _ in range(KILLS):
        with process_server.popen(command(0), stdout=subprocess.PIPE) as life:
            output = [life.stdout.readline() for _ in range(rng.randrange(1, 8))]
            time.sleep(rng.uniform(0, 0.3))  # noqa: ASYNC251 - the moment of the kill
            os.kill(life.pid, signal.SIGKILL)
            output += life.stdout.readlines()
        confirmed |= {int(line) for line in output if line.endswith(b"\n")}
    last = max(confirmed) + 3  # the other session may be one message further
    assert process_server.run(command(last), stdout=subprocess.DEVNULL, timeout=600).returncode == 0
    async with LongTermMemory(f"sqlite:///{tmp_path}/memories.db") as memories:
        known = Counter(each.text for each in await memories.export("ada"))
    assert known == Counter(f"{what} #{number}" for what in ("heard", "read") for number in range(last))
    summaries = 0
    async with open_journal(f"sqlite:///{tmp_path}/agents.db", read_only=True) as journal:
        for index in range(2):
            said = await _said(journal, f"s{index}")
            asked = [each.text.split()[2] for each in said if each.sender.kind == "user"]
            assert asked == [f"#{number}" for number in range(index, last, 2)]
            for at, each in enumerate(said):
                if each.sender.name == "summary":
                    summaries += 1
                    covered = {
                        number
                        for one in said[: int(each.causation_id)]
                        for number in NUMBER.findall(one.text)
                    }
                    assert int(each.causation_id) <= at
                    assert covered == set(NUMBER.findall(each.text))
    assert summaries > 1


NUMBER = re.compile(r"#\d+")


async def _said(journal, session_id):
    """Return all messages of a session in the order of its records."""
    accepted, texts = {}, []
    for record in await journal.load(session_id, agent="clerk"):
        if isinstance(record, AgentMessageRecord):
            texts.append(record.message)
        elif isinstance(record, MessageAcceptedRecord):
            accepted[record.message.id] = record.message
        elif isinstance(record, MessageAppendedRecord) and not record.is_repeated:
            texts.append(accepted[record.message_id])
    return texts
