"""`Store(initial_state)` contains the state, and `dispatch(action)` calls the action with it and applies the return value.

Document: Component Architecture, State Management; Action System (example_action).

Differs: The store itself is a mapping that only actions can change. Write `dict(store)` for `store.state.data`.
"""

from typing import Any, Dict, Optional, Tuple

from actgent import Store


def example_action(state: Dict[str, Any]) -> Optional[Tuple[str, Any]]:
    """Example action that processes state and returns updates."""
    result = (state.get("input_data") or "").upper()
    return ("processed_result", result) if result else None


store = Store({"input_data": "hello"})
store.dispatch(example_action)
assert dict(store) == {"input_data": "hello", "processed_result": "HELLO"}
assert store["processed_result"] == "HELLO"
empty = Store({"input_data": None})
empty.dispatch(example_action)
assert (dict(empty), empty.number) == ({"input_data": None}, 0)
