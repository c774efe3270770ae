"""The calculator and clock tools, including hostile expressions and time zones."""

import datetime as dt

import pytest

from actgent.errors import ToolError
from actgent.toolsets.builtin import calculator, current_time


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("2 + 2", "4"),
        ("10 / 2", "5"),
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4", "20"),
        ("((2 + 3) * 4) / 2", "10"),
        ("-3 - -4", "1"),
        ("0.1 + 0.2", "0.3"),
        ("1 / 3", "0.3333333333333333333333333333"),
        ("7 - 2 - 1", "4"),
        ("8 / 2 / 2", "2"),
        ("9" * 400 + " * 10", "9" * 400 + "0"),
    ],
)
def test_results_are_exact_with_the_usual_precedence(expression, result):
    assert calculator(expression) == result


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("sin(45)", "Calculation error: Function sin is disabled"),
        ("cos(1)", "Function cos is disabled"),
        ("tan(1)", "Function tan is disabled"),
        ("derivative(1)", "Function derivative is disabled"),
        ("integrate(1)", "Function integrate is disabled"),
        ("__import__('os')", "disabled"),
        ("9 ** 9 ** 9", "unexpected"),
        ("1 / 0", "division by zero"),
        ("1 / (2 - 2)", "division by zero"),
        ("", "unexpected end"),
        ("2 +", "unexpected end"),
        ("(2", "unexpected end"),
        ("(2 3)", "not closed"),
        ("2 3", "unexpected"),
        (")", "unexpected"),
        ("2 ^ 3", "unknown symbol"),
        ("1; 2", "unknown symbol"),
        ("\u0661 + 1", "unknown symbol"),
        ("(" * 900, "nested deeper"),
        ("-" * 900 + "1", "nested deeper"),
        ("1" * 5000, "more than"),
        ("2 \x00", "unknown symbol"),
    ],
)
def test_unsupported_expressions_are_rejected(expression, expected):
    """Cases: functions, powers, other operators, and expressions that are too long or too deep."""
    with pytest.raises(ToolError, match=expected):
        calculator(expression)


def test_current_time_has_the_offset_of_the_zone():
    """The time has the current offset of the zone."""
    told = current_time("Asia/Kathmandu")
    when = dt.datetime.fromisoformat(told["time"])
    assert when.utcoffset() == dt.timedelta(hours=5, minutes=45)
    assert abs(when - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)
    assert current_time()["zone"] == "UTC"


@pytest.mark.parametrize(
    "zone", ["", "Nowhere", "../../etc/passwd", "/etc/passwd", "a\x00b", "x" * 10_000, "Europe"]
)
def test_unknown_time_zones_are_rejected(zone):
    """Unknown zone names are rejected and open no file."""
    with pytest.raises(ToolError, match="unknown time zone"):
        current_time(zone)
