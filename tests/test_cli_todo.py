"""Todo lists in the terminal."""

import io

import attrs
from rich.console import Console

from actgent.cli.console.todo import diff_lines, todo_table
from actgent.protocols.plan.todo import Plan, TodoItem, diff_todo

ITEM = TodoItem(id="a", description="[red]first[/red]")


def printed(renderable, *, colour=False):
    console = Console(file=io.StringIO(), width=100, force_terminal=colour, no_color=not colour)
    console.print(renderable)
    return console.file.getvalue()


def test_a_table_of_items():
    """Each item is a row; what a model wrote is no markup."""
    done = attrs.evolve(ITEM, status="completed", result="[/] it is")
    second = TodoItem(id="b", description="second", dependencies=["a"])
    text = printed(todo_table(Plan(title="[b]T", items=[done, second], warnings=["one was left out"])))
    for part in ("[b]T", "[x]", "[red]first[/red]", "[/] it is", "[ ]", "second", "one was left out"):
        assert part in text
    assert "\x1b[32m" in printed(todo_table(Plan(items=[done])), colour=True)


def test_lines_of_differences():
    """A line a change, as in plain text."""
    diff = diff_todo([ITEM], [TodoItem(id="b", description="second")])
    assert printed(diff_lines(diff)).splitlines() == ["+ b: second", "- a: [red]first[/red]"]
