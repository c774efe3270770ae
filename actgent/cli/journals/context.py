"""`actgent inspect --context`: what a model was shown at any step, and why."""

from collections.abc import Iterator, Sequence

from actgent.agents.upgrading import Recording, ShownRequest, show_request
from actgent.cli.chat import ChatOptions, open_agent
from actgent.cli.terminal import Terminal, one_line, printable
from actgent.errors import ConfigurationError
from actgent.errors.printable import counted
from actgent.journal.records import Fitting, Record, Said
from actgent.messages import Usage

from .journal import load, looked_at, part_in_words

LIMIT = 200
"""Characters of one part; `--full` shows all."""


async def list_requests(place: str, session: str, terminal: Terminal, *, agent: str | None) -> int:
    """List the answers of a session's models: how long their requests were, and what was cut."""
    async with looked_at(place) as journal:
        records = await load(journal, session, agent)
    for step, record in _answers(records):
        terminal.line(f"{step:>5}  {one_line(record.model or 'model', 60)}: {_told(record.usage)}")
        if record.fitting is not None:
            terminal.line(f"       {_why_cut(record.fitting)}", style="dim")
    return 0


def _answers(records: Sequence[Record]) -> Iterator[tuple[int, Said]]:
    return ((step, each) for step, each in enumerate(records, 1) if isinstance(each, Said) and each.stop)


def _told(usage: Usage) -> str:
    if not usage.input_tokens:
        return "the provider did not say how long the request was"
    cached = f", {usage.cached_tokens:,} of them cached" if usage.cached_tokens else ""
    return f"{counted(usage.input_tokens, 'token')} shown{cached}, {usage.output_tokens:,} answered"


def _why_cut(fitting: Fitting) -> str:
    done = []
    if fitting.shares:
        kept = " and then ".join(f"{share:.0%}" for share in fitting.shares)
        done.append(f"older messages were left out ({kept} of what was shown stayed)")
    if fitting.shortened:
        done.append(f"long results were shortened to {fitting.shortened:,} characters")
    return f"cut: up to {fitting.tokens:,} tokens would not fit into {fitting.room:,}, so {' and '.join(done) or 'nothing'}"


async def show(
    place: str, session: str, step: int, terminal: Terminal, *, agent: str | None, code: str, full: bool
) -> int:
    """Show what a model was shown for the answer in one record, as the agent's code puts it together."""
    async with looked_at(place) as journal:
        records = await load(journal, session, agent)
    async with open_agent(ChatOptions(file=code), is_asked=False) as found:
        shown = await show_request(Recording(session, found.name, records), found, step)
    for line in _reasons(shown):
        terminal.line(line, style="dim")
    for line in _conversation(shown, LIMIT if not full else None):
        terminal.line(line)
    return 0


def _reasons(shown: ShownRequest) -> Iterator[str]:
    chat, record = shown.chat, shown.record
    yield f"memory    {one_line(shown.memory, LIMIT)}"
    yield f"messages  {len(chat.messages)} shown, of a conversation of {shown.messages}"
    told = record.usage.input_tokens
    apart = f", {shown.estimate / told - 1:+.0%}" if told else ""
    yield f"tokens    {shown.estimate:,} estimated{apart}; {_told(record.usage)}"
    if record.fitting is not None:
        yield f"fitting   {_why_cut(record.fitting)}"
    if record.prompt and not shown.is_same_prompt:
        yield "prompt    the system prompt or the tools are others today than they were then"
    yield "beside    what hooks and recalled memories added to this call alone is in no journal"


def _conversation(shown: ShownRequest, limit: int | None) -> Iterator[str]:
    chat = shown.chat
    yield f"system: {_text(chat.system, limit)}"
    if chat.tools:
        yield f"tools: {', '.join(one_line(tool.name, 60) for tool in chat.tools)}"
    for message in chat.messages:
        for part in message.parts:
            yield f"{message.role}: {_text(part_in_words(part), limit)}"


def _text(text: str, limit: int | None) -> str:
    return printable(text) if limit is None else one_line(text, limit)


def check_context_options(session: str | None, step: int | None, code: str | None) -> None:
    """Check what goes with `--context`.

    Raises:
        ConfigurationError: something is missing.
    """
    if session is None:
        raise ConfigurationError("--context is of one session: name it behind the journal")
    if (step is None) is not (code is None):
        raise ConfigurationError(
            "--step and --code go together: the code of the agent puts together again what its model was shown"
        )
