"""`actgent memory`."""

from typing import Annotated

from cyclopts import App, Parameter

from .base import Flag, app, run_command

memory = App(name="memory", help="What is remembered of an owner: list, show, correct, forget, export.")
app.command(memory)


@memory.command(name="list")
def list_memories(memories: str, /, *, owner: str | None = None, kind: str | None = None) -> int:
    """List the memories of an owner that count now; without --owner, the owners and how many each has.

    Args:
        memories: The file of memories, or postgres://HOST/DATABASE; agents may be using it.
        owner: Whose; `agent:NAME` is an agent.
        kind: Only of this kind.
    """
    from actgent.cli.journals.memory import list_memories as look  # noqa: PLC0415

    return run_command(lambda terminal, _: look(memories, terminal, owner=owner, kind=kind))


@memory.command(name="show")
def show_memory(memories: str, memory_id: str, /, *, owner: str) -> int:
    """Show a memory with where it comes from, what it replaced, and its links.

    Args:
        memories: The file of memories, or postgres://HOST/DATABASE.
        memory_id: Its id, as `list` tells it.
        owner: Whose it is.
    """
    from actgent.cli.journals.memory import show_memory as show  # noqa: PLC0415

    return run_command(lambda terminal, _: show(memories, memory_id, terminal, owner=owner))


@memory.command(name="correct")
def correct_memory(memories: str, memory_id: str, text: str, /, *, owner: str) -> int:
    """Put another text in the place of a memory, which stays as history.

    Args:
        memories: The file of memories, or postgres://HOST/DATABASE.
        memory_id: Its id.
        text: What is true.
        owner: Whose it is.
    """
    from actgent.cli.journals.memory import correct_memory as correct  # noqa: PLC0415

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
    """Forget memories by their ids, or with --all erase all that is kept of an owner: memories, history, vectors, links.

    With --journal also the owner's sessions with all below them, and with these their summaries and snapshots.

    Args:
        memories: The file of memories, or postgres://HOST/DATABASE.
        ids: The ids of memories.
        owner: Whose they are.
        everything: All of this owner.
        journal: With --all, the file of a journal, or postgres://HOST/DATABASE; no agent may be using it.
    """
    from actgent.cli.journals.memory import forget_memories as forget  # noqa: PLC0415

    return run_command(
        lambda terminal, _: forget(memories, ids, terminal, owner=owner, all_of=everything, journal=journal)
    )


@memory.command(name="export")
def export_memories(memories: str, /, *, owner: str) -> int:
    """Write all that is remembered of an owner, history and links too, as lines of JSON.

    Args:
        memories: The file of memories, or postgres://HOST/DATABASE.
        owner: Whose.
    """
    from actgent.cli.journals.memory import export_memories as write  # noqa: PLC0415

    return run_command(lambda terminal, _: write(memories, terminal, owner=owner))
