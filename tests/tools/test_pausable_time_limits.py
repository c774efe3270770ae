"""actgent.tools.pausable_time_limits: time that stands still as long as anybody holds it."""

import math

import trio

from actgent.tools.pausable_time_limits import TimeLimit


async def test_time_limits_pause_until_all_waits_end(autojump_clock):
    """Two that hold one limit do not take each other's time: what was left before is left after."""
    with trio.move_on_after(10) as scope:
        limit = TimeLimit(scope)
        await trio.sleep(4)
        limit.hold()
        limit.hold()
        assert limit.deadline == math.inf
        await trio.sleep(100)
        limit.release()
        await trio.sleep(100)
        limit.release()
        assert limit.deadline == trio.current_time() + 6
        await trio.sleep(5)
    assert not scope.cancelled_caught
