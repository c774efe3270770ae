"""Errors of user code have three outcomes: a failure, a cancellation, or KeyboardInterrupt, also in exception groups."""

import asyncio
import logging

import pytest
import trio

from actgent.errors import UserCodeExit
from actgent.support.user_code_calls import convert_user_error, explained_text, leaves


async def cancelled_group(*errors):
    """Raise the group of a cancelled nursery whose children fail in their clean-up, with `Cancelled` in the same group."""

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
    """The wrapper is a failure of the call with the original exception as its cause."""
    outcome = convert_user_error(error, "tool", "x")
    assert isinstance(outcome, UserCodeExit)
    assert outcome.__cause__ is error
    assert list(leaves(outcome)) == list(leaves(error))


async def test_ordinary_exceptions_are_unchanged():
    """Groups of ordinary exceptions are also unchanged."""
    for error in (ValueError("a"), ExceptionGroup("g", [ValueError("a")])):
        assert convert_user_error(error, "tool", "x") is error


@pytest.mark.parametrize("others", [[], [ValueError()], [ExceptionGroup("g", [ValueError()])]])
async def test_keyboard_interrupt_is_raised_alone(others):
    """KeyboardInterrupt is raised from any depth of a group, so the program ends as without actgent."""
    interrupt = KeyboardInterrupt()
    error = BaseExceptionGroup("g", [BaseExceptionGroup("h", [interrupt]), *others])
    with pytest.raises(KeyboardInterrupt):
        convert_user_error(error, "tool", "x")


@pytest.mark.parametrize("error", [OSError("a"), SystemExit(1), ExceptionGroup("g", [OSError("a")])])
async def test_cancellation_precedes_a_failing_cleanup(caplog, error):
    """`Cancelled` is raised alone, so the cancel scope catches it. The other error is logged once, with its class."""
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
    """A stored `Cancelled` that is raised later belongs to no active cancel scope."""
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
    """An error that user code raised before the cancellation reached it is the outcome of the call."""
    with trio.CancelScope() as scope:
        scope.cancel()
        error = ValueError("mine")
        assert convert_user_error(error, "tool", "x") is error
        await trio.lowlevel.checkpoint()


async def test_unreachable_host_has_one_reason_for_all_addresses():
    """The errors of trio and of other libraries name only the host, so the reason is added. Other errors are unchanged."""
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
    """Anyio raises this error without a group."""
    error = OSError("All connection attempts failed")
    error.__cause__ = ConnectionRefusedError(111, "Connection refused")
    assert explained_text(error) == "All connection attempts failed: [Errno 111] Connection refused"
