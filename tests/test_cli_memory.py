"""`actgent memory`, run in this process with real files."""

import json
import shutil
from contextlib import closing

import apsw
import pytest
import trio

from actgent import BareAgent, LongTermMemory, ScriptedLLM, Sender, open_runtime
from actgent.cli.main import main
from actgent.journal.journal_url import open_journal


@pytest.fixture
def place(tmp_path):
    """A file with memories of three owners, and the id of each memory by its text."""
    path = tmp_path / "memories.db"

    async def fill():
        async with LongTermMemory(f"sqlite:///{path}") as memories:
            old = await memories.remember("Ada lives in London", owner="ada", metadata={"source": "letter"})
            new = await memories.update(old.id, "Ada lives in Paris", owner="ada")
            rain = await memories.remember("It rained", owner="ada", kind="episode")
            await memories.associate(rain.id, new.id, "during", owner="ada")
            bob = await memories.remember("Bob lives in Rome", owner="bob")
            await memories.remember("An agent called Ada", owner=Sender("ada", "agent"))
            return {each.text: each.id for each in (old, new, rain, bob)}

    return path, trio.run(fill)


def run(capsys, *texts):
    with pytest.raises(SystemExit) as ended:
        main([*map(str, texts)])
    out = capsys.readouterr()
    return ended.value.code, out.out, out.err


def test_memories_are_listed_by_owner(place, capsys):
    """The list has only current memories of one owner. Without an owner, the command lists the owners."""
    path, ids = place
    code, out, _ = run(capsys, "memory", "list", path, "--owner", "ada")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [ids["Ada lives in Paris"], ids["It rained"]]
    _, out, _ = run(capsys, "memory", "list", path, "--owner", "ada", "--kind", "episode")
    assert [line.split()[0] for line in out.splitlines()] == [ids["It rained"]]
    _, out, _ = run(capsys, "memory", "list", path)
    assert sorted(out.split()) == sorted("ada 2 bob 1 agent:ada 1".split())


def test_memory_is_shown_with_history_and_links(place, capsys):
    """The output has replaced memories, sources and linked memories. Another owner cannot read them."""
    path, ids = place
    _, out, _ = run(capsys, "memory", "show", path, ids["Ada lives in Paris"], "--owner", "ada")
    assert out.index("Ada lives in London") < out.index("Ada lives in Paris")
    assert "source: letter" in out
    assert f"<- during {ids['It rained']}" in out
    code, out, err = run(capsys, "memory", "show", path, ids["Ada lives in Paris"], "--owner", "bob")
    assert code != 0
    assert out == ""
    assert "does not exist" in err


def test_memory_is_corrected(place, capsys):
    """The new text is current from then on."""
    path, ids = place
    code, *_ = run(
        capsys, "memory", "correct", path, ids["Ada lives in Paris"], "Ada lives in Nice", "--owner", "ada"
    )
    assert code == 0
    _, out, _ = run(capsys, "memory", "list", path, "--owner", "ada")
    assert "Nice" in out
    assert "Paris" not in out


def test_memories_are_exported_with_their_history(place, capsys):
    """Each line is a memory of this owner as JSON."""
    path, _ = place
    _, out, _ = run(capsys, "memory", "export", path, "--owner", "ada")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in rows] == ["Ada lives in London", "Ada lives in Paris", "It rained"]
    assert rows[2]["links"][0]["relation"] == "during"
    assert {row["owner"]["kind"] for row in rows} == {"user"}


def test_memories_are_forgotten_by_id(place, capsys):
    """Only memories of the owner are deleted. The exit code states whether all ids exist."""
    path, ids = place
    code, out, _ = run(capsys, "memory", "forget", path, ids["It rained"], "--owner", "ada")
    assert (code, out) == (0, "forgotten: 1 of 1\n")
    code, out, _ = run(capsys, "memory", "forget", path, ids["Bob lives in Rome"], "--owner", "ada")
    assert (code, out) == (1, "forgotten: 0 of 1\n")
    for wrong in ((), (ids["Bob lives in Rome"], "--all"), ("--journal", "x.db")):
        code, _, err = run(capsys, "memory", "forget", path, *wrong, "--owner", "ada")
        assert code != 0
        assert "pass either ids" in err


def test_owner_is_erased_from_memories_and_journal(place, tmp_path, capsys):
    """Memories and sessions of this owner are erased, also delegated sessions of other agents. Data of other owners stays."""
    path, _ = place
    journal = tmp_path / "journal.db"

    async def talk():
        helper = BareAgent("helper", llm=ScriptedLLM(lambda _: "helped"))
        clerk = BareAgent("clerk", llm=ScriptedLLM(lambda _: "hello"))
        async with open_runtime(journal=f"sqlite:///{journal}") as runtime:
            for agent in (helper, clerk):
                await runtime.start(agent)
            for owner in ("ada", "bob", Sender("ada", "agent")):
                session = await clerk.create_session(owner)
                below = await helper.create_session(Sender("clerk", "agent"), parent=session)
                for each in (session, below):
                    await each.chat("hi")
                    await each.wait_idle()

    async def owners():
        async with open_journal(f"sqlite:///{journal}", read_only=True) as opened:
            return sorted((each.owner, each.agent) for each in await opened.sessions())

    trio.run(talk)
    code, out, _ = run(capsys, "memory", "forget", path, "--owner", "ada", "--all", "--journal", journal)
    assert (code, out) == (0, "sessions erased: 2\nmemories erased: 3\n")
    assert trio.run(owners) == [("ada", "clerk"), ("bob", "clerk"), ("clerk", "helper"), ("clerk", "helper")]
    _, out, _ = run(capsys, "memory", "list", path)
    assert sorted(out.split()) == sorted("bob 1 agent:ada 1".split())


def test_missing_memory_file_is_reported(tmp_path, capsys):
    """The error names the file, and no file is created."""
    code, _, err = run(capsys, "memory", "list", tmp_path / "none.db")
    assert code != 0
    assert "no such file" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("journal", "is a journal"),
        ("killed", "is a journal"),
        ("other", "database of another program"),
        ("text", "damaged, or not a SQLite file"),
    ],
)
def test_wrong_file_type_is_named_and_unchanged(tmp_path, capsys, kind, complaint):
    """Cases: a journal, a journal of a dead process, a database of another program, and other files. No file changes."""
    path, log = tmp_path / "file.db", tmp_path / "file.db-wal"
    if kind == "journal":
        trio.run(begin_journal, path)
    elif kind == "killed":
        trio.run(copy_begun_journal, path, log)
    elif kind == "other":
        with closing(apsw.Connection(str(path))) as db:
            db.execute("CREATE TABLE bookmarks (url)")
    else:
        path.write_text("Answer in one or two sentences.\n" * 200)
    before = path.read_bytes(), log.exists() and log.read_bytes()
    assert bool(before[1]) == (kind == "killed")
    code, _, err = run(capsys, "memory", "list", path)
    assert code
    assert complaint in err
    assert (path.read_bytes(), log.exists() and log.read_bytes()) == before


async def begin_journal(path):
    async with open_runtime(journal=f"sqlite:///{path}"):
        pass


async def copy_begun_journal(path, log):
    """Copy the files of a running journal, as after a kill: a file and a log with later data."""
    live = path.with_name("live.db")
    async with open_runtime(journal=f"sqlite:///{live}") as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["hello"])))
        await agent.run("hi")
        shutil.copy(live, path)
        shutil.copy(f"{live}-wal", log)
