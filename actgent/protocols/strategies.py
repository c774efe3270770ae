"""How the `react` protocol chooses between its two modes, once a turn."""

import abc
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import attrs

from actgent.messages import Message

from .base import View

Mode = Literal["direct", "react"]

_READ_CHARACTERS = 4_000
Patterns = Sequence[tuple[str, float]]
"""Regular expressions (any case) and what each adds when it is found."""

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
    """Chooses a mode from what a session holds. Pure: the same view gives the same mode."""

    lookback: ClassVar[int | None] = None
    """See `Protocol.lookback`."""

    @abc.abstractmethod
    def choose(self, view: View) -> Mode:
        """`direct` to answer at once, `react` to reason and use tools first."""


class KeywordStrategy(Strategy):
    """`react` when the weights of the patterns found in the turn's first message reach a threshold."""

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
        """The weights of the patterns found in the first 4,000 characters, each once."""
        text = text[:_READ_CHARACTERS]
        return sum(weight for pattern, weight in self._weights if pattern.search(text))

    def choose(self, view: View) -> Mode:
        return "react" if self.score(turn_begin(view).text) >= self.threshold else "direct"


@attrs.frozen
class AutoSwitching(Strategy):
    """`react` also for a plain message, once the last messages of the session show work that goes on."""

    inner: Strategy = attrs.field(factory=KeywordStrategy)
    threshold: int = 3
    """Tool results among the last messages that make it work."""
    window: int = 20
    """How many messages count as the last."""

    @property
    def lookback(self) -> int | None:  # type: ignore[override]
        return None if self.inner.lookback is None else max(self.window, self.inner.lookback)

    def choose(self, view: View) -> Mode:
        recent = list(view.record[-self.window :])
        if sum(len(message.tool_results) for message in recent) >= self.threshold:
            return "react"
        return self.inner.choose(view)


@attrs.frozen
class UserPreference(Strategy):
    """What the session's state says, e.g. because the user chose it; another strategy where it says nothing."""

    inner: Strategy = attrs.field(factory=KeywordStrategy)
    key: str = "mode"

    @property
    def lookback(self) -> int | None:  # type: ignore[override]
        return self.inner.lookback

    def choose(self, view: View) -> Mode:
        wanted = view.state.get(self.key)
        return wanted if wanted in ("direct", "react") else self.inner.choose(view)


def turn_begin(view: View) -> Message:
    """The outside message that began the turn, so that all passes of a turn choose alike."""
    begin = view.message.correlation_id
    if begin is None or begin == view.message.id:
        return view.message
    return next((message for message in reversed(view.record) if message.id == begin), view.message)
