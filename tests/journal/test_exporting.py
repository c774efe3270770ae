"""Export and import of sessions by files."""

import stat
import zlib

import msgpack
import pytest

from actgent import BareAgent, ConfigurationError, JournalDamaged, ScriptedLLM, open_runtime
from actgent.errors import WireError
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.session_export_and_fork import (
    is_export,
    load_sessions,
    read_sessions,
    save_sessions,
    write_sessions,
)


async def talked(*session_ids):
    """Return sessions of an agent with one message each."""
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"], repeat=True)))
        for session_id in session_ids:
            session = await agent.create_session("ada", "hello \ud800", session_id=session_id)
            await session.wait_idle()
        return await read_sessions(journal)


async def test_exported_sessions_can_be_imported(tmp_path):
    """The agent resumes the sessions in another journal."""
    sessions = await talked("one", "two")
    save_sessions(tmp_path / "x", sessions)
    assert load_sessions(tmp_path / "x") == sessions
    assert is_export(tmp_path / "x")
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600
    async with MemoryJournal().running() as journal:
        await journal.acquire()
        await write_sessions(journal, load_sessions(tmp_path / "x"))
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["again"])))
            session = await agent.open_session("two")
            await session.chat("and?")
            await session.wait_idle()
            assert [message.text for message in session.history] == ["hello \ud800", "hi", "and?", "again"]


async def test_export_and_import_overwrite_nothing(tmp_path):
    """An existing file and an existing session are unchanged."""
    sessions = await talked("one", "two")
    save_sessions(tmp_path / "x", sessions)
    with pytest.raises(ConfigurationError, match="exists"):
        save_sessions(tmp_path / "x", sessions)
    async with MemoryJournal().running() as journal:
        await journal.acquire()
        await write_sessions(journal, sessions[1:])
        with pytest.raises(ConfigurationError, match="two"):
            await write_sessions(journal, sessions)
        assert [summary.session_id for summary in await journal.sessions()] == ["two"]


async def test_damaged_export_is_rejected(tmp_path):
    """Each altered, missing or added byte after the first line raises an error."""
    save_sessions(tmp_path / "x", await talked("one"))
    data = (tmp_path / "x").read_bytes()
    damaged = [data[:-1], data + b"\x00", data[:60]]
    damaged += [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(19, len(data))]
    for number, image in enumerate(damaged):
        (tmp_path / "y").write_bytes(image)
        with pytest.raises(JournalDamaged):
            pytest.fail(f"image {number} gave {load_sessions(tmp_path / 'y')}")
    (tmp_path / "y").write_bytes(b"something else")
    with pytest.raises(ConfigurationError, match="lacks the header"):
        load_sessions(tmp_path / "y")


@pytest.mark.parametrize("levels", [500, 20_000])
def test_file_with_nested_extensions_raises_an_error(tmp_path, levels):
    """Such a file with a correct checksum once ended the interpreter with SIGSEGV."""
    value = b"\xc0"
    for _ in range(levels):
        value = b"\xc9" + (len(value) + 1).to_bytes(4, "big") + b"\x02" + b"\x91" + value
    body = b"\x91" + value
    checksum = zlib.crc32(body, zlib.crc32(b"s\0a\0"))
    path = tmp_path / "x.session"
    path.write_bytes(b"actgent-sessions 1\n" + msgpack.packb([["s", "a", body, checksum]]))
    with pytest.raises(WireError, match="64 nested tuples"):
        load_sessions(path)
