"""Todo lists: differences by case 29 of the specification's ART page, order, and renderings."""

import attrs
import pytest

from actgent.protocols.plan.todo_list import (
    STATUSES,
    Plan,
    TodoChange,
    TodoItem,
    cancel_blocked,
    change_text,
    diff_todo,
    next_item,
    refine,
    run_status,
    shorten_to_line,
    status_mark,
    todo_text,
)

A = TodoItem(id="a", description="first")
B = TodoItem(id="b", description="second", dependencies=["a"])


def test_case_29_added_and_removed_items_are_listed():
    """Compared with no plan, all items are added. A removed item is listed with its former fields."""
    diff = diff_todo([], [A, B])
    assert diff.changes == (TodoChange("added", A), TodoChange("added", B))
    assert diff_todo([A], []).changes == (TodoChange("removed", A),)
    assert diff_todo([], []).changes == ()


@pytest.mark.parametrize(
    "change", [{"description": "else"}, {"status": "completed"}, {"dependencies": ["b"]}, {"result": "r"}]
)
def test_case_29_changed_fields_are_named(change):
    new = attrs.evolve(A, **change)
    assert diff_todo([A], [new]).changes == (TodoChange("modified", new, tuple(change)),)


def test_case_29_time_alone_is_no_change():
    """The times and the start of an attempt do not count as changes."""
    assert diff_todo([A], [attrs.evolve(A, updated_at=9.0, created_at=8.0, begun_after="m")]).changes == ()


def test_case_29_changes_are_in_the_order_of_the_new_list():
    """Changes are in the order of the new list, with the removed items at the end."""
    done, new = attrs.evolve(A, status="completed"), TodoItem(id="c", description="third")
    diff = diff_todo([A, B], [new, done])
    assert [(change.kind, change.item.id) for change in diff.changes] == [
        ("added", "c"),
        ("modified", "a"),
        ("removed", "b"),
    ]
    assert diff.of("modified") == (done,)
    assert diff.to_data() == {"added": ["c"], "modified": ["a"], "removed": ["b"]}
    assert [*map(change_text, diff.changes)] == ["+ c: third", "~ a: status: completed", "- b: second"]


def test_next_item_is_the_first_unblocked_one():
    """The next item is the first pending item with completed dependencies."""
    assert next_item(Plan(items=[B, A])) == A
    assert next_item(Plan(items=[B, attrs.evolve(A, status="completed")])) == B
    assert next_item(Plan(items=[B, attrs.evolve(A, status="waiting")])) is None


def test_blocked_items_are_cancelled():
    """Direct and indirect dependents are cancelled. Dependents of a waiting item are not."""
    c = TodoItem(id="c", description="third", dependencies=["b"])
    plan = cancel_blocked(Plan(items=[attrs.evolve(A, status="failed"), B, c]), now=3.0)
    assert [(item.status, item.updated_at) for item in plan.items] == [
        ("failed", 0.0),
        ("cancelled", 3.0),
        ("cancelled", 3.0),
    ]
    plan = Plan(items=[attrs.evolve(A, status="waiting"), B, c])
    assert cancel_blocked(plan, now=3.0) == plan


@pytest.mark.parametrize("status", sorted(set(STATUSES) - {"completed"}))
def test_only_completed_items_are_a_success(status):
    """Every other status makes the run partial or suspended."""
    done = attrs.evolve(A, status="completed")
    assert run_status(Plan(items=[done])) == "success"
    other = run_status(Plan(items=[done, attrs.evolve(B, status=status)]))
    assert other == ("suspended" if status == "waiting" else "partial")


def test_warnings_and_failed_validations_make_the_run_partial():
    """A dropped item or a failed validation makes the run partial."""
    done = attrs.evolve(A, status="completed")
    assert run_status(Plan(items=[done], warnings=["todo item 2 was left out"])) == "partial"
    assert run_status(Plan(items=[attrs.evolve(done, validation="failed")])) == "partial"


def test_plain_text_has_one_line_per_item():
    """Each item is a line, with its result in one line below. Markup is rendered as text."""
    done = attrs.evolve(A, status="completed", result="[red]so\nit is[/]")
    plan = Plan(title="Trip", outline="go", items=[done, B], warnings=["todo item 3 was left out"])
    assert todo_text(plan).splitlines() == [
        "Trip",
        "go",
        "[x] a: first",
        "      [red]so it is[/]",
        "[ ] b: second (after a)",
        "(todo item 3 was left out)",
    ]
    assert len({status_mark(attrs.evolve(A, status=status)) for status in STATUSES}) == len(STATUSES)


def test_long_texts_are_shortened():
    """A text is shortened to one line of the maximum length."""
    assert shorten_to_line("a  b\nc", 10) == "a b c"
    assert shorten_to_line("x" * 20, 10) == "xxxxxxx..."


def test_refined_item_keeps_its_creation_time():
    """A replaced item keeps its creation time. A new item has its own."""
    old = Plan(items=(attrs.evolve(A, created_at=5.0),))
    new = Plan(items=(attrs.evolve(A, description="else", created_at=9.0), attrs.evolve(B, created_at=9.0)))
    assert [(item.description, item.created_at) for item in refine(old, new).items] == [
        ("else", 5.0),
        ("second", 9.0),
    ]
