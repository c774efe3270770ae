"""The edge to foreign code: three outcomes, whatever is raised, in whatever groups."""

import asyncio
import logging

import pytest
import trio

from actgent.errors import UserCodeExit
from actgent.support.user_code_calls import convert_user_error, explained_text, leaves


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
async def test_base_exception_is_wrapped_in_an_exception(error):
    """It counts as a failure of the call, with the original as its cause."""
    outcome = convert_user_error(error, "tool", "x")
    assert isinstance(outcome, UserCodeExit)
    assert outcome.__cause__ is error
    assert list(leaves(outcome)) == list(leaves(error))


async def test_ordinary_exceptions_are_unchanged():
    """Groups of them, too."""
    for error in (ValueError("a"), ExceptionGroup("g", [ValueError("a")])):
        assert convert_user_error(error, "tool", "x") is error


@pytest.mark.parametrize("others", [[], [ValueError()], [ExceptionGroup("g", [ValueError()])]])
async def test_keyboard_interrupt_is_raised_alone(others):
    """Out of the deepest group, so that the program ends as it would without us."""
    interrupt = KeyboardInterrupt()
    error = BaseExceptionGroup("g", [BaseExceptionGroup("h", [interrupt]), *others])
    with pytest.raises(KeyboardInterrupt):
        convert_user_error(error, "tool", "x")


@pytest.mark.parametrize("error", [OSError("a"), SystemExit(1), ExceptionGroup("g", [OSError("a")])])
async def test_cancellation_precedes_a_failing_cleanup(caplog, error):
    """`Cancelled` comes out alone, for our scope to take; what failed is logged once, by its class and place."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await cancelled_group(error)
        except BaseException as raised:  # noqa: BLE001 - what the edge is for
            with pytest.raises(trio.Cancelled):
                convert_user_error(raised, "tool", "x")
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "tool x was cancelled" in record.getMessage()
    assert next(leaves(error)).__class__.__name__ in record.getMessage()


async def test_foreign_cancellation_is_a_failure():
    """A `Cancelled` that somebody kept and raises later belongs to nobody's scope any more."""
    kept = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            kept.append(error)
            raise
    assert isinstance(convert_user_error(kept[0], "tool", "x"), UserCodeExit)


async def test_error_next_to_a_cancellation_is_kept():
    """What was raised before it could know of the cancellation is what the call came to."""
    with trio.CancelScope() as scope:
        scope.cancel()
        error = ValueError("mine")
        assert convert_user_error(error, "tool", "x") is error
        await trio.lowlevel.checkpoint()


async def test_unreachable_host_has_one_reason_for_all_addresses():
    """Trio's words, and those of a library round them, name the host alone; of what else fails they are enough."""
    with pytest.raises(OSError, match="all attempts to connect") as refused:
        await trio.open_tcp_stream("127.0.0.1", 9)
    round_it = RuntimeError(str(refused.value))
    round_it.__cause__ = refused.value
    for error in (refused.value, round_it):
        assert explained_text(error).count("Connection refused") == 1
    other = RuntimeError("something else")
    other.__cause__ = refused.value
    assert explained_text(other) == "something else"


def test_unreachable_single_address_has_a_reason():
    """As anyio raises it: without a group."""
    error = OSError("All connection attempts failed")
    error.__cause__ = ConnectionRefusedError(111, "Connection refused")
    assert explained_text(error) == "All connection attempts failed: [Errno 111] Connection refused"
