"""The open sessions below a session, and which of them it has to look after, without a look at the others."""

from typing import Any

from actgent.journal.listing import SessionKey


class Children(dict[SessionKey, Any]):
    """The contexts of the sessions below one, by their agents and ids, in order of creation."""

    __slots__ = ("asking", "reporting", "unclaimed")

    def __init__(self) -> None:
        super().__init__()
        self.reporting: set[SessionKey] = set()
        """Those whose tasks are to report what they came to."""
        self.unclaimed: dict[SessionKey, Any] = {}
        """Those that an earlier process asked, and this one did not ask again when it was last looked."""
        self.asking: dict[SessionKey, Any] = {}
        """Those that may ask something of people, themselves or in sessions below them; see `open_approvals`."""

    def add(self, child: Any) -> None:
        self[child.key] = child
        if child.task is None:
            return
        if child.task.reports:
            self.reporting.add(child.key)
        elif child.task.is_unclaimed:
            self.unclaimed[child.key] = child

    def drop(self, child: Any) -> None:
        """Forget a child; nothing happens if it is none."""
        self.pop(child.key, None)
        self.reporting.discard(child.key)
        self.unclaimed.pop(child.key, None)
        self.asking.pop(child.key, None)

    def mark_asking(self, child: Any) -> bool:
        """This one may ask something of people; False where that is known, or it is none of these any more."""
        is_known = child.key in self.asking or self.get(child.key) is not child
        if not is_known:
            self.asking[child.key] = child
        return not is_known

    def tasks(self, task_id: str) -> list[Any]:
        """Those that work at the task of this id; several agents may."""
        tasks = (child for child in self.values() if child.task is not None)
        return [child for child in tasks if (child.task.name or child.id) == task_id]

    def stop_report(self, child: Any) -> None:
        """What this one comes to is not to be told."""
        child.task.reports = False
        self.reporting.discard(child.key)

    def take_unclaimed(self) -> list[Any]:
        """Those that are still not asked again; who was, is not looked at a second time."""
        self.unclaimed = {key: child for key, child in self.unclaimed.items() if child.task.is_unclaimed}
        return list(self.unclaimed.values())


def family_of(context: Any) -> list[Any]:
    """A session and all that are open below it, each behind the one that it belongs to."""
    family = [context]
    for each in family:
        family += (each.children or {}).values()
    return family
