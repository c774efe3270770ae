"""What the tests of portals share."""

import threading

import pytest
import trio

from actgent import LLM
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Text


@pytest.fixture(autouse=True)
def _nothing_left():
    """No thread of a portal is there after a test."""
    yield
    assert [each.name for each in threading.enumerate() if each.name == "actgent portal"] == []


class Slow(LLM):
    """Never answers, and tells how many calls of it run and were cancelled; `begun` and `stopped` are threads' events."""

    name = "test:slow"

    def __init__(self):
        self.begun, self.stopped = threading.Event(), threading.Event()
        self.cancelled = 0

    async def complete(self, chat, *, on_text=None):
        self.begun.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            self.cancelled += 1
            self.stopped.set()
            raise


class Chatty(LLM):
    """Answers with pieces, one token each, and counts those that were taken."""

    name = "test:chatty"

    def __init__(self, pieces):
        self.pieces = pieces
        self.said = 0

    async def complete(self, chat, *, on_text=None):
        for number in range(self.pieces):
            if on_text is not None:
                await on_text(f"{number} ", 0)
            self.said += 1
        return ModelResponse(parts=(Text("".join(f"{number} " for number in range(self.pieces))),))


@pytest.fixture
def slow():
    """A model that never answers."""
    return Slow()


@pytest.fixture
def chatty():
    """A function from a number to a model that says so many tokens."""
    return Chatty
