"""Erased and forgotten memories leave no byte in the files of an open store."""

import array
import json
import sqlite3
import subprocess
import sys
import threading

import pytest
import trio

from actgent import (
    BareAgent,
    LongTermMemory,
    MemoryFilter,
    ScriptedLLM,
    Sender,
    SummarizingMemory,
    open_runtime,
)
from actgent.cli.main import main

ADA, BOB = Sender("ada"), Sender("bob")
VECTOR = [0.5, 0.25, 0.125, 0.75, 0.3, 0.9, 0.1, 0.6]
WORDS = (
    "zyxwvut",
    "qqsecretqq",
    "zzkind",
    "zzmeta",
    "zzvalue",
    "zzsession",
    "zzmessage",
    "zzkey",
    "zzlink",
    "zzmark",
)
"""Word prefixes, as in the search index, that only Ada's memories contain."""


def embed(texts):
    return [VECTOR if "zyxwvut" in text.lower() else [0.1] * len(VECTOR) for text in texts]


def bytes_of(file):
    """Read a file in a separate process, because closing the file here would drop the database's locks."""
    return subprocess.run(["cat", str(file)], stdout=subprocess.PIPE, check=True).stdout


def found_in(path):
    """Return for each file beside a path the words, ids and vectors that it contains."""
    expected = [word.encode() for word in WORDS] + [array.array("f", VECTOR).tobytes(), b'"ada"']
    files = {file.name: bytes_of(file) for file in path.parent.glob(f"{path.name}*")}
    found = {name: {word for word in expected if word in data} for name, data in files.items()}
    return {name: value for name, value in found.items() if value}


READER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN")
print(database.execute("SELECT count(*) FROM memories").fetchall(), flush=True)
sys.stdin.read()
"""


async def fill(memories):
    for number in range(200):
        await memories.remember(f"an ordinary fact {number} about tea", owner=BOB)
    old = await memories.remember(
        "Zyxwvutology is what she studies, qqsecretqq",
        owner=ADA,
        kind="zzkind",
        metadata={"zzmeta": "zzvalue"},
        session_id="zzsession",
        message_id="zzmessage",
        key="zzkey",
    )
    new = await memories.update(old.id, "A zyxwvutologist, qqsecretqq", owner=ADA)
    for number in range(50):
        each = await memories.remember(f"zyxwvut{number} and qqsecretqq", owner=ADA)
        await memories.associate(each.id, new.id, "zzlink", owner=ADA)
    await memories.mark(ADA, "zzmark", "zzmark")
    await memories.recall("zyxwvutology", owner=ADA)


async def test_erasing_an_owner_leaves_no_byte(tmp_path):
    """File and log contain no text, history, index word, vector, link or mark. Other owners keep theirs."""
    pytest.importorskip("sqlite_vec", reason="the extra `vector` is not installed")
    path = tmp_path / "memories.db"
    async with LongTermMemory(f"sqlite:///{path}", embed=embed) as memories:
        await fill(memories)
        before = found_in(path)
        assert len({word for expected in before.values() for word in expected}) == len(WORDS) + 2
        assert await memories.erase(ADA) == 52
        assert found_in(path) == {}
        assert len(await memories.recall("tea", owner=BOB, limit=300)) == 200
    assert found_in(path) == {}


async def test_forgetting_leaves_no_byte_of_the_text(tmp_path):
    """Forgetting by ids or by a filter removes the text and its history from the file and its log."""
    path = tmp_path / "memories.db"
    async with LongTermMemory(f"sqlite:///{path}") as memories:
        await fill(memories)
        first, *_ = await memories.page(owner=ADA)
        await memories.forget(first.id, owner=ADA)
        assert "zzvalue" not in str(found_in(path))
        await memories.forget(owner=ADA, filters=MemoryFilter(kinds=["fact"]))
        assert not {"zyxwvut", "qqsecretqq"} & {
            str(word, "latin1") for each in found_in(path).values() for word in each
        }


async def test_a_concurrent_reader_delays_only_the_truncation_of_the_log(tmp_path):
    """The next write removes the deleted text from the log."""
    path = tmp_path / "memories.db"
    async with LongTermMemory(f"sqlite:///{path}") as memories:
        await fill(memories)
        command = [sys.executable, "-c", READER, str(path)]
        with subprocess.Popen(command, stdin=-1, stdout=-1) as reader:  # noqa: ASYNC220 - it waits for us
            await trio.to_thread.run_sync(reader.stdout.readline)
            assert await memories.erase(ADA) == 52
            assert await memories.export(ADA) == []
            assert found_in(path)
        await memories.remember("something else", owner=BOB)
        assert found_in(path) == {}


def stored(path):
    """Return the bodies of all steps and snapshots of a journal."""
    database = sqlite3.connect(path)
    try:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = []
        for table in tables:
            for row in database.execute(f"SELECT * FROM {table}"):
                found += [each for each in row if isinstance(each, bytes) and len(each) > 40]
        return found
    finally:
        database.close()


def wait_for_threads():
    """Wait until the databases are closed. A busy thread closes its database after the block has ended."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(60)


async def talk(journal, memories):
    """Run sessions of two owners, one of them with summaries."""
    llm = ScriptedLLM(lambda chat: ("qqsecretqq " if chat.owner == "ada" else "tea ") * 20)
    shown = SummarizingMemory(keep=1, trigger=50)
    clerk = BareAgent("clerk", llm=llm, long_term_memory=memories, memory=shown)
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(clerk)
        for owner in ("ada", "bob"):
            session = await clerk.create_session(owner)
            number = 0
            while not any(each.sender.name == "summary" for each in session.history):
                number += 1
                await session.chat(f"{number} " + ("qqsecretqq " if owner == "ada" else "tea ") * 30)
                await session.wait_idle()


def test_the_command_erases_journal_summaries_and_memories(tmp_path, capsys):
    """`actgent memory forget --all --journal` leaves no step, snapshot or word of the owner in the folder."""
    journal, memories = tmp_path / "agents.db", tmp_path / "memories.db"

    async def live():
        async with LongTermMemory(f"sqlite:///{memories}") as kept:
            await fill(kept)
            await talk(f"sqlite:///{journal}", kept)

    trio.run(live)
    wait_for_threads()
    before = stored(journal)
    with pytest.raises(SystemExit) as ended:
        main(["memory", "forget", str(memories), "--owner", "ada", "--all", "--journal", str(journal)])
    wait_for_threads()
    assert ended.value.code == 0
    assert "sessions erased: 1" in capsys.readouterr().out
    left = stored(journal)
    gone = [each for each in before if each not in left]
    ends = [each[-40:] for each in gone if not any(each[-40:] in other for other in left)]
    assert ends
    assert left
    data = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for name, content in data.items():
        assert not [end for end in ends if end in content], name
        assert not [word for word in WORDS if word.encode() in content], name
    assert json.dumps(["user", "ada"]).encode() not in data["memories.db"]
