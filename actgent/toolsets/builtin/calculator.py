"""Calculator tool with its own parser: numbers, + - * / and parentheses, without functions."""

import re
from decimal import Context
from fractions import Fraction

import attrs

from actgent.errors import ToolError
from actgent.tools.function_tool import tool

MAX_EXPRESSION_CHARACTERS = 1000
"""Maximum length of an expression in characters."""
MAX_DEPTH = 50
"""Maximum nesting of parentheses and signs."""
_TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]*)?|\.[0-9]+)|([A-Za-z_]\w*)|(\S))")
_DIGITS = Context(prec=28)


@tool(thread=False, effect="pure")
def calculator(expression: str) -> str:
    """Calculate an expression of numbers, + - * / and parentheses, such as (2 + 3) * 4 / 7.

    Args:
        expression: The expression to calculate.
    """
    if len(expression) > MAX_EXPRESSION_CHARACTERS:
        raise _error(f"the expression has more than {MAX_EXPRESSION_CHARACTERS} characters")
    parser = _Parser(_tokens(expression))
    value = parser.sum(0)
    if (rest := parser.peek()) is not None:
        raise _error(f"unexpected {rest!r} after the end of the expression")
    return _format_number(value)


def _tokens(expression: str) -> list[str]:
    found = []
    for match in _TOKEN.finditer(expression):
        number, name, sign = match.groups()
        if name:
            raise _error(f"Function {name} is disabled")
        if sign and sign not in "+-*/()":
            raise _error(f"unknown symbol {sign!r}")
        found.append(number or sign)
    return found


@attrs.define
class _Parser:
    """Recursive-descent parser that computes exact fractions."""

    tokens: list[str]
    """Tokens of the expression."""
    index: int = 0
    """Index of the next token."""

    def peek(self) -> str | None:
        """Return the next token without consuming it; None at the end."""
        return self.tokens[self.index] if self.index < len(self.tokens) else None

    def consume(self) -> str:
        """Consume and return the next token."""
        token = self.peek()
        if token is None:
            raise _error("unexpected end of the expression")
        self.index += 1
        return token

    def sum(self, depth: int) -> Fraction:
        """Parse a sum from the next token on, and return its value. `depth` counts enclosing parentheses and signs."""
        value = self.product(depth)
        while self.peek() in ("+", "-"):
            value = value + self.product(depth) if self.consume() == "+" else value - self.product(depth)
        return value

    def product(self, depth: int) -> Fraction:
        """Parse a product from the next token on, and return its value. `depth` counts enclosing parentheses and signs."""
        value = self.factor(depth)
        while self.peek() in ("*", "/"):
            if self.consume() == "*":
                value *= self.factor(depth)
            elif divisor := self.factor(depth):
                value /= divisor
            else:
                raise _error("division by zero")
        return value

    def factor(self, depth: int) -> Fraction:
        """Parse a number, a signed factor or an expression in parentheses, and return its value."""
        if depth > MAX_DEPTH:
            raise _error(f"the expression is nested deeper than {MAX_DEPTH} levels")
        sign = self.consume()
        if sign in ("+", "-"):
            value = self.factor(depth + 1)
            return -value if sign == "-" else value
        if sign == "(":
            value = self.sum(depth + 1)
            if self.consume() != ")":
                raise _error("a parenthesis is not closed")
            return value
        if sign[0] in "*/)":
            raise _error(f"unexpected {sign!r}")
        return Fraction(sign)


def _format_number(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    return str(_DIGITS.divide(_DIGITS.create_decimal(value.numerator), value.denominator))


def _error(reason: str) -> ToolError:
    return ToolError(f"Calculation error: {reason}")
