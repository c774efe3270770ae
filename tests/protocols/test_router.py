"""Text that `router` accepts as prose for a reader."""

import pytest

from actgent.errors import ParseError
from actgent.protocols.router_protocol import Router

from .conftest import read


@pytest.mark.parametrize("before", ["", "Sure! ", "<answer>", "// so\n", "~~~json\n", "> "])
@pytest.mark.parametrize(
    "form",
    [
        "{top_level_intent: CONVERSATION, response: hello",
        r"{\"top_level_intent\": \"CONVERSATION\", \"response\": \"hello\"}",
        "{&quot;top_level_intent&quot;: &quot;ACTION&quot;}",
        'second_level_intent": "refund", "data": {',
    ],
)
def test_unreadable_form_is_not_prose(before, form):
    """The form in an unreadable spelling is retried and never shown."""
    with pytest.raises(ParseError):
        read(Router(), before + form)
