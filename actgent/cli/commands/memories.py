"""Commands for long-term memory: `memory list`, `show`, `correct`, `forget`, `export`."""

from typing import Annotated

from cyclopts import App, Parameter

from actgent.cli.command_options import Flag

from .command_app import SESSIONS, app, run_command

memory = App(
    name="memory",
    help="Manage the long-term memory of an owner: list, show, correct, forget, export.",
    group=SESSIONS,
)
app.command(memory)


@memory.command(name="list")
def list_memories(memories: str, /, *, owner: str | None = None, kind: str | None = None) -> int:
    """List the current memories of an owner; without --owner, list all owners with the number of their memories.

    Args:
        memories: Memory file, or postgres://HOST/DATABASE; agents may be using it.
        owner: Name of the owner; `agent:NAME` selects an agent.
        kind: List only memories of this kind.
    """
    from actgent.cli.journals.memory_command import list_memories as look  # noqa: PLC0415

    return run_command(lambda terminal, _: look(memories, terminal, owner=owner, kind=kind))


@memory.command(name="show")
def show_memory(memories: str, memory_id: str, /, *, owner: str) -> int:
    """Show a memory with its source, its earlier versions and its links.

    Args:
        memories: Memory file, or postgres://HOST/DATABASE.
        memory_id: Id of the memory, as `actgent memory list` prints it.
        owner: Name of the owner.
    """
    from actgent.cli.journals.memory_command import show_memory as show  # noqa: PLC0415

    return run_command(lambda terminal, _: show(memories, memory_id, terminal, owner=owner))


@memory.command(name="correct")
def correct_memory(memories: str, memory_id: str, text: str, /, *, owner: str) -> int:
    """Replace the text of a memory. The old text stays in the history.

    Args:
        memories: Memory file, or postgres://HOST/DATABASE.
        memory_id: Id of the memory.
        text: The correct text.
        owner: Name of the owner.
    """
    from actgent.cli.journals.memory_command import correct_memory as correct  # noqa: PLC0415

    return run_command(lambda terminal, _: correct(memories, memory_id, text, terminal, owner=owner))


@memory.command(name="forget")
def forget_memories(
    memories: str,
    /,
    *ids: str,
    owner: str,
    everything: Annotated[Flag, Parameter(name="--all")] = False,
    journal: str | None = None,
) -> int:
    """Forget memories by id, or erase everything stored about an owner with --all: memories, history, vectors and links.

    With --all and --journal, the owner's sessions are erased also, with their child sessions, summaries and snapshots.

    Args:
        memories: Memory file, or postgres://HOST/DATABASE.
        ids: Ids of the memories to forget.
        owner: Name of the owner.
        everything: Erase everything stored about the owner.
        journal: With --all, the journal whose sessions are erased: a file, or postgres://HOST/DATABASE. No agent
            may be using it.
    """
    from actgent.cli.journals.memory_command import forget_memories as forget  # noqa: PLC0415

    return run_command(
        lambda terminal, _: forget(
            memories, ids, terminal, owner=owner, erase_all=everything, journal=journal
        )
    )


@memory.command(name="export")
def export_memories(memories: str, /, *, owner: str) -> int:
    """Print all memories of an owner, with history and links, as JSON lines.

    Args:
        memories: Memory file, or postgres://HOST/DATABASE.
        owner: Name of the owner.
    """
    from actgent.cli.journals.memory_command import export_memories as write  # noqa: PLC0415

    return run_command(lambda terminal, _: write(memories, terminal, owner=owner))
