"""The edge to foreign code: three outcomes, whatever is raised, in whatever groups."""

import asyncio
import logging

import pytest
import trio

from actgent.errors import ForeignExit
from actgent.support.foreign import failure_of, leaves, telling_text


async def cancelled_group(*errors):
    """A group of what a nursery raises whose children fail in their clean-up, with `Cancelled` beside them."""

    async def child(error):
        try:
            await trio.sleep_forever()
        finally:
            raise error

    async with trio.open_nursery() as nursery:
        for error in errors:
            nursery.start_soon(child, error)
        await trio.sleep_forever()


@pytest.mark.parametrize(
    "error",
    [SystemExit(2), asyncio.CancelledError(), GeneratorExit(), BaseExceptionGroup("g", [SystemExit()])],
)
async def test_what_is_no_exception_comes_in_one(error):
    """It counts as a failure of the call, with the original as its cause."""
    outcome = failure_of(error, "tool", "x")
    assert isinstance(outcome, ForeignExit)
    assert outcome.__cause__ is error
    assert list(leaves(outcome)) == list(leaves(error))


async def test_exceptions_stay_what_they_are():
    """Groups of them, too."""
    for error in (ValueError("a"), ExceptionGroup("g", [ValueError("a")])):
        assert failure_of(error, "tool", "x") is error


@pytest.mark.parametrize("others", [[], [ValueError()], [ExceptionGroup("g", [ValueError()])]])
async def test_a_keyboard_interrupt_is_raised_alone(others):
    """Out of the deepest group, so that the program ends as it would without us."""
    interrupt = KeyboardInterrupt()
    error = BaseExceptionGroup("g", [BaseExceptionGroup("h", [interrupt]), *others])
    with pytest.raises(KeyboardInterrupt):
        failure_of(error, "tool", "x")


@pytest.mark.parametrize("error", [OSError("a"), SystemExit(1), ExceptionGroup("g", [OSError("a")])])
async def test_a_cancellation_of_ours_goes_before_a_failing_clean_up(caplog, error):
    """`Cancelled` comes out alone, for our scope to take; what failed is logged once, by its class and place."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await cancelled_group(error)
        except BaseException as raised:  # noqa: BLE001 - what the edge is for
            with pytest.raises(trio.Cancelled):
                failure_of(raised, "tool", "x")
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "tool x was cancelled" in record.getMessage()
    assert next(leaves(error)).__class__.__name__ in record.getMessage()


async def test_a_cancellation_that_is_not_ours_is_a_failure():
    """A `Cancelled` that somebody kept and raises later belongs to nobody's scope any more."""
    kept = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            kept.append(error)
            raise
    assert isinstance(failure_of(kept[0], "tool", "x"), ForeignExit)


async def test_an_error_beside_a_cancellation_counts():
    """What was raised before it could know of the cancellation is what the call came to."""
    with trio.CancelScope() as scope:
        scope.cancel()
        error = ValueError("mine")
        assert failure_of(error, "tool", "x") is error
        await trio.lowlevel.checkpoint()


async def test_why_a_host_is_not_reached_is_told_once_for_all_of_its_addresses():
    """Trio's words, and those of a library round them, name the host alone; of what else fails they are enough."""
    with pytest.raises(OSError, match="all attempts to connect") as refused:
        await trio.open_tcp_stream("127.0.0.1", 9)
    round_it = RuntimeError(str(refused.value))
    round_it.__cause__ = refused.value
    for error in (refused.value, round_it):
        assert telling_text(error).count("Connection refused") == 1
    other = RuntimeError("something else")
    other.__cause__ = refused.value
    assert telling_text(other) == "something else"


def test_why_the_only_address_of_a_host_is_not_reached_is_told_too():
    """As anyio raises it: without a group."""
    error = OSError("All connection attempts failed")
    error.__cause__ = ConnectionRefusedError(111, "Connection refused")
    assert telling_text(error) == "All connection attempts failed: [Errno 111] Connection refused"
