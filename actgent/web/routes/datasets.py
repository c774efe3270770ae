"""Endpoints of evaluation datasets: files of cases, their evaluations, and sessions that become cases."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from actgent.errors import SessionExists, UsageError
from actgent.web import json_response_types
from actgent.web.gateway_interface import Datasets
from actgent.web.problem_documents import Problem, missing

from .common_request_schemas import LOCATION
from .endpoints import ANY_NODE, JSON, Endpoint, HTTPCall

MAX_EXPECTED_CHARS = 1_000_000
"""Maximum length of an expected answer in characters."""
_VERSION = {
    "type": "string",
    "minLength": 1,
    "maxLength": 100,
    "description": "Version of the case that is changed, as the list of cases has it.",
}


async def list_datasets(call: HTTPCall) -> JSON[json_response_types.DatasetPage]:
    """List the evaluation datasets of the server, each with its latest evaluation. The server needs the option `--datasets`."""
    datasets = call.gateway.datasets
    items = () if datasets is None else await datasets.datasets()
    return JSON({"items": items, "next": None, "is_enabled": datasets is not None})


async def get_dataset_cases(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.DatasetCase]]:
    """List the evaluation cases of a dataset, in the order of its file."""
    found = await _datasets_of(call).cases(call.path["d"])
    if found is None:
        raise missing()
    return JSON({"items": found, "next": None})


async def add_dataset_case(call: HTTPCall) -> JSON[json_response_types.DatasetCase]:
    """Append a session as an evaluation case to a dataset. A missing dataset is created.

    The name of the case is the id of the session, with `message_id` followed by `/` and that id. The status is 200 if the
    dataset already has this case, and 409 if it has a different case with this name.
    """
    datasets, access = _datasets_of(call), call.gateway.access
    head = await access.head(call.caller, call.body["session_id"], call.body.get("agent"))
    options = {name: call.body[name] for name in ("message_id", "expected") if name in call.body}
    try:
        case, is_new = await datasets.add_session(
            call.path["d"], access.journal, head.agent, head.session_id, **options
        )
    except SessionExists:
        raise Problem(
            "conflict", "the dataset has a different case with this name: edit or remove that case"
        ) from None
    return JSON(
        case, status_code=201 if is_new else 200, headers={"Location": f"/v1/datasets/{call.path['d']}/cases"}
    )


async def replace_dataset_case(call: HTTPCall) -> JSON[json_response_types.DatasetCase]:
    """Replace the content of an evaluation case. The new content may change its name.

    The status is 409 if the case was changed since `version` was read, or if another case has the new name.
    """
    return JSON(await _change_case(call, call.body["version"], call.body["case"]))


async def remove_dataset_case(call: HTTPCall) -> Response:
    """Remove an evaluation case from a dataset. The status is 409 if the case was changed since `version` was read."""
    await _change_case(call, call.query["version"], None)
    return Response(status_code=204)


async def _change_case(call: HTTPCall, version: str, case: Mapping[str, Any] | None) -> Any:
    """Replace the case that the URL names and return it. If `case` is None, remove the case and return None."""
    try:
        return await _datasets_of(call).replace_case(call.path["d"], call.path["case"], version, case)
    except LookupError:
        raise missing() from None
    except UsageError as error:
        raise Problem("conflict", str(error)) from None


async def list_evaluations(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.EvaluationSummary]]:
    """List the evaluations of a dataset, the latest first."""
    found = await _datasets_of(call).evaluations(call.path["d"])
    if found is None:
        raise missing()
    return JSON({"items": found, "next": None})


async def get_evaluation(call: HTTPCall) -> JSON[json_response_types.Evaluation]:
    """Get the results of an evaluation for each case and variant, compared with the previous evaluation."""
    found = await _datasets_of(call).evaluation(call.path["d"], call.path["evaluation"])
    if found is None:
        raise missing()
    return JSON(found)


def _datasets_of(call: HTTPCall) -> Datasets:
    """Return the evaluation datasets of the gateway.

    Raises:
        Problem: The gateway was opened without datasets.
    """
    datasets = call.gateway.datasets
    if datasets is None:
        raise Problem("invalid", "the server has no datasets: start it with --datasets FOLDER")
    return datasets


ENDPOINTS = (
    Endpoint(verb="GET", path="/datasets", answer=list_datasets, scope="admin", forwarding=ANY_NODE),
    Endpoint(
        verb="GET", path="/datasets/{d}/cases", answer=get_dataset_cases, scope="admin", forwarding=ANY_NODE
    ),
    Endpoint(
        verb="POST",
        path="/datasets/{d}/cases",
        answer=add_dataset_case,
        scope="admin",
        body={
            "type": "object",
            "properties": {
                "session_id": {"type": "string", "minLength": 1, "examples": ["order-17"]},
                "agent": {"type": "string", "description": "Agent of the session."},
                "message_id": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 200,
                    "description": "Last message of the case; by default the case has the whole session.",
                },
                "expected": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": MAX_EXPECTED_CHARS,
                    "description": "Expected answer; by default the recorded answer, or the correction of its rating.",
                },
            },
            "required": ["session_id"],
            "additionalProperties": False,
        },
        statuses=(201, 200),
        answer_headers=LOCATION,
        forwarding=ANY_NODE,
    ),
    Endpoint(
        verb="PUT",
        path="/datasets/{d}/cases/{case}",
        answer=replace_dataset_case,
        scope="admin",
        body={
            "type": "object",
            "properties": {
                "version": {**_VERSION, "examples": ["0f3c5a1b2d4e6f70"]},
                "case": {
                    "type": "object",
                    "additionalProperties": True,
                    "description": "New content of the case, as `actgent eval` reads it.",
                    "examples": [{"name": "greeting", "input": "Hi", "expected": "Hello"}],
                },
            },
            "required": ["version", "case"],
            "additionalProperties": False,
        },
        forwarding=ANY_NODE,
    ),
    Endpoint(
        verb="DELETE",
        path="/datasets/{d}/cases/{case}",
        answer=remove_dataset_case,
        scope="admin",
        query={"version": _VERSION},
        required_query=("version",),
        statuses=(204, 409),
        forwarding=ANY_NODE,
    ),
    Endpoint(
        verb="GET",
        path="/datasets/{d}/evaluations",
        answer=list_evaluations,
        scope="admin",
        forwarding=ANY_NODE,
    ),
    Endpoint(
        verb="GET",
        path="/datasets/{d}/evaluations/{evaluation}",
        answer=get_evaluation,
        scope="admin",
        forwarding=ANY_NODE,
    ),
)
