"""Conversion of approvals to forms that MCP and ACP clients show (`elicitation/create`), and of answers to decisions."""

import json
from collections.abc import Mapping
from typing import Any

from actgent.approvals import Approval, Approve, Decision, Reject, Respond
from actgent.errors.text_escaping import shown

ANSWER = "answer"
"""Name of the form field for an answer that is not an object."""
APPROVE = "approve"
"""Name of the form field that approves or rejects."""
_APPROVAL_FORM: Mapping[str, Any] = {
    "type": "object",
    "properties": {APPROVE: {"type": "boolean", "title": "Approve", "description": "Run the tool"}},
    "required": [APPROVE],
}


def question_text(approval: Approval) -> str:
    """Return the question of an approval; if it has none, a default question with the name of the tool.

    If the call depends on untrusted text, the text also has the arguments. Clients may show no arguments, or with isolation the
    references (such as `@r3`) that the model wrote in place of untrusted values.
    """
    question = approval.question or f"Run {approval.tool_name}?"
    if not approval.sources:
        return question
    values = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in approval.arguments.items()
    )
    call = f"{approval.tool_name}({values})"
    return f"{question} The call is {shown(call, len(call))}"


def form_of(approval: Approval) -> dict[str, Any]:
    """Return the JSON Schema of the form with which a user decides an approval.

    A schema that is not of an object is wrapped in an object.
    """
    form = approval.form
    if form is None:
        if approval.again:
            return dict(_APPROVAL_FORM)
        form = {"type": "string"}
    return dict(form) if _is_object(form) else _wrapped(form)


def decision_of(approval: Approval, action: object, content: object) -> Decision | None:
    """Convert a client's answer to a form to a decision; None if the user has not decided.

    Args:
        approval: Approval for which the form was shown.
        action: Action of the user: `accept`, `decline` or `cancel`.
        content: Values of the form's fields, for `accept`.
    """
    if action == "decline":
        return Reject("the user has rejected it")
    if action != "accept":
        return None
    values = content if isinstance(content, Mapping) else {}
    if approval.again and approval.form is None:
        return Approve() if values.get(APPROVE) is True else Reject("the user has rejected it")
    value = values if approval.form is not None and _is_object(approval.form) else values.get(ANSWER, "")
    return Approve(content=values) if approval.again else Respond(value)


def _is_object(form: Mapping[str, Any]) -> bool:
    return form.get("type") == "object" or "properties" in form


def _wrapped(form: Mapping[str, Any]) -> dict[str, Any]:
    member = dict(form) if "type" in form else {"type": "string", **form}
    return {"type": "object", "properties": {ANSWER: member}, "required": [ANSWER]}
