"""actgent.tools.pausable_time_limits: time limits that pause while a wait holds them."""

import math

import trio

from actgent.tools.pausable_time_limits import TimeLimit


async def test_time_limits_pause_until_all_waits_end(autojump_clock):
    """A time limit with two holds pauses until both are released. The remaining time is unchanged."""
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
