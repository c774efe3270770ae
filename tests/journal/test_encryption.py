"""Journals whose records are encrypted with keys from the environment."""

import base64
import contextlib

import apsw
import attrs
import pytest
import trio

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.cli.main import main
from actgent.errors import ConfigurationError, JournalError, JournalKeyError
from actgent.journal.group_commit.row_format import checksum_row
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_url import open_journal
from actgent.journal.sqlite import back_up, find_problems, recover_file

pytest.importorskip("cryptography", reason="the extra `encryption` is not installed")

VARIABLE = "ACTGENT_JOURNAL_KEYS"
SECRET = "a secret word"


def key(number):
    return base64.b64encode(bytes([number]) * 32).decode()


@pytest.fixture
def keys(monkeypatch):
    """Return a function `keys(k1=1, k2=2)` that sets these keys in the environment, or none."""

    def put(**numbers):
        monkeypatch.setenv(VARIABLE, ",".join(f"{name}:{key(number)}" for name, number in numbers.items()))

    put()
    return put


def agent_of():
    return BareAgent("clerk", llm=ScriptedLLM(["yes"], repeat=True))


async def say(url, text, session_id="s"):
    """Send a message in a new process. Return all messages of the session."""
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(agent_of())
        session = await agent.ensure_session("ada", session_id)
        await agent.run(text, session=session)
        return [message.text for message in session.history]


def bytes_of_all_files(path):
    return b"".join(each.read_bytes() for each in path.parent.iterdir() if each.is_file())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agents.db"


async def test_encrypted_records_are_readable_and_not_stored_in_plain(lasting_url, keys, tmp_path):
    """Every storage encrypts records, and they can be read after restarts."""
    keys(k1=1)
    assert await say(lasting_url, SECRET) == [SECRET, "yes"]
    assert await say(lasting_url, "more") == [SECRET, "yes", "more", "yes"]
    assert SECRET.encode() not in bytes_of_all_files(tmp_path / "any")
    keys()
    with pytest.raises(JournalKeyError, match="'k1'"):
        await say(lasting_url, "plain")


async def test_first_key_encrypts_and_all_keys_decrypt(path, keys):
    """A key is changed by a new one in front. The error names only the missing key."""
    url = f"sqlite:///{path}"
    await say(url, "plain", "p")
    keys(old=1)
    await say(url, "one")
    assert await say(url, "more", "p") == ["plain", "yes", "more", "yes"]
    keys(new=2, old=1)
    assert await say(url, "two") == ["one", "yes", "two", "yes"]
    await say(url, "three", "later")
    keys(new=2)
    assert await say(url, "four", "later") == ["three", "yes", "four", "yes"]
    with pytest.raises(JournalKeyError) as raised:
        await say(url, "five")
    assert raised.value.key_id == "old"
    assert not raised.value.is_there


async def test_wrong_key_with_a_known_id_is_an_error_without_the_key(path, keys):
    """The error and its copies name only the key id."""
    url = f"sqlite:///{path}"
    keys(k1=1)
    await say(url, SECRET)
    keys(k1=2)
    with pytest.raises(JournalKeyError) as raised:
        await say(url, "more")
    assert raised.value.is_there
    assert "'k1'" in str(raised.value)
    assert key(2) not in repr(raised.value)


async def test_moved_row_is_rejected(keys, make_writer):
    """The row was moved within the journal, and has a correct checksum."""
    keys(k1=1)
    async with MemoryJournal().running() as journal:
        epoch = await journal.acquire()
        for session_id in ("a", "b"):
            writer = make_writer(journal, epoch, session_id)
            await writer.open()
            await writer.turn()
        (series_a, rows), (_, others) = journal._stored_rows.items()
        row = attrs.evolve(rows[1], body=others[1].body)
        place = (series_a, row.first, row.count)
        checksum = checksum_row(*place, body=row.body, identity=journal.identity, at=row.at)
        rows[1] = attrs.evolve(row, checksum=checksum)
        with pytest.raises(JournalKeyError):
            await journal.load("a")
        assert await journal.load("b")


async def test_commands_work_with_the_keys(path, keys, tmp_path, capsys):
    """Check, backup, inspect, export and import use the keys; salvage writes all records with the first key."""
    url = f"sqlite:///{path}"
    keys(old=1)
    await say(url, SECRET)
    keys(new=2, old=1)
    await say(url, "more")
    assert find_problems(path) == []
    back_up(path, tmp_path / "backup.db")
    assert find_problems(tmp_path / "backup.db") == []
    assert recover_file(path, tmp_path / "new.db").losses == ()
    assert SECRET.encode() not in bytes_of_all_files(path)
    keys(new=2)
    assert await say(f"sqlite:///{tmp_path}/new.db", "last") == [SECRET, "yes", "more", "yes", "last", "yes"]
    assert [type(problem) for problem in find_problems(path)] == [JournalKeyError]
    with pytest.raises(JournalError):
        back_up(path, tmp_path / "other.db")
    with pytest.raises(JournalKeyError):
        recover_file(path, tmp_path / "third.db")


def test_export_is_plain_and_import_encrypts(path, keys, tmp_path, capsys):
    keys(k1=1)
    trio.run(say, f"sqlite:///{path}", SECRET)
    exported, other = str(tmp_path / "out.sessions"), str(tmp_path / "other.db")
    for arguments in (
        ["inspect", str(path), "s"],
        ["journal", "check", str(path)],
        ["journal", "export", str(path), exported],
        ["journal", "import", other, exported],
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0, arguments
    assert SECRET in capsys.readouterr().out
    (tmp_path / "out.sessions").unlink()
    assert SECRET.encode() not in bytes_of_all_files(path)
    keys()
    with pytest.raises(SystemExit) as ended:
        main(["inspect", other, "s"])
    assert ended.value.code == 1
    assert "'k1'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (key(1), "entry 1"),
        (f"k1:{key(1)},{key(2)}", "entry 2"),
        ("k1:%%%", "'k1'"),
        ("k1:c2hvcnQ=", "5 bytes"),
        (f"k1:{key(1)},k1:{key(2)}", "two keys"),
        ("k 1:x", "entry 1"),
    ],
)
async def test_invalid_keys_are_rejected_without_quoting_them(monkeypatch, text, says):
    """The error names the position or the id of the key."""
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ConfigurationError, match=says) as raised:
        async with open_journal("memory:"):
            pass
    assert key(1) not in str(raised.value)
    assert key(2) not in str(raised.value)


async def test_urlsafe_keys_are_accepted(monkeypatch):
    """Keys of `openssl rand -base64 32` and `secrets.token_urlsafe` are accepted, with and without padding."""
    raw = bytes([251, 255] * 16)
    monkeypatch.setenv(
        VARIABLE, f"a:{base64.b64encode(raw).decode()},b:{base64.urlsafe_b64encode(raw).decode()}"
    )
    async with open_journal("memory:") as journal:
        assert repr(journal._keys) == "Keys(a, b)"


async def test_torn_row_is_reported_as_damage(path, keys):
    """The checksum covers the stored bytes, so it is checked before the decryption."""
    keys(k1=1)
    await say(f"sqlite:///{path}", SECRET)
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE steps SET body = zeroblob(length(body)) WHERE rowid = 1")
    assert [type(problem).__name__ for problem in find_problems(path)] == ["JournalDamaged"]
