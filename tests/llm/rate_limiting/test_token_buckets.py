"""Token buckets and rate-limit headers."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from actgent.llm.rate_limiting.token_buckets import Bucket, Cost, Reading, read_limits

STEPS = st.lists(st.tuples(st.floats(0, 20), st.floats(0, 500)), max_size=40)


@given(steps=STEPS, rate=st.floats(0.1, 100), capacity=st.floats(1, 1000), start=st.floats(0, 1_000_000))
def test_a_bucket_never_exceeds_its_rate(steps, rate, capacity, start):
    """A caller that waits until `ready_at` never takes more than the initial content plus the refill."""
    bucket = Bucket.full("tokens", rate=rate, capacity=capacity, now=start)
    now, granted = start, 0.0
    for pause, tokens in steps:
        cost = Cost(input_tokens=min(tokens, capacity))
        now = bucket.ready_at(cost, now + pause)
        assert bucket.ready_at(cost, now) == pytest.approx(now, abs=1e-4)
        bucket.spend(cost, now)
        granted += cost.input_tokens
        assert granted <= capacity + rate * (now - start) + 0.1


@given(steps=STEPS)
def test_a_bucket_grants_its_full_rate_to_waiting_calls(steps):
    """A bucket with continuous demand grants its full rate."""
    bucket = Bucket.full("tokens", rate=10, capacity=100, now=0)
    now, granted = 0.0, 0.0
    for _, tokens in steps:
        cost = Cost(input_tokens=min(tokens, 100))
        now = bucket.ready_at(cost, now)
        bucket.spend(cost, now)
        granted += cost.input_tokens
    assert granted == pytest.approx(100 + 10 * now - bucket.fill(now), abs=0.1)


def test_oversized_call_is_sent_when_the_bucket_is_full():
    """A call larger than the bucket is sent when the bucket is full. Later calls wait for the debt."""
    bucket = Bucket.full("tokens", rate=1, capacity=10, now=0)
    huge = Cost(input_tokens=30)
    assert bucket.ready_at(huge, 0) == 0
    bucket.spend(huge, 0)
    assert bucket.ready_at(Cost(input_tokens=1), 0) == pytest.approx(21)


def test_limits_by_the_day_are_found_in_their_headers():
    """A limit of 14,400 that refills 30 requests in 180 s is a daily limit and gives its daily rate."""
    spent = Reading("requests", 14_400, 14_400 - 7_200, 43_200)
    assert spent.rate(default=240) == pytest.approx(1 / 6)
    hardly = Reading("requests", 14_400, 14_370, 180)
    assert hardly.rate(default=240) == 240


def test_openai_headers_are_parsed():
    """Durations have Go's format. A missing limit gives no reading."""
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1h6m0.5s",
    }
    assert read_limits(headers) == [Reading("requests", 60, 59, 1.0), Reading("tokens", 150_000, 0, 3960.5)]


def test_anthropic_headers_are_parsed():
    """Reset times have RFC 3339 format. The general token limit repeats the tighter of input and output."""
    later = datetime.now(UTC) + timedelta(seconds=30.5)
    headers = {
        f"anthropic-ratelimit-{kind}-{word}": text
        for kind in ("requests", "input-tokens", "output-tokens", "tokens")
        for word, text in (("limit", "1000"), ("remaining", "100"), ("reset", later.isoformat()))
    }
    found = read_limits(headers)
    assert [reading.kind for reading in found] == ["requests", "input-tokens", "output-tokens"]
    assert all(reading.reset == pytest.approx(30.5, abs=5) for reading in found)


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "inf", "1x", "6m ago", "9" * 400])
def test_invalid_headers_give_no_limits(text):
    """Invalid header values give no limit and raise nothing."""
    names = ("limit", "remaining", "reset")
    openai = {f"x-ratelimit-{name}-requests": text for name in names}
    anthropic = {f"anthropic-ratelimit-requests-{name}": text for name in names}
    assert read_limits(openai | anthropic) == []
    assert read_limits({"x-ratelimit-limit-requests": "0", "x-ratelimit-remaining-requests": "0"}) == []
    told = {
        "x-ratelimit-limit-tokens": "5",
        "x-ratelimit-remaining-tokens": "9",
        "x-ratelimit-reset-tokens": text,
    }
    assert [(reading.remaining, reading.reset) for reading in read_limits(told)] == [(5, None)]
