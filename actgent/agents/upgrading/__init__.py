"""What an agent's code of today makes of sessions of before: of those that go on, and of those that are over."""

from .coming import Outlook, foresee
from .comparing import Difference
from .replaying import Recording, compare_session
from .showing import ShownRequest, show_next_request, show_request

__all__ = [
    "Difference",
    "Outlook",
    "Recording",
    "ShownRequest",
    "compare_session",
    "foresee",
    "show_next_request",
    "show_request",
]
