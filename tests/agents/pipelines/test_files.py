"""Pipelines in files: a saved pipeline loads unchanged, and an invalid file raises an error with its position."""

import json
from typing import TypedDict

import pytest

from actgent import BareAgent, ConfigurationError, InvalidFile, Pipeline, PipelineStep, ScriptedLLM, When


class Found(TypedDict):
    url: str


def agents():
    return {name: BareAgent(name, llm=ScriptedLLM(lambda _: '{"url": "u"}')) for name in ("one", "two")}


def full(given):
    """Return a pipeline that uses all options of a file."""
    return Pipeline(
        "report",
        goal="on: tea",
        inputs=["topic", "order"],
        answer="b",
        on_failure="stop",
        llm=ScriptedLLM([]),
        steps=[
            PipelineStep("a", agent=given["one"], message="Find {topic}: é \"'#\n- x", output=Found),
            PipelineStep(
                "b",
                agent=given["two"],
                message={"x": ["{a.url}", 1, None, True, "yes", "01"], "{not}": {}},
                after=["a"],
                when=(When.exists("a.url") | ~When.equal("order.id", "{topic}")) & When.less("order.n", 3.5),
                retries=2,
                timeout=0.5,
            ),
            PipelineStep("c", goal="Reach {b}", when=When.contains("a.url", "null") | When.empty("a")),
        ],
    )


@pytest.mark.parametrize("name", ["p.yaml", "p.yml", "p.json"])
def test_a_saved_pipeline_is_the_same(tmp_path, name):
    """A loaded pipeline equals the saved one, including the types of its values."""
    given = agents()
    made = full(given)
    made.save(tmp_path / name)
    for named in (given, list(given.values())):
        read = Pipeline.load(tmp_path / name, agents=named, llm=ScriptedLLM([]))
        assert read.to_data() == made.to_data()
        assert read.groups == made.groups
        assert [step.when for step in read.steps.values()] == [step.when for step in made.steps.values()]
    read.save(tmp_path / f"again-{name}")
    assert (tmp_path / f"again-{name}").read_text() == (tmp_path / name).read_text()


async def test_a_loaded_pipeline_runs(tmp_path):
    """The outputs of a loaded pipeline are plain values that match the saved schema."""
    given = agents()
    steps = [
        PipelineStep("a", agent=given["one"], message="Find {topic}", output=Found),
        PipelineStep("b", agent=given["two"], message="{a.url}"),
    ]
    Pipeline("p", steps=steps).save(tmp_path / "p.yaml")
    async with Pipeline.load(tmp_path / "p.yaml", agents=given) as pipeline:
        result = await pipeline.process({"topic": "tea"})
    assert result.outputs["a"] == {"url": "u"}


STEP = {"agent": "one", "message": "x"}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, "must have `pipeline:` with the name"),
        ({"pipeline": "p"}, "`steps:` with the steps by name"),
        ({"pipeline": "p", "steps": {}}, "it has no steps"),
        ({"pipeline": "p", "steps": {"a": STEP}, "step": 1}, "did you mean 'steps'"),
        ({"pipeline": "p", "steps": {"a": "x"}}, "step 'a' must be an object"),
        ({"pipeline": "p", "steps": {"a": {**STEP, "retry": 2}}}, "did you mean 'retries'"),
        ({"pipeline": "p", "steps": {"a": {**STEP, "agent": "ones"}}}, "did you mean 'one'"),
        ({"pipeline": "p", "steps": {"a": {**STEP, "after": [1]}}}, "a list of step names"),
        (
            {"pipeline": "p", "steps": {"a": {**STEP, "when": {"exist": "a"}}}},
            "step 'a': unknown condition operator 'exist'",
        ),
        ({"pipeline": "p", "steps": {"a": {**STEP, "timeout": "60"}}}, "timeout= must be a number"),
        ({"pipeline": "p", "steps": {"a": STEP}, "inputs": "x"}, "inputs: must be a list"),
        ({"pipeline": "p", "steps": {"a": STEP}, "on_failure": "x"}, "'continue' or 'stop'"),
        ({"pipeline": "p", "steps": {"a": {"goal": "x"}}}, "has a goal and no agent"),
        ([], "object"),
    ],
)
@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_invalid_pipeline_file_is_rejected(tmp_path, data, expected, suffix):
    """The error is raised before any step runs."""
    path = tmp_path / f"p{suffix}"
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigurationError, match=expected):
        Pipeline.load(path, agents=agents())


def test_unreadable_pipeline_files_raise_an_error(tmp_path):
    """Unreadable files, unknown suffixes and syntax errors raise an error, with a line if one is known."""
    with pytest.raises(ConfigurationError, match=r"must end with \.yaml, \.yml or \.json"):
        full(agents()).save(tmp_path / "p.xml")
    (tmp_path / "q.xml").write_text("<pipeline/>")
    with pytest.raises(ConfigurationError, match=r"must end with \.yaml, \.yml or \.json"):
        Pipeline.load(tmp_path / "q.xml")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Pipeline.load(tmp_path / "p.json")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        full(agents()).save(tmp_path / "none" / "p.json")
    for name in ("p.json", "p.yaml"):
        (tmp_path / name).write_text("{\n  'a'\n")
        with pytest.raises(InvalidFile) as caught:
            Pipeline.load(tmp_path / name)
        assert caught.value.line >= 2
    (tmp_path / "p.yaml").write_text("pipeline: !!python/object:os.system x\nsteps: {}\n")
    with pytest.raises(InvalidFile):
        Pipeline.load(tmp_path / "p.yaml")
