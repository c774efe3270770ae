"""What the models of agents get besides the tools of a program: schedules, and memories that last."""

from .database_tools import with_database
from .lasting import lasting_of

__all__ = ["lasting_of", "with_database"]
