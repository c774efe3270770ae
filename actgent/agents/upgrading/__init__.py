"""What an agent's code of today makes of sessions of before: of those that go on, and of those that are over."""

from .coming import Outlook, foresee
from .replaying import Difference, Recording, compare_session

__all__ = ["Difference", "Outlook", "Recording", "compare_session", "foresee"]
