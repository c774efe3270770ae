"""References of tasks to the results of other tasks."""

import pytest

from actgent.protocols.goal.task_plan import (
    PlannedTask,
    References,
    failure_lines,
    read_tasks,
    tasks_change,
    tasks_in,
    tasks_reason,
)

DONE = [
    PlannedTask(
        id="task_1",
        description="search",
        status="completed",
        result={"results": [{"url": "http://a", "n": 3}], "n": 3, "none": None},
    ),
    PlannedTask(id="second", description="ask", status="completed", result={"response": "RESP"}),
    PlannedTask(id="task_3", description="break", status="failed", failure_reason="r3"),
]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("{{tasks.0.output.results.0.url}}", "http://a"),
        ("{{tasks.0.output.results[0].url}}", "http://a"),
        ("{{ tasks.0.output.results }}", [{"url": "http://a", "n": 3}]),
        ("{{tasks.0.output.n}}", 3),
        ("{{tasks.0.output.none}}", None),
        ("{{task_1.output.n}}", 3),
        ("{{tasks.task_1.output.n}}", 3),
        ("{{second.output}}", "RESP"),
        ("{{tasks.1.output.response}}", "RESP"),
        ("a {{tasks.0.output.n}} b {{ tasks.1.output }}", "a 3 b RESP"),
        ("see {{tasks.0.output.results}}", 'see [{"url": "http://a", "n": 3}]'),
        ({"deep": [{"url": "{{tasks.0.output.results.0.url}}"}]}, {"deep": [{"url": "http://a"}]}),
        ("{{tasks.0.output.results[\uff10].url}}", "{{tasks.0.output.results[\uff10].url}}"),
        ("{{tasks.0.output.results.\uff10.url}}", "{{tasks.0.output.results.\uff10.url}}"),
        ("{{tasks.\uff10.output.n}}", "{{tasks.\uff10.output.n}}"),
        ("{{tasks.9.output}}", "{{tasks.9.output}}"),
        ("{{tasks.0.output.zz}}", "{{tasks.0.output.zz}}"),
        ("{{tasks.0.output.results.7}}", "{{tasks.0.output.results.7}}"),
        ("{{tasks.0.output.results.1}}", "{{tasks.0.output.results.1}}"),
        ("{{tasks.3.output}}", "{{tasks.3.output}}"),
        ("{{tasks.000000001.output}}", "RESP"),
        ("{{tasks.0000000001.output}}", "{{tasks.0000000001.output}}"),
        pytest.param(
            f"{{{{tasks.{'9' * 5000}.output}}}}", f"{{{{tasks.{'9' * 5000}.output}}}}", id="far away"
        ),
        pytest.param(
            f"{{{{tasks.0.output[{'9' * 5000}]}}}}", f"{{{{tasks.0.output[{'9' * 5000}]}}}}", id="far"
        ),
        pytest.param(
            f"{{{{tasks.0.output.results[{'9' * 5000}]}}}}",
            f"{{{{tasks.0.output.results[{'9' * 5000}]}}}}",
            id="far in",
        ),
        ("{{tasks.0.output.n.deeper}}", "{{tasks.0.output.n.deeper}}"),
        ("{{foo}}", "{{foo}}"),
        ("x {{tasks.9.output}} y", "x {{tasks.9.output}} y"),
        (7, 7),
        (None, None),
    ],
)
def test_case_24_references_keep_their_types(written, meant):
    """Case 24: a lone reference keeps its type at any depth. Within a text it is converted to text. Unknown references are unchanged."""
    references = References(DONE)
    assert references.resolve(written) == meant
    assert references.unmet == []


def test_reference_to_a_failed_task_is_an_error():
    """The error names the task."""
    references = References(DONE)
    assert references.resolve("{{tasks.2.output.x}}") == "{{tasks.2.output.x}}"
    assert references.unmet == [DONE[2]]


def test_references_in_a_task_result_are_not_resolved():
    """Braces in a result are data, because results may be untrusted."""
    task = PlannedTask(id="t", description="d", status="completed", result="{{tasks.1.output}}")
    assert (
        References([task, *DONE]).resolve("{{tasks.0.output}} {{t.output}}")
        == "{{tasks.1.output}} {{tasks.1.output}}"
    )


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ([], "a list of 1 to 50"),
        ("x", "a list of 1 to 50"),
        ([{"description": "d"}] * 51, "a list of 1 to 50"),
        ([{"tool": "x"}], "an object with a description"),
        (["d"], "an object with a description"),
        ([{"description": "d", "args": "x"}], "args as an object"),
        ([{"description": "d", "tool": 7}], "its tool as text"),
        ([{"description": "d", "id": "a"}, {"description": "e", "id": "a"}], "no two tasks"),
    ],
)
def test_invalid_tasks_are_reported_to_the_model(written, reason):
    """The error for the model names the mistake."""
    assert reason in tasks_reason(written)


def test_ids_of_a_second_plan_follow_the_first():
    """Tasks of a second plan are numbered after the tasks of the first plan, and stored only for their goal."""
    first = read_tasks([{"description": "a"}, {"description": "b", "id": "mine"}], [])
    second = read_tasks([{"description": "c", "tool": "x", "max_retries": 0}], first)
    assert [(task.id, task.cycle) for task in (*first, *second)] == [
        ("task_1", 1),
        ("mine", 1),
        ("task_3", 2),
    ]
    state = dict([tasks_change("t", [*first, *second])])
    assert tasks_in(state, "t") == [*first, *second]
    assert tasks_in(state, "other") == []
    assert failure_lines(DONE) == ["FAILED TASKS:", "- break: r3"]
