"""A crash at every write of the loops steps, plan and goal: the next start reaches the same answer and repeats nothing."""

import importlib
import itertools
import json
import sys
from pathlib import Path

import attrs
import pytest
import trio

from actgent import open_runtime
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.sessions.restore.session_loader import rebuild
from actgent.testing import CrashingJournal

HERE = str(Path(__file__).parent)
if HERE not in sys.path:  # beside the scripts that import each other
    sys.path.insert(0, HERE)
errands = importlib.import_module("errands")


@attrs.frozen
class Run:
    """The result of a session, without ids and times."""

    replies: list
    texts: list
    state: object
    unknown: int
    """Results whose outcome is not known."""


async def live(journal, work):
    async with open_runtime(journal=journal) as runtime:
        await work.live(runtime)


async def die(inner, work, writes):
    """Run a process that ends at its n-th write. Return whether it reached that write."""
    dying = CrashingJournal(inner, writes)

    async def run(task_status):
        async with open_runtime(journal=dying) as runtime:
            await work.live(runtime)
        task_status.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, nursery.cancel_scope)
        await dying.died.wait()
        work.is_dead = True
        nursery.cancel_scope.cancel()
    work.is_dead = False
    return dying.is_dead


async def outcome(journal, work, session_id):
    """Return the result according to the journal and to the handlers of all processes."""
    rebuilt = await rebuild(await journal.load(session_id))
    places = {message.id: index for index, message in enumerate(rebuilt.history)}
    received = {line[2]: line[3:] for line in work.heard.read() if line[1] == session_id}
    results = [result for message in rebuilt.history for result in message.tool_results]
    return Run(
        replies=list(received.values()),
        texts=[message.text or [c.arguments for c in message.tool_calls] for message in rebuilt.history],
        state=_without_ids(rebuilt.state, places),
        unknown=sum(result.status == "outcome_unknown" for result in results),
    )


def _without_ids(state, places):
    """Return records with ids replaced by their positions and without times."""
    text = repr(dict(state))
    for message_id, place in places.items():
        text = text.replace(message_id, f"message {place}")
    return errands.re.sub(r'(_at\\*": ?)[0-9.e+]+', r"\1then", text)


def effects_of(work, name):
    return [line[2] for line in work.effects.read() if line[0] == name]


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
@pytest.mark.parametrize("loop", list(errands.LOOPS))
async def test_a_crash_at_every_write_ends_in_the_same_answer(loop, native, tmp_path, autojump_clock):
    """Replies and state are equal, no `once` tool runs twice, and no recorded result or answer is computed again."""

    def begin(name):
        return errands.Errands(tmp_path, name=name, loops=(loop,), native=native)

    session_id = f"{loop}-0"
    async with MemoryJournal().running() as journal:
        await live(journal, whole := begin("whole"))
        expected = await outcome(journal, whole, session_id)
    assert len(expected.replies) == len(errands.MESSAGES)
    crashes = 0
    for writes in itertools.count(1):
        work = begin(f"crash-{writes}")
        async with MemoryJournal().running() as journal:
            if not await die(journal, work, writes):
                break
            crashes += 1
            at_death = await journal.load(session_id)
            effects = work.effects.read()
            asked = len(work.asked.read())
            await live(journal, work)
            found = await outcome(journal, work, session_id)
            answers = errands.answers_in(await journal.load(session_id))
        assert work.wrong.read() == [], writes
        assert found.replies == expected.replies, writes
        assert sorted(effects_of(work, "book")) == ["a", "b", "c"], writes
        again = {line[3].split("/", 1)[1] for line in work.effects.read()[len(effects) :]}
        assert not again & errands.results_in(at_death), writes
        assert len(work.asked.read()) - asked == answers - errands.answers_in(at_death), writes
        if not found.unknown:
            assert found.texts == expected.texts, writes
            assert found.state == expected.state, writes
    assert crashes > 25


def test_kills_end_in_the_same_answer(tmp_path, times, process_server):
    """Processes are killed by SIGKILL at random moments: each run reaches its answer and books once."""
    kills = times(12, 120)
    unknown = (_killed(tmp_path / str(seed), process_server, kills, seed) for seed in range(kills, kills + 5))
    assert any(unknown)  # the kills hit tools that ran, of which a slow machine may need more than one run


def _killed(folder, process_server, kills, seed):
    """Return the number of tools that the kills of one run interrupt. The run must reach its end."""
    folder.mkdir()
    command = [sys.executable, str(Path(HERE) / "errands.py"), f"sqlite:///{folder}/journal-", str(folder)]
    flags = ["--sessions", "3", "--kills", str(kills), "--seed", str(seed)]
    done = process_server.run([*command, *flags], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (done.stdout[:2000], done.stderr[-4000:])
    report = json.loads(done.stdout)
    assert (report["kills"], report["problems"]) == (kills, [])
    return report["unknown"]
