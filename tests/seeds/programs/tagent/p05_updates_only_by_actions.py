"""The state changes only through dispatched actions. A change of a copy in an action or a reader has no effect.

Document: Core Architecture Principles, Redux-Inspired State Management (Immutable Updates).
"""

from actgent import Store

store = Store({"items": ["milk"]})


def cheat(state):
    state["items"].append("bread")


for forbidden in (
    lambda: store.__setitem__("items", []),
    lambda: store["items"].append("bread"),
    lambda: store.dispatch(cheat),
):
    try:
        forbidden()
    except Exception:  # noqa: BLE001 - whichever says no
        continue
assert list(store["items"]) == ["milk"]
store.dispatch(lambda state: ("items", [*state["items"], "bread"]))
assert list(store["items"]) == ["milk", "bread"]
