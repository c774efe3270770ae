"""`actgent journal history`: check that recorded histories, and the log of a client, do not contradict each other."""

from collections import defaultdict

from actgent.cli.terminal_io import Terminal, one_line
from actgent.errors import ConfigurationError, JournalDamaged, WireError
from actgent.errors.text_escaping import counted
from actgent.journal.session_list_queries import SessionFilter
from actgent.testing.journal_history_checks import ClientCall, find_contradictions, load_client_calls

from .journal_commands import open_read_only


async def check_histories(location: str, terminal: Terminal, *, log: str | None) -> int:
    """Print each contradiction in the records of a journal. Return the exit code: 1 if contradictions were found, else 0.

    Args:
        location: Journal file or URL.
        terminal: Output of the command.
        log: Path of a log file of a client's calls, to compare with the records; None checks only the records.

    Raises:
        ConfigurationError: The log is not readable, or no call of the log belongs to a session of the journal.
    """
    calls = defaultdict[str, list[ClientCall]](list)
    for call in [] if log is None else load_client_calls(log):
        calls[call.session_id].append(call)
    sessions = problems = 0
    async with open_read_only(location) as journal:
        after, seen = None, set[str]()
        while page := await journal.page(SessionFilter(), after=after, limit=100):
            after = page[-1].cursor
            for summary in page:
                sessions += 1
                seen.add(summary.session_id)
                try:
                    records = await journal.load(summary.session_id, agent=summary.agent)
                except (JournalDamaged, WireError) as error:
                    found = [str(error)]
                else:
                    own = [
                        each
                        for each in calls.get(summary.session_id, ())
                        if each.agent in ("", summary.agent)
                    ]
                    found = list(find_contradictions(records, own))
                problems += len(found)
                for each in found:
                    terminal.complain(
                        f"{one_line(summary.agent, 40)} {one_line(summary.session_id, 60)}: {each}"
                    )
    if log is not None and not calls.keys() & seen:
        raise ConfigurationError(
            f"no call in the log {log} belongs to a session of the journal: check that the log and the journal belong together"
        )
    for session_id in sorted(calls.keys() - seen):
        problems += 1
        terminal.complain(
            f"the journal has no session {one_line(session_id, 60)}, but a client has called it"
        )
    count = sum(map(len, calls.values()))
    terminal.line(
        f"{counted(sessions, 'session')}, {counted(count, 'call')} of clients: {counted(problems, 'contradiction')}"
    )
    return 1 if problems else 0
