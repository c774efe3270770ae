"""Recorded sessions as tests: the model and the tools answer from the journal, and the agent's code runs.

```python
async def test_the_refund_of_monday():
    await assert_replays(make_agent(), "tests/refund.sessions")
```
"""

from pathlib import Path

from actgent.agents.agent import Agent
from actgent.agents.session_replay import Difference, Recording
from actgent.errors import ConfigurationError
from actgent.journal.journal_interface import Journal
from actgent.journal.journal_url import find_journal, open_journal
from actgent.journal.session_export_and_fork import ExportedSession, is_export, load_sessions, read_sessions

__all__ = ["Difference", "Recording", "assert_replays", "load_recording"]


async def load_recording(
    source: Journal | str | Path, session_id: str | None = None, *, agent: str | None = None
) -> Recording:
    """Load the recording of a session from an open journal, a journal's URL or file, or a file of `actgent journal export`.

    Args:
        source: The journal or file.
        session_id: Id of the session; None if there is only one.
        agent: Name of the agent, if several agents have a session with this id.

    Raises:
        ConfigurationError: The file or session does not exist, or there are several sessions and no `session_id`.
    """
    found = [s for s in await _sessions(source, session_id) if session_id in (None, s.session_id)]
    if len(found) > 1:
        found = [session for session in found if session.agent == agent] or found
    if len(found) != 1:
        known = ", ".join(session.session_id for session in found[:20]) or "none of this id"
        raise ConfigurationError(f"{source} has several sessions: choose one with session_id= ({known})")
    return Recording(found[0].session_id, found[0].agent, found[0].records)


async def assert_replays(
    agent: Agent,
    source: "Recording | Journal | str | Path",
    session_id: str | None = None,
    *,
    run_tools: bool = False,
    prompts: bool = True,
) -> None:
    """Replay a recorded session with an agent, and fail if the agent's code behaves differently than recorded.

    Args:
        agent: Agent whose code is replayed.
        source: Recording, or the journal of the recorded session.
        session_id: Id of the session; None if the journal has only one session.
        run_tools: True runs the tools; False returns the recorded results.
        prompts: False ignores changes of the system prompt and of the tools.

    Raises:
        AssertionError: The behaviour differs; the message describes the first difference.
    """
    recording = (
        source
        if isinstance(source, Recording)
        else await load_recording(source, session_id, agent=agent.name)
    )
    difference = await recording.compare(agent, run_tools=run_tools, prompts=prompts)
    if difference is not None:
        raise AssertionError(f"session {recording.session_id} differs from its recording: {difference}")


async def _sessions(source: Journal | str | Path, session_id: str | None) -> list[ExportedSession]:
    if isinstance(source, Journal):
        return await read_sessions(source, session_id=session_id)
    if is_export(Path(source)):
        return load_sessions(Path(source))
    async with open_journal(find_journal(str(source))) as journal:
        await journal.acquire()
        return await read_sessions(journal, session_id=session_id)
