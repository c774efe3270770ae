"""`actgent inspect --context`: the requests that a session sent to its models, and the omitted messages."""

from collections.abc import Iterator, Sequence

from actgent.agents.session_replay import Recording, ShownRequest, show_request
from actgent.cli.chat_and_run_commands import open_agent
from actgent.cli.command_options import ChatOptions
from actgent.cli.terminal_io import Terminal, one_line, printable
from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import counted
from actgent.journal.record_types import AgentMessageRecord, Fitting, Record
from actgent.messages import Usage

from .journal_commands import format_part, load, open_read_only

MAX_PART_CHARS = 200
"""Maximum characters of one message part, unless `--full` is given."""


async def list_requests(location: str, session: str, terminal: Terminal, *, agent: str | None) -> int:
    """Print one line for each model answer of a session: length of its request in tokens, and omitted messages."""
    async with open_read_only(location) as journal:
        records = await load(journal, session, agent)
    for step, record in _answers(records):
        terminal.line(f"{step:>5}  {one_line(record.model or 'model', 60)}: {_describe_usage(record.usage)}")
        if record.fitting is not None:
            terminal.line(f"       {_describe_cut(record.fitting)}", style="dim")
    return 0


def _answers(records: Sequence[Record]) -> Iterator[tuple[int, AgentMessageRecord]]:
    """Yield the records of model answers in a session with their record numbers."""
    return (
        (step, each)
        for step, each in enumerate(records, 1)
        if isinstance(each, AgentMessageRecord) and each.stop
    )


def _describe_usage(usage: Usage) -> str:
    if not usage.input_tokens:
        return "the provider did not report the request length"
    cached = f", {usage.cached_tokens:,} of them cached" if usage.cached_tokens else ""
    return f"{counted(usage.input_tokens, 'token')} shown{cached}, {usage.output_tokens:,} answered"


def _describe_cut(fitting: Fitting) -> str:
    """Describe as text how a model request was shortened to fit the context window."""
    reductions = []
    if fitting.shares:
        kept = " and then ".join(f"{share:.0%}" for share in fitting.shares)
        reductions.append(f"older messages were omitted ({kept} of the shown part stayed)")
    if fitting.shortened:
        reductions.append(f"long results were shortened to {fitting.shortened:,} characters")
    return f"cut: up to {fitting.tokens:,} tokens would not fit into {fitting.room:,}, so {' and '.join(reductions) or 'nothing'}"


async def show(
    location: str, session: str, step: int, terminal: Terminal, *, agent: str | None, code: str, full: bool
) -> int:
    """Print the model request that led to one answer, rebuilt by the agent's current code.

    Args:
        location: Journal file or URL.
        session: Id of the session.
        step: Record number of the model answer.
        terminal: Output of the command.
        agent: Agent of the session, if several agents have a session with this id.
        code: Agent folder, Python file, or `FILE.py:NAME`.
        full: True to print complete texts.
    """
    async with open_read_only(location) as journal:
        records = await load(journal, session, agent)
    async with open_agent(ChatOptions(file=code), needs_model=False) as found:
        shown = await show_request(Recording(session, found.name, records), found, step)
    for line in _explanations(shown):
        terminal.line(line, style="dim")
    for line in _conversation(shown, MAX_PART_CHARS if not full else None):
        terminal.line(line)
    return 0


def _explanations(request: ShownRequest) -> Iterator[str]:
    """Yield lines that describe a model request: memory strategy, messages, tokens, and omitted messages."""
    chat, record = request.chat, request.record
    yield f"memory    {one_line(request.memory, MAX_PART_CHARS)}"
    yield f"messages  {len(chat.messages)} shown, of a conversation of {request.messages}"
    reported = record.usage.input_tokens
    deviation = f", {request.estimate / reported - 1:+.0%}" if reported else ""
    yield f"tokens    {request.estimate:,} estimated{deviation}; {_describe_usage(record.usage)}"
    if record.fitting is not None:
        yield f"fitting   {_describe_cut(record.fitting)}"
    if record.prompt and not request.is_same_prompt:
        yield "prompt    the system prompt or the tools have changed since"
    yield "missing   text that hooks and recalled memories added to this call is not recorded"


def _conversation(shown: ShownRequest, limit: int | None) -> Iterator[str]:
    chat = shown.chat
    yield f"system: {_text(chat.system, limit)}"
    if chat.tools:
        yield f"tools: {', '.join(one_line(tool.name, 60) for tool in chat.tools)}"
    for message in chat.messages:
        for part in message.parts:
            yield f"{message.role}: {_text(format_part(part), limit)}"


def _text(text: str, limit: int | None) -> str:
    return printable(text) if limit is None else one_line(text, limit)


def check_context_options(session: str | None, step: int | None, code: str | None) -> None:
    """Check that the options `--context`, `--step` and `--code` fit together.

    Raises:
        ConfigurationError: The session id is missing, or only one of `--step` and `--code` is given.
    """
    if session is None:
        raise ConfigurationError("--context requires a session: pass the session id after the journal")
    if (step is None) is not (code is None):
        raise ConfigurationError(
            "--step N and --code require each other: the agent's code rebuilds the model request of record N"
        )
