"""`Pipeline` checks its steps when it is created, and reports all errors together."""

from typing import TypedDict

import pytest

from actgent import BareAgent, ConfigurationError, Pipeline, PipelineStep, ScriptedLLM, When

ANY = BareAgent("any", llm=ScriptedLLM(["never"]))


class Found(TypedDict):
    url: str
    more: dict[str, str]


def step(name, message="do", **options):
    return PipelineStep(name, agent=ANY, message=message, **options)


def pipeline(*steps, **options):
    return Pipeline("p", steps=steps, **options)


@pytest.mark.parametrize(
    ("steps", "groups"),
    [
        ([step("b", after="a"), step("a")], (("a",), ("b",))),
        ([step("c", after=["a", "b"]), step("a"), step("b")], (("a", "b"), ("c",))),
        ([step("a"), step("b", "{a}"), step("c", when=When.exists("b"))], (("a",), ("b",), ("c",))),
        (
            [step("a"), step("b", {"x": ["{a?}"]}), step("c", when=When.equal("in", "{b}"))],
            (("a",), ("b",), ("c",)),
        ),
    ],
)
def test_steps_follow_the_steps_that_they_reference(steps, groups):
    """Steps are grouped after the steps that they name or read, in any order of declaration."""
    assert pipeline(*steps).groups == groups


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], "it has no steps"),
        ([step("a"), step("a")], "there are several steps 'a'"),
        ([step("a", after="b")], "comes after 'b', which is not a step"),
        ([step("finder"), step("b", after="findr")], "did you mean 'finder'"),
        ([step("a", after="c"), step("b", after="a"), step("c", after="b")], "in a cycle: "),
        ([step("a", "{b}"), step("b", "{a}")], "in a cycle: "),
        ([step("a", after="a")], "in a cycle: a -> a"),
        ([step("a", "{a.x}")], "own output; if the value is an input of the run, rename the step"),
        ([step("a"), step("b", "{aa.url}")], r"unknown step 'aa' \(did you mean 'a'"),
        ([step("a", output=Found), step("b", "{a.uri}")], "the output= of step 'a' has no 'uri'"),
        ([step("a", output=Found), step("b", when=When.exists("a.uri"))], "has no 'uri'"),
        (
            [step("a"), step("b", when=When.exists("a.x")), step("c", "{b}", when=~When.exists("a.x"))],
            "step 'c' can never run: it needs both 'a.x exists' and 'not",
        ),
        (
            [
                step("a"),
                step("b", when=When.equal("a", 1)),
                step("c", when=When.equal("a", 2)),
                step("d", "{b} {c}"),
            ],
            "step 'd' can never run",
        ),
        ([step("a", when=When.exists("in") & ~When.exists("in"))], "step 'a' can never run"),
    ],
)
def test_graph_that_cannot_run_is_rejected(steps, expected):
    """The error has a remedy if there is one."""
    with pytest.raises(ConfigurationError, match=expected):
        pipeline(*steps)


def test_all_errors_are_reported_together():
    """One error lists all problems, so that one correction is enough."""
    with pytest.raises(ConfigurationError) as caught:
        pipeline(step("a", "{x.y}", after="nobody"), step("b", "{b}"))
    assert str(caught.value).count("\n  - ") == 3


@pytest.mark.parametrize(
    "steps",
    [
        [
            step("a"),
            step("b", when=When.exists("a")),
            step("c", when=~When.exists("a")),
            step("d", "{b?}{c?}"),
        ],
        [step("a"), step("b", when=When.exists("a")), step("c", "do", after="b", when=~When.exists("a"))],
        [step("a", output=Found), step("b", "{a.more.anything} {a.url}")],
        [step("a", output={"type": "array"}), step("b", "{a.0.x}")],
        [step("a", when=When.equal("x", "{y}") & When.equal("x", "{z}"))],
    ],
)
def test_graph_that_may_run_is_accepted(steps):
    """Exclusive branches may join if none of them is required."""
    assert sum(map(len, pipeline(*steps).groups)) == len(steps)


def test_references_to_no_step_are_inputs():
    """References to no step are inputs. With `inputs=` only declared inputs are read, and they may have keys."""
    made = pipeline(step("a", "{topic} {n?}", when=When.exists("lang")), step("b", "{a} {topic}"))
    assert made.inputs == ("topic", "lang")
    assert pipeline(step("a", "{order.id}"), inputs=["order"]).inputs == ("order",)
    with pytest.raises(ConfigurationError, match=r"unknown step or input 'topc': did you mean 'topic'"):
        pipeline(step("a", "{topc}"), inputs=["topic"])
    with pytest.raises(ConfigurationError, match="declared by inputs="):
        pipeline(step("a", "{order.id}"))
    with pytest.raises(ConfigurationError, match="'a' is both a step and an input"):
        pipeline(step("a"), inputs=["a"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": "a b"}, "a step's name must consist of"),
        ({"name": 3}, "a step's name must consist of"),
        ({"message": None}, "either message= or goal="),
        ({"goal": "reach it"}, "either message= or goal="),
        ({"message": 3}, "message= takes"),
        ({"agent": "any"}, "agent= takes an agent"),
        ({"agent": None}, "it has a message and no agent"),
        ({"when": True}, "when= takes a condition"),
        ({"retries": -1}, "retries= must be a whole number"),
        ({"retries": True}, "retries= must be a whole number"),
        ({"timeout": 0}, "timeout"),
        ({"output": "text"}, "output= must be a type"),
    ],
)
def test_step_rejects_invalid_arguments(options, expected):
    settings = {"name": "a", "agent": ANY, "message": "do", **options}
    with pytest.raises(ConfigurationError, match=expected):
        PipelineStep(settings.pop("name"), **settings)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"answer": "b"}, "answer='b' is not a step"),
        ({"on_failure": "ignore"}, "'continue' or 'stop'"),
        ({"steps": ["a"]}, "steps= must contain PipelineStep objects"),
        ({"steps": [PipelineStep("a", goal="reach it")]}, "has a goal and no agent"),
        (
            {
                "steps": [
                    step("a"),
                    PipelineStep("b", agent=BareAgent("any", llm=ScriptedLLM([])), message="x"),
                ]
            },
            "called 'any'",
        ),
        (
            {"steps": [PipelineStep("b", agent=BareAgent("p", llm=ScriptedLLM([])), message="x")]},
            "called 'p'",
        ),
    ],
)
def test_pipeline_rejects_invalid_arguments(options, expected):
    with pytest.raises(ConfigurationError, match=expected):
        Pipeline("p", **{"steps": [step("a")], **options})


def test_dependents_are_found_over_any_number_of_steps():
    """Indirect dependents are included, in the order of the declared steps."""
    graph = pipeline(step("d", "{c}"), step("a"), step("b", "{a}"), step("c", "{b}"), step("x"))._graph
    assert graph.with_dependents(["b"]) == ("d", "b", "c")
