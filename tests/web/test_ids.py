"""Ids that clients choose."""

import re

import jsonschema_rs
import pytest
from hypothesis import given, strategies as st

from actgent.tools.schemas.schema_validation import is_backtracking
from actgent.web.problem_documents import Problem
from actgent.web.routes.common_request_schemas import CLIENT_ID, ID, check_client_id

_SAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,128}\Z")
"""The same pattern written with a lookahead."""


@given(
    st.text(".", max_size=4),
    st.text("aZ09_-./ \nä", max_size=4),
    st.sampled_from([0, 1, 120, 122, 123, 124, 125, 126, 127, 128, 129]),
)
def test_client_ids_are_url_safe_and_at_most_128_characters(dots, text, more):
    """The check of a header and the schema of a body agree."""
    given_id = dots + text + more * "x"
    fits = _SAME.match(given_id) is not None
    assert jsonschema_rs.is_valid(ID, given_id) == fits
    if fits:
        assert check_client_id("key", given_id) == given_id
    else:
        with pytest.raises(Problem, match="128"):
            check_client_id("key", given_id)


def test_ids_are_checked_in_linear_time():
    """The pattern does not backtrack, so request bodies need no limit on the work of validation."""
    assert not is_backtracking(CLIENT_ID)
