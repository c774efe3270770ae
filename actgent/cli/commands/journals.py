"""Commands about what was kept: `inspect`, `replay`, `journal`."""

from cyclopts import App

from actgent.cli.terminal import Terminal
from actgent.errors import ConfigurationError

from .base import Count, Flag, app, run_command


@app.command
def inspect(
    journal: str,
    session: str | None = None,
    /,
    *,
    agent: str | None = None,
    steps: Flag = False,
    full: Flag = False,
    context: Flag = False,
    step: Count | None = None,
    code: str | None = None,
) -> int:
    """List the sessions of a journal, or read the transcript of one. No model is asked, and no tool is run.

    Args:
        journal: The file of a journal, or postgres://HOST/DATABASE; agents may be using it, nothing is written.
        session: The session to read.
        agent: List the sessions of this agent alone; with a session, whose it is, where several have one of this id.
        steps: Every record of the session by its number, and not only what was said.
        full: Whole texts.
        context: How long each request of the session was that a model answered, and what was cut to make it fit.
        step: With --context and --code, show what the model was shown for the answer in this record, and why.
        code: The agent's folder, or a Python file that defines it, or FILE.py:NAME: its code puts the request together.
    """
    if context or step is not None or code is not None:
        from actgent.cli.journals.context import check_context_options, list_requests, show  # noqa: PLC0415 - the SDKs take two seconds

        check_context_options(session, step, code)
        known = session or ""
        if step is None or code is None:
            return run_command(lambda terminal, _: list_requests(journal, known, terminal, agent=agent))
        return run_command(
            lambda terminal, _: show(journal, known, step, terminal, agent=agent, code=code, full=full)
        )
    from actgent.cli.journals.journal import inspect as look  # noqa: PLC0415

    return run_command(
        lambda terminal, _: look(journal, terminal, session=session, agent=agent, steps=steps, full=full)
    )


@app.command
def replay(
    journal: str,
    session: str,
    /,
    *,
    of: str | None = None,
    to: Count | None = None,
    agent: str | None = None,
    fork: str | None = None,
    message: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    system: str | None = None,
) -> int:
    """Make a session again as it was after any of its steps, with model and tools off.

    The digest is the same whenever the same history and state come out. With --agent its code is run on the recorded
    answers and tool results, and the first difference is named. With --fork a copy of the session goes on from the
    step, this time with model and tools; the recorded one stays as it is.

    Args:
        journal: The file of a journal, or postgres://HOST/DATABASE; agents may be using it, unless --fork adds to it.
        session: The session.
        of: The name of its agent, where several have a session of this id.
        to: The number of the last record to take; `actgent inspect --steps` shows them.
        agent: An agent's folder, or a Python file that defines an agent, or FILE.py:NAME.
        fork: The id of the copy that goes on.
        message: With --fork, what to say next; without it only an unfinished turn goes on.
        model: With --fork, the model to ask, for a folder or a plain agent.
        base_url: Where its API stands.
        system: With --fork and no --agent, the whole system prompt.
    """
    if fork is None and any(given is not None for given in (message, model, base_url, system)):
        raise ConfigurationError(
            "--message, --model, --base-url and --system go with --fork: a replay asks no model"
        )
    if agent is None and fork is None:
        from actgent.cli.journals.journal import replay as rebuild  # noqa: PLC0415

        return run_command(lambda terminal, _: rebuild(journal, session, terminal, of=of, to=to))
    from actgent.cli.chat import ChatOptions  # noqa: PLC0415 - the SDKs take two seconds
    from actgent.cli.journals.replay import ReplayOptions, compare, fork as go_on  # noqa: PLC0415

    who = ChatOptions(file=agent, model=model, base_url=base_url, system=system, message=message)
    options = ReplayOptions(journal=journal, session=session, of=of, to=to, fork=fork, agent=who)
    if fork is None:
        return run_command(lambda terminal, _: compare(options, terminal))
    return run_command(lambda terminal, _: go_on(options, terminal))


journals = App(name="journal", help="Look after a journal: check, salvage, backup, export, import.")
app.command(journals)


@journals.command(name="check")
def check_journal(journal: str, /) -> int:
    """Name all that is damaged in a journal's file; nothing is changed. 1 if something is.

    Args:
        journal: The file; no agent may be using it.
    """
    from actgent.cli.journals.journal import check as look  # noqa: PLC0415

    return look(journal, Terminal())


@journals.command
def salvage(journal: str, new: str, /) -> int:
    """Carry each session, up to its first damaged record, into a new file. 1 if something was lost.

    Args:
        journal: The damaged file; it is not changed.
        new: The file to make.
    """
    from actgent.cli.journals.journal import salvage as carry_over  # noqa: PLC0415

    return carry_over(journal, new, Terminal())


@journals.command
def backup(journal: str, file: str, /) -> int:
    """Copy a journal, which an agent may be using, to a new file, and read the copy from end to end.

    To restore it: end the process, remove the journal's file with what stands beside it (-wal, -lock), and put the copy
    in its place.

    Args:
        journal: The file of a journal. One in PostgreSQL is copied by pg_dump.
        file: The new file; there must be none.
    """
    from actgent.cli.journals.journal import backup as copy  # noqa: PLC0415

    return copy(journal, file, Terminal())


@journals.command
def export(journal: str, file: str, /, *, agent: str | None = None, session: str | None = None) -> int:
    """Write sessions into a file, for another journal or for a test. It holds all that was said.

    Args:
        journal: The file of a journal, or postgres://HOST/DATABASE; agents may be using it.
        file: The file to make.
        agent: The sessions of this agent alone.
        session: This session alone.
    """
    from actgent.cli.journals.journal import export as write  # noqa: PLC0415

    return run_command(lambda terminal, _: write(journal, file, terminal, agent=agent, session=session))


@journals.command(name="import")
def import_sessions(journal: str, file: str, /, *, new_ids: bool = False) -> int:
    """Add the sessions of an exported file to a journal. What is unfinished in them goes on when their agent starts.

    Args:
        journal: The file of a journal, made where there is none, or postgres://HOST/DATABASE.
        file: The exported file.
        new_ids: Give the sessions new ids, so that they can stand beside those that they were exported from.
    """
    from actgent.cli.journals.journal import import_ as add  # noqa: PLC0415

    return run_command(lambda terminal, _: add(journal, file, terminal, new_ids=new_ids))
