"""Fixtures for tests of agents with memories."""

import pytest

from actgent import LongTermMemory


@pytest.fixture
async def memories():
    """Yield an open store of memories."""
    async with LongTermMemory() as opened:
        yield opened
