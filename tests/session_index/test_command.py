"""`actgent journal search`, in this process with real files."""

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.cli.main import main


@pytest.fixture
def journal(tmp_path):
    """The file of a journal with an index and two sessions."""
    path = tmp_path / "journal.db"

    async def fill():
        async with open_runtime(journal=f"sqlite:///{path}", index=True) as runtime:
            agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["no"], repeat=True)))
            for owner in ("ada", "bob"):
                session = await agent.create_session(
                    owner, f"the parcel of {owner}", session_id=f"of-{owner}"
                )
                await session.wait_idle()
            await runtime.index.wait_filled()

    trio.run(fill)
    return str(path)


def search(*arguments):
    """The exit code of the command."""
    with pytest.raises(SystemExit) as left:
        main(["journal", "search", *arguments])
    return left.value.code


def test_messages_are_printed_newest_first(journal, capsys):
    assert search(journal, "parcel") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "clerk of-bob bob user: the parcel of bob",
        "clerk of-ada ada user: the parcel of ada",
    ]


def test_search_command_applies_filters_and_limit(journal, capsys):
    assert search(journal, "parcel", "--owner", "ada") == 0
    assert "of-bob" not in capsys.readouterr().out
    assert search(journal, "parcel", "--limit", "1") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert search(journal, "nothinglikethis") == 1
    assert search(journal, "parcel", "--agent", "other") == 1


def test_error_of_a_journal_without_an_index_has_the_remedy(tmp_path, capsys):
    async def fill():
        async with open_runtime(journal=f"sqlite:///{tmp_path}/journal.db"):
            pass

    trio.run(fill)
    assert search(str(tmp_path / "journal.db"), "parcel") == 2
    assert "index=True" in capsys.readouterr().err
