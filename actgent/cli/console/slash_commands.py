"""Slash commands of a terminal conversation, such as `/help`."""

import mimetypes
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

import attrs

from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.cli.terminal_io import Terminal, one_line
from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.errors.text_escaping import counted
from actgent.messages import File, Image, Part, Text, Usage

MAX_BYTES = 20_000_000
"""Maximum size of an attachment in bytes."""


def attachment(path_text: str) -> Part:
    """Read the file at a path and return its content as a message part.

    Raises:
        ConfigurationError: The file cannot be read, is too large, or is neither a media file, a PDF nor UTF-8 text.
    """
    path = Path(path_text).expanduser()
    data = _read(path)
    kind = mimetypes.guess_type(path.name)[0] or ""
    if kind.startswith("image/"):
        return Image(media_type=kind, data=data)
    if kind == "application/pdf" or kind.startswith(("audio/", "video/")):
        return File(media_type=kind, data=data, name=path.name)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{path_text} cannot be attached: it must be an image, audio, video, PDF or UTF-8 text file"
        ) from None
    return Text(f"The file {path.name}:\n\n{text}")


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigurationError(
                f"{path} cannot be attached: the file must have at most {MAX_BYTES:,} bytes"
            )
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be attached: {error.strerror}") from None


def describe_attachment(part: Part) -> str:
    """Return the kind or name of an attachment, and its size, as text."""
    match part:
        case Image(media_type=kind, data=bytes(data)):
            return f"picture {kind}, {counted(len(data), 'byte')}"
        case File(name=name, data=bytes(data)):
            return f"{name}, {counted(len(data), 'byte')}"
        case Text(text=text):
            return f"{text.partition(':')[0].removeprefix('The file ')}, {counted(len(text), 'character')}"
    return type(part).__name__


QUIT = ("/quit", "/exit")
"""Lines that end the conversation."""


class CommandTarget(Protocol):
    """Interface of the conversation that slash commands change."""

    agent: Agent
    session: Session
    terminal: Terminal
    attached: list[Part]
    """Attachments that are sent with the next message."""

    async def start_new_session(self) -> None:
        """Replace the session by a new one without history."""


@attrs.frozen
class Command:
    """A slash command and its help text."""

    run: Callable[[CommandTarget, str], Awaitable[None]]
    """Async function that runs the command with the conversation and the rest of the line."""
    usage: str
    """Command word and its argument, as `/help` lists them."""
    text: str
    """Description of the command in `/help`."""


def find_command(line: str) -> tuple[str, str] | None:
    """Split a line into command word and arguments. Return None if the line is a message, such as one that starts with a path."""
    word, _, rest = line.strip().partition(" ")
    is_command = len(word) > 1 and word[0] == "/" and word[1:].isalpha() and word[1:].islower()
    return (word, rest.strip()) if is_command and "\n" not in line.strip() else None


async def run_command(conversation: CommandTarget, word: str, rest: str) -> None:
    """Run the slash command `word` with the arguments `rest`. Print an error if no command has this name."""
    command = COMMANDS.get(word)
    if command is None:
        conversation.terminal.report_error(
            f"unknown command {word}: {did_you_mean_or_list(word, COMMANDS)} /help lists the commands; to send the line as a message, start "
            "it with a space"
        )
        return
    try:
        await command.run(conversation, rest)
    except ConfigurationError as error:
        conversation.terminal.report_error(error)


async def _help(conversation: CommandTarget, _: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        conversation.terminal.line(f"  {command.usage:<{width}}  {command.text}")
    conversation.terminal.line(
        "  Enter sends; Alt-Enter, or \\ before Enter, adds a new line; pasted lines stay one message; "
        "Up and Ctrl-R search the history.\n"
        "  Ctrl-C stops a running answer, or clears the input line; Ctrl-D ends the conversation.",
        style="dim",
    )


async def _stop(conversation: CommandTarget, _: str) -> None:
    conversation.terminal.line("no answer is running; /stop ends a running answer", style="dim")


async def _new(conversation: CommandTarget, _: str) -> None:
    await conversation.start_new_session()
    conversation.attached.clear()
    conversation.terminal.line(f"a new session: {conversation.session.id}", style="dim")


async def _tools(conversation: CommandTarget, _: str) -> None:
    specs = list(conversation.agent.tools.specs)
    for spec in specs:
        first = spec.description.strip().partition("\n")[0]
        conversation.terminal.line(f"  {one_line(spec.name, 60)}: {one_line(first, 120)}")
    if not specs:
        conversation.terminal.line(f"{conversation.agent.name} has no tools", style="dim")


async def _usage(conversation: CommandTarget, _: str) -> None:
    conversation.terminal.line(
        f"  this session: {format_usage(conversation.session.usage)}; {counted(len(conversation.session.history), 'message')}"
    )


async def _attach(conversation: CommandTarget, rest: str) -> None:
    if rest:
        conversation.attached.append(attachment(rest.strip("'\"")))
    for part in conversation.attached:
        conversation.terminal.line(f"  {describe_attachment(part)}", style="dim")
    conversation.terminal.line(
        "goes with the next message"
        if conversation.attached
        else "no attachments; add one with /attach FILE",
        style="dim",
    )


async def _quit(_: CommandTarget, __: str) -> None:
    raise AssertionError("the conversation handles /quit before commands run")


COMMANDS: Mapping[str, Command] = {
    "/help": Command(_help, "/help", "this list"),
    "/stop": Command(_stop, "/stop", "stop the answer that is running (so does Ctrl-C)"),
    "/new": Command(_new, "/new", "start a new session with an empty history"),
    "/tools": Command(_tools, "/tools", "the agent's tools"),
    "/usage": Command(_usage, "/usage", "tokens and cost so far"),
    "/attach": Command(_attach, "/attach FILE", "send a picture, a PDF or a text file with the next message"),
    "/quit": Command(_quit, "/quit", "end the conversation (so does Ctrl-D)"),
}
"""All slash commands by name."""


def format_usage(usage: Usage) -> str:
    """Format the token counts and the cost of a usage as text."""
    cost = "cost unknown" if usage.cost is None else f"${usage.cost:.4f}"
    return f"{counted(usage.input_tokens, 'token')} in, {usage.output_tokens:,} out, {cost}"
