"""Nurseries that raise a single error unchanged, without an exception group."""

import pytest
import trio

from actgent.support.plain_nursery import plain_nursery


async def test_block_error_is_raised_unchanged():
    async def fail():
        async with plain_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise LookupError("of the block") from ValueError("why")

    with pytest.raises(LookupError, match="of the block") as caught:
        await fail()
    assert str(caught.value.__cause__) == "why"


async def test_task_and_block_errors_are_raised_as_a_group():
    async def fail():
        raise ValueError("of a task")

    async def fail_beside(raise_own):
        async with plain_nursery() as nursery:
            nursery.start_soon(fail)
            raise_own()

    def raise_lookup():
        raise LookupError("of the block")

    with pytest.raises(ExceptionGroup) as alone:
        await fail_beside(lambda: None)
    assert [str(each) for each in alone.value.exceptions] == ["of a task"]
    with pytest.raises(ExceptionGroup) as both:
        await fail_beside(raise_lookup)
    assert {str(each) for each in both.value.exceptions} == {"of a task", "of the block"}


async def test_cancellation_is_not_wrapped():
    with trio.CancelScope() as scope:
        async with plain_nursery():
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
