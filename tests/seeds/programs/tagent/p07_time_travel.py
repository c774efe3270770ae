"""Actions can be replayed for debugging: the state after any number of actions can be computed.

Document: Core Architecture Principles, Redux-Inspired State Management (Time Travel).
"""

from actgent import Store


def add(state):
    return ("count", state["count"] + 1)


store = Store({"count": 0})
for _ in range(3):
    store.dispatch(add)
assert [store.replay(number)["count"] for number in range(4)] == [0, 1, 2, 3]
assert store["count"] == 3
assert len(store.history) == 3
branch = store.fork(1)
branch.dispatch(lambda state: ("count", 100))
assert (branch["count"], store["count"]) == (100, 3)
