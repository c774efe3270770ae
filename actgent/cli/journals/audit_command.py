"""`actgent journal audit`: find recorded calls that depended on untrusted text and ran without an approval."""

from actgent.agents.unapproved_call_audit import UnapprovedCall, audit_journal
from actgent.cli.agent_folders import agents_at
from actgent.cli.terminal_io import Terminal, one_line
from actgent.errors.text_escaping import counted

from .journal_commands import format_part, open_read_only


async def audit(location: str, terminal: Terminal, *, code: str | None) -> int:
    """Print each recorded tool call that depended on untrusted text and ran without approval.

    Return the exit code: 1 if there are such calls, else 0.

    Args:
        location: Journal file or URL.
        terminal: Output of the command.
        code: Agent folder or Python file with the agents whose tools declare sinks; None uses only the journal.
    """
    agents = [] if code is None else agents_at(code, needs_model=False)
    sessions = calls = 0
    async with open_read_only(location) as journal:
        async for _, found in audit_journal(journal, agents):
            sessions += 1
            calls += len(found)
            for each in found:
                terminal.line(_describe(each))
    terminal.line(
        f"{counted(sessions, 'session')}: {counted(calls, 'call')} with untrusted sinks ran without an approval"
    )
    return 1 if calls else 0


def _describe(found: UnapprovedCall) -> str:
    place = f"{one_line(found.agent, 40)} {one_line(found.session_id)} record {found.record}"
    names = one_line(", ".join(found.labels) or "the call")
    shown = f"{place}: {one_line(format_part(found.call), 200)}"
    if not found.label.is_trusted:
        sources = ", ".join(sorted(found.label.sources))
        shown = f"{shown}: {names} may come from {one_line(sources)}"
    if found.label.readers is not None:
        shown = f"{shown}: only {one_line(found.label.reader_names)} may read data that {names} may send"
    return shown
