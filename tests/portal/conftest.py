"""Shared fixtures of the portal tests."""

import threading

import pytest
import trio

from actgent import LLM
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Text


@pytest.fixture(autouse=True)
def _nothing_left():
    """Assert that no portal thread is left after a test."""
    yield
    assert [each.name for each in threading.enumerate() if each.name == "actgent portal"] == []


class Slow(LLM):
    """A model that never answers and counts its cancelled calls. `begun` and `stopped` are thread events."""

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
    """A model that answers in chunks of one token, and counts the consumed chunks."""

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
    """Return a model that never answers."""
    return Slow()


@pytest.fixture
def chatty():
    """Return a function that makes a model with the given number of tokens."""
    return Chatty
