"""A todo list and its differences in the terminal. What models wrote is shown as it is, never as markup."""

from rich.table import Table
from rich.text import Text

from actgent.protocols.plan import Plan, Status, TodoDiff, TodoItem, change_text, clipped, status_mark

_STYLES: dict[Status, str] = {
    "pending": "",
    "in_progress": "bold cyan",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
    "waiting": "yellow",
}
_CHANGES = {"added": "green", "modified": "yellow", "removed": "red"}


def todo_table(plan: Plan) -> Table:
    """A plan as a table: a row an item, its warnings below it."""
    table = Table(
        title=None if plan.title is None else Text(plan.title),
        caption=Text("\n".join(plan.warnings)) if plan.warnings else None,
    )
    for heading in ("", "step", "what", "after", "result"):
        table.add_column(heading, overflow="fold")
    for item in plan.items:
        table.add_row(*_cells(item))
    return table


def _cells(item: TodoItem) -> list[Text]:
    texts = (status_mark(item), item.id, item.description, ", ".join(item.dependencies), item.result or "")
    return [Text(clipped(text), style=_STYLES[item.status]) for text in texts]


def diff_lines(diff: TodoDiff) -> Text:
    """Differences as coloured lines: `+` added, `~` modified, `-` removed."""
    lines = [Text(change_text(change), style=_CHANGES[change.kind]) for change in diff.changes]
    return Text("\n").join(lines)
