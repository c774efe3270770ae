"""What `Agent(memories=...)` takes, for those who have none of it: what it is made of is loaded by whoever uses it."""

import abc
from contextlib import AbstractAsyncContextManager
from typing import Any


class LastingMemories(AbstractAsyncContextManager[Any], abc.ABC):
    """What is remembered of owners beyond a conversation: `Memories`. It is open in a block, as often as somebody has it."""
