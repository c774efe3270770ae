"""What a person may type between messages: `/help` and the like."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import attrs

from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.cli.terminal import Terminal, one_line
from actgent.errors import ConfigurationError, nearest
from actgent.errors.printable import counted
from actgent.messages import Part, Usage

from .attachments import attachment, describe_attachment

QUIT = ("/quit", "/exit")


class CommandTarget(Protocol):
    """A conversation, as far as commands change it."""

    agent: Agent
    session: Session
    terminal: Terminal
    attached: list[Part]
    """What goes with the next message."""

    async def begin_anew(self) -> None:
        """Have a new session in the place of this one."""


@attrs.frozen
class Command:
    """What a word does, and how `/help` tells of it."""

    run: Callable[[CommandTarget, str], Awaitable[None]]
    usage: str
    text: str


def find_command(line: str) -> tuple[str, str] | None:
    """The command of a line and the rest of it; None for a message, such as one about `/etc/hosts`."""
    word, _, rest = line.strip().partition(" ")
    is_command = len(word) > 1 and word[0] == "/" and word[1:].isalpha() and word[1:].islower()
    return (word, rest.strip()) if is_command and "\n" not in line.strip() else None


async def run_command(talk: CommandTarget, word: str, rest: str) -> None:
    """Do what a command says, or tell that there is none of this name."""
    command = COMMANDS.get(word)
    if command is None:
        talk.terminal.complain(
            f"there is no command {word}: {nearest(word, COMMANDS)} /help tells of them; to say it, put a space before it"
        )
        return
    try:
        await command.run(talk, rest)
    except ConfigurationError as error:
        talk.terminal.complain(error)


async def _help(talk: CommandTarget, _: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        talk.terminal.line(f"  {command.usage:<{width}}  {command.text}")
    talk.terminal.line(
        "  Enter sends; Alt-Enter, or \\ before Enter, begins a new line; pasted lines stay together; "
        "Up and Ctrl-R find what was typed before.\n"
        "  Ctrl-C stops a running answer, or throws away what is typed; Ctrl-D ends the conversation.",
        style="dim",
    )


async def _stop(talk: CommandTarget, _: str) -> None:
    talk.terminal.line("nothing runs; typed while an answer runs, /stop ends it", style="dim")


async def _new(talk: CommandTarget, _: str) -> None:
    await talk.begin_anew()
    talk.attached.clear()
    talk.terminal.line(f"a new session: {talk.session.id}", style="dim")


async def _tools(talk: CommandTarget, _: str) -> None:
    specs = list(talk.agent.tools.specs())
    for spec in specs:
        first = spec.description.strip().partition("\n")[0]
        talk.terminal.line(f"  {one_line(spec.name, 60)}: {one_line(first, 120)}")
    if not specs:
        talk.terminal.line(f"{talk.agent.name} has no tools", style="dim")


async def _usage(talk: CommandTarget, _: str) -> None:
    talk.terminal.line(
        f"  this session: {usage_words(talk.session.usage)}; {counted(len(talk.session.history), 'message')}"
    )


async def _attach(talk: CommandTarget, rest: str) -> None:
    if rest:
        talk.attached.append(attachment(rest.strip("'\"")))
    for part in talk.attached:
        talk.terminal.line(f"  {describe_attachment(part)}", style="dim")
    talk.terminal.line(
        "goes with the next message" if talk.attached else "nothing is attached: /attach FILE does it",
        style="dim",
    )


async def _quit(_: CommandTarget, __: str) -> None:
    raise AssertionError("the conversation ends before it comes here")


COMMANDS: Mapping[str, Command] = {
    "/help": Command(_help, "/help", "this list"),
    "/stop": Command(_stop, "/stop", "stop the answer that is running (so does Ctrl-C)"),
    "/new": Command(_new, "/new", "begin a new session; the agent has forgotten this one"),
    "/tools": Command(_tools, "/tools", "the agent's tools"),
    "/usage": Command(_usage, "/usage", "tokens and cost so far"),
    "/attach": Command(_attach, "/attach FILE", "send a picture, a PDF or a text file with the next message"),
    "/quit": Command(_quit, "/quit", "end the conversation (so does Ctrl-D)"),
}


def usage_words(usage: Usage) -> str:
    """Tokens and cost in a few words."""
    cost = "cost not known" if usage.cost is None else f"${usage.cost:.4f}"
    return f"{counted(usage.input_tokens, 'token')} in, {usage.output_tokens:,} out, {cost}"
