"""The retry policy: a pure function decides, the runner applies the deadline."""

import pytest
import trio
from trio.testing import MockClock

from actgent.errors import BadRequest, ModelError, ProviderUnavailable, RateLimited, StreamInterrupted
from actgent.llm.retry_policy import Retry

STEADY = Retry(attempts=4, first_delay=1, max_delay=3, random=lambda: 1.0)
OVERLOAD = ProviderUnavailable("overloaded")


def test_pauses_double_up_to_a_limit():
    """Each pause is twice the one before, and none is above the maximum."""
    assert [STEADY.delay(attempt, OVERLOAD) for attempt in range(4)] == [1, 2, 3, None]


def test_pauses_have_jitter():
    """Jitter shortens a pause by at most half."""
    assert Retry(first_delay=1, random=lambda: 0.0).delay(0, OVERLOAD) == 0.5
    assert 0.5 <= (Retry(first_delay=1).delay(0, OVERLOAD) or 0) <= 1


@pytest.mark.parametrize(
    ("wish", "pause"), [(None, 1), (0, 1), (30, 30), (120, 120), (121, None), (4_233_600, None)]
)
def test_retry_after_lengthens_the_pause_within_bounds(wish, pause):
    """A Retry-After lengthens the pause. One of 49 days ends the retries."""
    assert STEADY.delay(0, RateLimited("later", retry_after=wish)) == pause


def test_permanent_errors_are_not_retried():
    """`retryable` of the error's class or instance decides."""
    assert STEADY.delay(0, BadRequest("wrong")) is None
    error = ProviderUnavailable("gone for good")
    error.retryable = False
    assert STEADY.delay(0, error) is None


class Failing:
    """A call that fails a given number of times first."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.attempts: list[int] = []

    async def __call__(self, attempt: int) -> str:
        await trio.lowlevel.checkpoint()
        self.attempts.append(attempt)
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


async def test_a_call_is_repeated_until_it_succeeds(autojump_clock: MockClock):
    """Attempts are numbered from 0, with the policy's pauses between them."""
    call = Failing(OVERLOAD, StreamInterrupted("cut"))
    assert await STEADY.run(call) == "answer"
    assert call.attempts == [0, 1, 2]
    assert trio.current_time() == pytest.approx(3)


async def test_the_last_error_is_raised(autojump_clock: MockClock):
    """After the last attempt the error of that attempt is raised."""
    errors = [ProviderUnavailable(str(number)) for number in range(4)]
    call = Failing(*errors)
    with pytest.raises(ModelError) as caught:
        await STEADY.run(call)
    assert caught.value is errors[-1]


async def test_no_pause_outlasts_the_deadline(autojump_clock: MockClock):
    """If the pause would end after the deadline, the error is raised at once."""
    with trio.fail_after(10), pytest.raises(RateLimited):
        await STEADY.run(Failing(RateLimited("later", retry_after=10)))
    assert trio.current_time() == 0


async def test_other_exceptions_are_not_retried():
    """Exceptions other than model errors are raised without a retry."""
    with pytest.raises(KeyError):
        await STEADY.run(Failing(KeyError("mine")))


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"first_delay": -1}])
def test_invalid_retry_policy_is_rejected(wrong):
    """A policy needs at least one attempt and no negative pause."""
    with pytest.raises(ValueError, match=r"Retry\(.* at least"):
        Retry(**wrong)
