"""Arithmetic by a parser of its own: numbers, + - * / and parentheses, and no functions."""

import re
from decimal import Context
from fractions import Fraction

import attrs

from actgent.errors import ToolError
from actgent.tools.function import tool

LONGEST = 1000
"""Characters of an expression."""
DEEPEST = 50
"""Parentheses and signs in one another."""
_TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]*)?|\.[0-9]+)|([A-Za-z_]\w*)|(\S))")
_DIGITS = Context(prec=28)


@tool(thread=False, effect="pure")
def calculator(expression: str) -> str:
    """Calculate an expression of numbers, + - * / and parentheses, such as (2 + 3) * 4 / 7.

    Args:
        expression: What to calculate.
    """
    if len(expression) > LONGEST:
        raise _error(f"the expression is longer than {LONGEST} characters")
    parser = _Parser(_tokens(expression))
    value = parser.sum(0)
    if (rest := parser.peek()) is not None:
        raise _error(f"{rest!r} is not expected there")
    return _written(value)


def _tokens(expression: str) -> list[str]:
    found = []
    for match in _TOKEN.finditer(expression):
        number, name, sign = match.groups()
        if name:
            raise _error(f"Function {name} is disabled")
        if sign and sign not in "+-*/()":
            raise _error(f"{sign!r} is not known")
        found.append(number or sign)
    return found


@attrs.define
class _Parser:
    """Reads a sum of products of numbers, signs and parentheses; exact, as fractions."""

    tokens: list[str]
    place: int = 0

    def peek(self) -> str | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def take(self) -> str:
        token = self.peek()
        if token is None:
            raise _error("the expression ends too early")
        self.place += 1
        return token

    def sum(self, depth: int) -> Fraction:
        value = self.product(depth)
        while self.peek() in ("+", "-"):
            value = value + self.product(depth) if self.take() == "+" else value - self.product(depth)
        return value

    def product(self, depth: int) -> Fraction:
        value = self.factor(depth)
        while self.peek() in ("*", "/"):
            if self.take() == "*":
                value *= self.factor(depth)
            elif divisor := self.factor(depth):
                value /= divisor
            else:
                raise _error("division by zero")
        return value

    def factor(self, depth: int) -> Fraction:
        if depth > DEEPEST:
            raise _error(f"it is nested deeper than {DEEPEST} levels")
        sign = self.take()
        if sign in ("+", "-"):
            value = self.factor(depth + 1)
            return -value if sign == "-" else value
        if sign == "(":
            value = self.sum(depth + 1)
            if self.take() != ")":
                raise _error("a parenthesis is not closed")
            return value
        if sign[0] in "*/)":
            raise _error(f"{sign!r} is not expected there")
        return Fraction(sign)


def _written(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    return str(_DIGITS.divide(_DIGITS.create_decimal(value.numerator), value.denominator))


def _error(reason: str) -> ToolError:
    return ToolError(f"Calculation error: {reason}")
