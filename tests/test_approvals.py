"""Approval requests: their ids, their fields, and the allowed decisions."""

import attrs
import pytest
from hypothesis import given, strategies as st

from actgent import ApprovalRequest, Approve, ConfigurationError, Edit, Reject
from actgent.approvals import Approval, approval_id, session_of

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=3), plain, max_size=3)


def approval(session_id="s", call_id="c", tool_name="pay", arguments=None, question=""):
    """Return an approval as an agent creates it."""
    arguments = {} if arguments is None else arguments
    made = approval_id(session_id, call_id, tool_name, arguments, question)
    return Approval(
        id=made,
        session_id=session_id,
        agent="a",
        call_id=call_id,
        tool_name=tool_name,
        arguments=arguments,
        question=question,
    )


@given(
    session_id=st.text(min_size=1), call_id=st.text(), tool=st.text(), arguments=objects, question=st.text()
)
def test_approval_id_contains_session_and_digest(session_id, call_id, tool, arguments, question):
    """The id has both for any characters in the ids and any order of the arguments."""
    asked = approval(session_id, call_id, tool, arguments, question)
    assert session_of(asked.id) == session_id
    assert asked.is_genuine
    turned = dict(reversed(list(arguments.items())))
    assert approval(session_id, call_id, tool, turned, question).id == asked.id


@pytest.mark.parametrize(
    "change",
    [
        {"session_id": "t"},
        {"call_id": "d"},
        {"tool_name": "store"},
        {"arguments": {"n": 2}},
        {"arguments": {"n": 1.0}},
        {"arguments": {"n": True}},
        {"question": "Really?"},
    ],
)
def test_approval_id_is_valid_for_one_call(change):
    """A different session, call, tool, argument or question has a different approval id."""
    asked = approval(arguments={"n": 1})
    assert asked.is_genuine
    assert not attrs.evolve(asked, **change).is_genuine


def test_invalid_approval_id_contains_no_session():
    """A text that is not an approval id contains no session id. An example is the text of a tool."""
    assert session_of("Yes, confirmed") == ""


@pytest.mark.parametrize(
    ("kind", "values", "named"),
    [
        (ApprovalRequest, {"question": 3}, "question="),
        (ApprovalRequest, {"form": "text"}, "form="),
        (ApprovalRequest, {"timeout": 0}, "timeout="),
        (ApprovalRequest, {"timeout": float("inf")}, "timeout="),
        (Approve, {"reason": None}, "reason="),
        (Reject, {"reason": 3}, "reason="),
        (Edit, {"arguments": "text"}, "arguments="),
    ],
)
def test_inconsistent_fields_are_rejected(kind, values, named):
    """The error names the field."""
    with pytest.raises(ConfigurationError, match=named):
        kind(**values)
