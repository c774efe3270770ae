"""Dates in queries: memories of the named month are ranked first."""

from datetime import UTC, datetime

import pytest

from actgent.memory.longterm.months_in_questions import named_months
from actgent.memory.longterm.recall_ranking import PERIOD_FACTOR, raise_dated_scores


def at(year, month, day=1):
    return datetime(year, month, day, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "question",
    [
        "Where was Ada in December 2023?",
        "Where was Ada on December 24, 2023?",
        "Where was Ada on 24th of december 2023?",
        "Where was Ada on Dec. 24th, 2023?",
        "Where was Ada on 2023-12-24?",
        "Where was Ada in 2023-12?",
    ],
    ids=["month", "day", "british", "short", "iso", "iso month"],
)
def test_date_in_a_query_selects_its_month(question):
    assert named_months(question) == ((at(2023, 12), at(2024, 1)),)


def test_all_months_of_a_question_are_returned_once():
    question = "What changed between 2 May 2023, May 2023 and January 2024?"
    assert named_months(question) == ((at(2023, 5), at(2023, 6)), (at(2024, 1), at(2024, 2)))


@pytest.mark.parametrize(
    "question",
    [
        "Where was Ada in May?",
        "What happened in 2023?",
        "Is order 2023-13-01 paid?",
        "May 0000",
        "9999-12-31",
        "The decoy of 123456-01",
        "The decade 2020",
    ],
    ids=["no year", "no month", "month 13", "year 0", "last year", "longer number", "other word"],
)
def test_other_texts_select_no_month(question):
    assert named_months(question) == ()


def test_memories_of_the_period_have_a_higher_score():
    assert raise_dated_scores({1: 10, 2: 20}, {1}) == {1: 10 * PERIOD_FACTOR, 2: 20}


async def test_memories_of_the_named_month_come_first(memories, clock):
    """The month of creation decides between memories with the same words. Others are still found."""
    for month in (3, 8, 5):
        clock.time = at(2023, month, 31)
        await memories.remember(f"Ada visited a city, number {month}", owner="ada")
    clock.time = at(2026, 1)
    for month, name in ((3, "March"), (8, "August")):
        found = await memories.recall(f"Which city did Ada visit in {name} 2023?", owner="ada")
        assert found[0].memory.text == f"Ada visited a city, number {month}"
        assert len(found) == 3
