"""Endpoints of evaluation datasets: files of cases, their evaluations, and sessions that become cases."""

from actgent.errors import SessionExists
from actgent.web import json_response_types
from actgent.web.gateway_interface import Datasets
from actgent.web.problem_documents import Problem, missing

from .endpoints import ANY_NODE, JSON, Endpoint, HTTPCall
from .shared_schemas import LOCATION

MAX_EXPECTED_CHARS = 1_000_000
"""Maximum length of an expected answer in characters."""


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
            "conflict", "the dataset has a different case with this name: edit the case in the dataset's file"
        ) from None
    return JSON(
        case, status_code=201 if is_new else 200, headers={"Location": f"/v1/datasets/{call.path['d']}/cases"}
    )


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
        verb="GET",
        path="/datasets/{d}/cases",
        answer=get_dataset_cases,
        scope="admin",
        forwarding=ANY_NODE,
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
