"""Mistakes around services, files, schedules and the command line: each has one error that names the cause and the remedy."""

import asyncio
import gc
import sys

import pytest

from actgent import (
    ActgentError,
    BareAgent,
    JournalDamaged,
    MCPServer,
    ScriptedLLM,
    open_portal,
    open_runtime,
)


@pytest.fixture
def told(caplog):
    """Return the log records of the package as strings."""
    return lambda: [each.getMessage() for each in caplog.records if each.name.startswith("actgent")]


def clerk(*said, **options) -> BareAgent:
    return BareAgent("clerk", llm=ScriptedLLM(list(said) or ["Yes."], repeat=not said), **options)


# --- sessions and portals -------------------------------------------------------------------------


async def test_a_repeated_message_id_with_another_content_is_logged(told):
    """The id makes a retry safe, so the second content is dropped. A retry with the same content logs nothing."""
    async with clerk() as agent:
        session = await agent.create_session("ada", session_id="s")
        for content in ("hi", "hi", "bye"):
            await agent.run(content, session=session, message_id="m1")
    (record,) = told()
    assert record == (
        "session s: a message repeats message_id='m1' with another content, and is dropped: "
        "use a new message_id for each message"
    )


def test_a_portal_that_cannot_open_logs_no_second_traceback(tmp_path):
    """The error is raised once. asyncio would log it again as a future whose exception was never read."""
    lost = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
        with pytest.raises(ActgentError):
            async with open_portal(journal=f"sqlite:///{tmp_path}/none/a.db"):
                pass
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert lost == []


async def test_a_journal_whose_file_alone_was_deleted(tmp_path):
    """The error names the other files of the journal, and says how to start a new journal."""
    path, log = tmp_path / "a.db", tmp_path / "a.db-wal"
    async with open_runtime(journal=f"sqlite:///{path}") as runtime:
        agent = await runtime.start(clerk())
        await agent.run("hi", session=await agent.create_session("ada"))
        left = log.read_bytes()
    path.unlink()
    log.write_bytes(left)
    with pytest.raises(JournalDamaged, match=r"a new journal by moving .*a\.db-wal and .*a\.db-lock away"):
        async with open_runtime(journal=f"sqlite:///{path}"):
            pass


async def test_the_log_has_the_last_line_of_a_server_that_fails(told, tmp_path):
    """A traceback names its error in the last line, so a long output is cut at its beginning."""
    script = tmp_path / "server.py"
    script.write_text(f"def {'long' * 40}():\n    import no_such_module\n{'long' * 40}()\n", encoding="utf-8")
    server = MCPServer(command=sys.executable, args=[str(script)], name="notes")
    async with clerk(tools=[server]):
        pass
    (record,) = told()
    assert "its process ended with 1; its last output: ..." in record
    assert "No module named 'no_such_module'; next attempt in 1 s" in record
