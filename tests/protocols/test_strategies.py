"""The mode of `react`: chosen once per turn, and written at the end of the prompt."""

import pytest

from actgent.messages import Message, Sender, Text, ToolResult
from actgent.protocols.direct_or_react_choice import AutoSwitching, KeywordStrategy, Strategy, UserPreference
from actgent.protocols.prompt_rendering import PromptManager
from actgent.protocols.protocol_interface import Profile
from actgent.protocols.react_protocol import ReAct

from .conftest import view

PLAIN, HARD = "Hello there", "Compare the two plans step by step"


def message(*parts, **fields):
    return Message(session_id="s", sender=Sender("ada"), parts=parts, **fields)


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        (PLAIN, "direct"),
        ("What is your name?", "direct"),
        ("Thanks!", "direct"),
        ("你好", "direct"),
        (HARD, "react"),
        ("Why is it so, and how does it depend on heat?", "react"),
        ("Look up the price and then convert it", "react"),
        ("请逐步分析这个问题", "react"),
        ("查询价格并且计算总和", "react"),
        ("", "direct"),
    ],
)
def test_matching_keywords_select_the_mode(text, mode):
    """The weights of the matching patterns in English and Chinese are compared with the threshold."""
    assert KeywordStrategy().choose(view(text)) == mode


def test_keyword_patterns_can_be_customized():
    """Patterns, languages and threshold are arguments. Each pattern counts once."""
    strategy = KeywordStrategy({"de": [("warum", 1.0), ("vergleiche", 1.0)]}, languages=["de"])
    assert strategy.score("Warum? WARUM?") == 1
    assert strategy.choose(view("Vergleiche! Warum?")) == "react"
    assert KeywordStrategy(threshold=9).choose(view(HARD)) == "direct"


def test_mode_is_chosen_once_per_turn():
    """The first message of the turn determines the mode. The tool results after it have no effect."""
    begin = message(Text(HARD))
    results = message(ToolResult(call_id="c", tool_name="t", content="ok"), correlation_id=begin.id)
    assert KeywordStrategy().choose(view(message=results, record=[begin, results])) == "react"


def test_session_with_many_tool_results_keeps_react():
    """A session with many tool results keeps the mode `react`."""
    plain = message(Text(PLAIN))
    results = message(*(ToolResult(call_id=str(n), tool_name="t") for n in range(3)))
    assert AutoSwitching().choose(view(message=plain, record=[plain])) == "direct"
    assert AutoSwitching().choose(view(message=plain, record=[results, plain])) == "react"
    assert AutoSwitching(window=1).choose(view(message=plain, record=[results, plain])) == "direct"


def test_strategy_declares_how_many_messages_it_reads():
    """A reopened session loads as many messages as the inner strategy and the window need."""

    class Everything(Strategy):
        def choose(self, view):
            return "direct"

    near, far = AutoSwitching(window=5), AutoSwitching(Everything())
    assert [ReAct(each).lookback for each in (KeywordStrategy(), near, far)] == [0, 5, None]
    assert [ReAct(UserPreference(each)).lookback for each in (KeywordStrategy(), near, far)] == [0, 5, None]
    assert AutoSwitching(AutoSwitching(window=9), window=5).lookback == 9


def test_mode_in_the_state_has_priority():
    """A mode in the session's state has priority."""
    assert UserPreference().choose(view(PLAIN, state={"mode": "react"})) == "react"
    assert UserPreference(key="style").choose(view(HARD, state={"style": "direct"})) == "direct"
    assert UserPreference().choose(view(HARD, state={"mode": "whatever"})) == "react"


def test_mode_changes_only_the_end_of_the_prompt():
    """The mode changes the end of the prompt and never the system prompt."""

    class Always(Strategy):
        def choose(self, view):
            return "react"

    assert "COMPLEX" in ReAct(Always()).request(view(PLAIN)).tail
    assert "SIMPLE" in ReAct().request(view(PLAIN)).tail
    prompts = {PromptManager(protocol, Profile()).system_prompt() for protocol in (ReAct(), ReAct(Always()))}
    assert len(prompts) == 1
