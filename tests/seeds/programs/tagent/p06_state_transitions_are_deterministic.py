"""State transitions are deterministic: equal actions lead from equal states to equal states.

Document: Core Architecture Principles, Redux-Inspired State Management (Predictable Flow).
"""

from actgent import Store


def add(state):
    return ("sum", state["sum"] + state["step"])


def widen(state):
    return [("step", state["step"] * 2), ("widened", True)]


def idle(state):
    return None


def run() -> tuple[dict, int]:
    store = Store({"sum": 0, "step": 1})
    for action in (add, widen, idle, add, widen, add):
        store.dispatch(action)
    return dict(store), store.number


assert run() == run() == ({"sum": 7, "step": 4, "widened": True}, 5)
