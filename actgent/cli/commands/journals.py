"""Commands for stored sessions: `inspect`, `replay`, `journal`."""

import attrs
from cyclopts import App

from actgent.cli.command_options import Count, Flag, ReplayOptions
from actgent.cli.terminal_io import Terminal
from actgent.errors import ConfigurationError

from .command_app import SESSIONS, app, run_command


@app.command(group=SESSIONS)
def inspect(
    journal: str,
    session: str | None = None,
    /,
    *,
    agent: str | None = None,
    steps: Flag = False,
    full: Flag = False,
    labels: Flag = False,
    context: Flag = False,
    step: Count | None = None,
    code: str | None = None,
) -> int:
    """List the sessions of a journal, or print the transcript of one. No model is called, and no tool runs.

    Args:
        journal: Journal to read: a file, or postgres://HOST/DATABASE. Agents may be using it.
        session: Id of the session to print. Default: list all sessions.
        agent: List only sessions of this agent; with a session, the agent's name if several agents have a session
            with this id.
        steps: Print every record with its number, not only messages.
        full: Print complete texts.
        labels: Also print the untrusted sources of the session after each record that changes them.
        context: List the model requests of the session: their length in tokens, and which messages were left out to
            fit.
        step: With --context and --code, the record number of an answer: print the request that led to it.
        code: With --step, the agent whose code rebuilds the request: agent folder, Python file, or FILE.py:NAME.
    """
    if context or step is not None or code is not None:
        from actgent.cli.journals.recorded_model_requests import check_context_options, list_requests, show  # noqa: PLC0415 - the SDKs take two seconds

        check_context_options(session, step, code)
        session_id = session or ""
        if step is None or code is None:
            return run_command(lambda terminal, _: list_requests(journal, session_id, terminal, agent=agent))
        return run_command(
            lambda terminal, _: show(journal, session_id, step, terminal, agent=agent, code=code, full=full)
        )

    from actgent.cli.journals.journal_commands import inspect as run_inspect  # noqa: PLC0415

    return run_command(
        lambda terminal, _: run_inspect(
            journal, terminal, session=session, agent=agent, steps=steps, full=full, labels=labels
        )
    )


@app.command(group=SESSIONS)
def replay(journal: str, session: str, /, *, options: ReplayOptions | None = None) -> int:
    """Rebuild a session as it was after any record, without calling models or tools.

    The digest identifies history and state: equal digests mean equal content. With --code, an agent's code runs on the
    recorded answers and tool results, and the first difference is printed. With --fork, a copy of the session continues
    from the record with real models and tools; the original session is unchanged.

    Args:
        journal: Journal to read: a file, or postgres://HOST/DATABASE. Agents may be using it, except with --fork.
        session: Id of the session.
        options: Records to replay, and the agent that runs on them or continues a copy.
    """
    given = attrs.evolve(options or ReplayOptions(), journal=journal, session=session)
    for_forks = (given.message, given.model, given.base_url, given.system)
    if given.fork is None and any(each is not None for each in for_forks):
        raise ConfigurationError(
            "--message, --model, --base-url and --system require --fork: a replay calls no model"
        )
    if given.code is None and given.fork is None:
        from actgent.cli.journals.journal_commands import replay as rebuild  # noqa: PLC0415

        return run_command(
            lambda terminal, _: rebuild(journal, session, terminal, agent=given.agent, to=given.to)
        )
    from actgent.cli.journals.replay_command import compare, fork as run_fork  # noqa: PLC0415 - the SDKs take two seconds

    run = compare if given.fork is None else run_fork
    return run_command(lambda terminal, _: run(given, terminal))


journals = App(
    name="journal",
    help="Maintain a journal: check, history, audit, search, recover, backup, export, import.",
    group=SESSIONS,
)
app.command(journals)


@journals.command(name="check")
def check_journal(journal: str, /) -> int:
    """Check a journal file and print all damaged records. Nothing is changed. The exit code is 1 if the file is damaged.

    Args:
        journal: Journal file; no agent may be using it.
    """
    from actgent.cli.journals.journal_commands import check as run_check  # noqa: PLC0415

    return run_check(journal, Terminal())


@journals.command(name="history")
def check_histories(journal: str, /, *, log: str | None = None) -> int:
    """Check that the records of each session, and the log of a client, do not contradict each other.

    Each accepted message ends at most once. Each tool call has one result before the next answer. If a call of a client ended
    before another call began, their messages are in this order. The exit code is 1 if there is a contradiction.

    Args:
        journal: Journal to read: a file, or postgres://HOST/DATABASE. Agents may be using it.
        log: File with the completed calls of a client, as JSON lines: {"session": ID, "message": ID, "began": TIME,
            "ended": TIME}. Optional members: "reply", the returned reply; "agent", if several agents have a session
            with the id.
    """
    from actgent.cli.journals.journal_commands import check_histories as run_check  # noqa: PLC0415

    return run_command(lambda terminal, _: run_check(journal, terminal, log=log))


@journals.command(name="audit")
def audit_calls(journal: str, /, *, code: str | None = None) -> int:
    """Find tool calls that depended on untrusted text and ran without a recorded approval.

    The exit code is 1 if such calls are found. No model is called, and no tool runs.

    Args:
        journal: Journal to read: a file, or postgres://HOST/DATABASE. Agents may be using it.
        code: Agents whose tools declare effects and sinks: agent folder, Python file, or FILE.py:NAME. Default: each
            call counts whose tool has an effect, as the journal has no declarations.
    """
    from actgent.cli.journals.journal_commands import audit  # noqa: PLC0415 - the SDKs take two seconds

    return run_command(lambda terminal, _: audit(journal, terminal, code=code))


@journals.command(name="search")
def search_messages(
    journal: str, words: str, /, *, agent: str | None = None, owner: str | None = None, limit: Count = 20
) -> int:
    """Find messages that contain the given words, the newest first. The exit code is 1 if no message is found.

    The journal needs an index, which agents with `open_runtime(index=True)` or `serve --index` keep.

    Args:
        journal: Journal to read: a file, or postgres://HOST/DATABASE. Agents may be using it.
        words: Words that a message must contain. "Quotes" hold a phrase, * ends a prefix, - excludes a word.
        agent: Name of the session's agent. Default: all agents.
        owner: Name of the session's owner. Default: all owners.
        limit: Maximum number of messages.
    """
    from actgent.cli.journals.journal_commands import search  # noqa: PLC0415
    from actgent.session_index import SearchFilter  # noqa: PLC0415

    wanted = SearchFilter(agent=agent, owner=owner)
    return run_command(
        lambda terminal, _: search(journal, words, terminal, search_filter=wanted, limit=limit)
    )


@journals.command(name="recover")
def recover_journal(journal: str, new: str, /) -> int:
    """Copy each session, up to its first damaged record, into a new file. The exit code is 1 if records were lost.

    Args:
        journal: Damaged journal file; it is not changed.
        new: Path of the new file.
    """
    from actgent.cli.journals.journal_commands import recover_journal as run_recover  # noqa: PLC0415

    return run_recover(journal, new, Terminal())


@journals.command
def backup(journal: str, file: str, /) -> int:
    """Copy a journal to a new file, and verify the copy. Agents may be using the journal.

    To restore: stop the process, remove the journal file and its companions (-wal, -lock), and move the copy to its
    path.

    Args:
        journal: Journal file. Use pg_dump for a journal in PostgreSQL.
        file: Path of the new file; it must not exist.
    """
    from actgent.cli.journals.journal_commands import backup as copy  # noqa: PLC0415

    return copy(journal, file, Terminal())


@journals.command
def export(journal: str, file: str, /, *, agent: str | None = None, session: str | None = None) -> int:
    """Write sessions to a file, for another journal or for a test. The file contains all message texts.

    Args:
        journal: Journal to read: a file, or postgres://HOST/DATABASE. Agents may be using it.
        file: Path of the new file.
        agent: Export only sessions of this agent.
        session: Export only this session.
    """
    from actgent.cli.journals.journal_commands import export as write  # noqa: PLC0415

    return run_command(lambda terminal, _: write(journal, file, terminal, agent=agent, session=session))


@journals.command(name="import")
def import_sessions(journal: str, file: str, /, *, new_ids: bool = False) -> int:
    """Add the sessions of an exported file to a journal. Unfinished turns resume when the agent starts.

    Args:
        journal: Journal file, created if missing, or postgres://HOST/DATABASE.
        file: The exported file.
        new_ids: Give the sessions new ids, so that the journal can also hold the originals.
    """
    from actgent.cli.journals.journal_commands import import_ as add  # noqa: PLC0415

    return run_command(lambda terminal, _: add(journal, file, terminal, new_ids=new_ids))
