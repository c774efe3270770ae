"""Strategies with which the `react` protocol chooses its mode for each turn: answer directly, or reason first."""

import abc
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import attrs

from actgent.messages import Message

from .protocol_interface import TurnView

Mode = Literal["direct", "react"]

_MAX_SCORED_CHARS = 4_000
Patterns = Sequence[tuple[str, float]]
"""Pairs of a regular expression (case-insensitive) and the weight that a match adds to the score."""

ENGLISH: Patterns = (
    (r"\b(?:step[- ]by[- ]step|first\b.{0,200}?\bthen|plan|strategy|workflow)\b", 2.0),
    (r"\b(?:analy[sz]e|compare|evaluate|investigate|debug|optimi[sz]e|refactor|research)\w*", 2.0),
    (r"\b(?:calculate|compute|estimate|convert|search|look up|find out|fetch|download)\b", 1.5),
    (r"\b(?:why|how (?:do|does|can|would|should|many|much))\b", 1.0),
    (r"\b(?:because|depends?|trade-?offs?|pros and cons|on the other hand)\b", 1.0),
    (r"\b(?:and then|after that|as well as|finally|in addition)\b", 1.0),
    (r"\d[\d.,]*\s*[-+*/×÷^%]\s*\d", 1.0),
)
CHINESE: Patterns = (
    (r"一步一步|逐步|步骤|首先.{0,200}?然后|计划|方案|流程|策略", 2.0),
    (r"分析|比较|对比|评估|调查|调试|优化|重构|研究", 2.0),
    (r"计算|估算|换算|搜索|查询|查找|下载", 1.5),
    (r"为什么|怎么|如何|多少", 1.0),
    (r"因为|取决于|权衡|优缺点|利弊|另一方面", 1.0),
    (r"并且|接着|之后|最后|此外|同时", 1.0),
)
PATTERNS: Mapping[str, Patterns] = {"en": ENGLISH, "zh": CHINESE}


class Strategy(abc.ABC):
    """Base class of strategies that choose the mode of a turn, `direct` or `react`, from a view of the session.

    Equal views must give equal modes.
    """

    lookback: ClassVar[int | None] = None
    """Number of messages before the running turn that the strategy reads; None reads all messages."""

    @abc.abstractmethod
    def choose(self, view: TurnView) -> Mode:
        """Return `direct` to answer immediately, or `react` to reason and use tools first."""


class KeywordStrategy(Strategy):
    """Strategy that chooses `react` if the patterns in the turn's first message weigh at least `threshold` in total."""

    lookback = 0

    def __init__(
        self,
        patterns: Mapping[str, Patterns] = PATTERNS,
        *,
        languages: Sequence[str] = ("en", "zh"),
        threshold: float = 2,
    ) -> None:
        chosen = [pair for language in languages for pair in patterns[language]]
        self.threshold = threshold
        self._weights = [
            (re.compile(pattern, re.IGNORECASE | re.DOTALL), weight) for pattern, weight in chosen
        ]

    def score(self, text: str) -> float:
        """Return the total weight of the patterns that match in the first 4,000 characters.

        A pattern with several matches counts once.
        """
        text = text[:_MAX_SCORED_CHARS]
        return sum(weight for pattern, weight in self._weights if pattern.search(text))

    def choose(self, view: TurnView) -> Mode:
        return "react" if self.score(turn_begin(view).text) >= self.threshold else "direct"


@attrs.frozen
class AutoSwitching(Strategy):
    """Strategy that chooses `react` if the last messages contain many tool results; otherwise another strategy decides."""

    inner: Strategy = attrs.field(factory=KeywordStrategy)
    threshold: int = 3
    """Minimum number of tool results in the last messages at which the protocol `react` is used."""
    window: int = 20
    """Number of last messages to examine."""

    @property
    def lookback(self) -> int | None:  # type: ignore[override]
        return None if self.inner.lookback is None else max(self.window, self.inner.lookback)

    def choose(self, view: TurnView) -> Mode:
        recent = list(view.record[-self.window :])
        if sum(len(message.tool_results) for message in recent) >= self.threshold:
            return "react"
        return self.inner.choose(view)


@attrs.frozen
class UserPreference(Strategy):
    """Strategy that chooses the mode in the session's state under `key`; without a valid mode, another strategy decides."""

    inner: Strategy = attrs.field(factory=KeywordStrategy)
    key: str = "mode"

    @property
    def lookback(self) -> int | None:  # type: ignore[override]
        return self.inner.lookback

    def choose(self, view: TurnView) -> Mode:
        mode = view.state.get(self.key)
        return mode if mode in ("direct", "react") else self.inner.choose(view)


def turn_begin(view: TurnView) -> Message:
    """Return the user's message that began the turn. All model calls of the turn choose the mode of this message."""
    begin = view.message.correlation_id
    if begin is None or begin == view.message.id:
        return view.message
    return next((message for message in reversed(view.record) if message.id == begin), view.message)
