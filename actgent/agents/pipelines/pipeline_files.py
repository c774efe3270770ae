"""Definitions of pipelines as data, and as YAML or JSON files. Files name agents; the agents are passed when a file is loaded."""

import json
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from actgent.agents.agent import Agent
from actgent.definitions.front_matter import read_yaml
from actgent.errors import ConfigurationError, InvalidFile, did_you_mean_or_list
from actgent.support.strict_json import load_document

from .pipeline_step import PipelineStep
from .step_conditions import When

Agents = Mapping[str, Agent[Any, Any]] | Iterable[Agent[Any, Any]]
YAML_SUFFIXES, JSON_SUFFIX = (".yaml", ".yml"), ".json"
_KEYS = ("pipeline", "goal", "inputs", "answer", "on_failure", "steps")
_STEP_KEYS = ("agent", "message", "goal", "after", "when", "output", "retries", "timeout")


def step_to_data(step: PipelineStep) -> dict[str, Any]:
    """Convert a step to data for a definition file. Fields with default values are omitted."""
    data = {
        "agent": None if step.agent is None else step.agent.name,
        "goal": step.goal,
        "message": step.message,
        "after": list(step.after),
        "when": None if step.when is None else step.when.to_data(),
        "output": None if step.output is None else json.loads(step.output.schema_text),
        "retries": step.retries,
        "timeout": step.timeout,
    }
    return {key: value for key, value in data.items() if value not in (None, "", [], 0)}


def step_from_data(name: str, data: Any, agents: Mapping[str, Agent[Any, Any]]) -> PipelineStep:
    """Create a step from data of a definition file. `agents` are the agents that the file may name.

    Raises:
        ConfigurationError: The data is invalid.
    """
    known = dict(_object(data, f"step {name!r}", _STEP_KEYS))
    wanted = known.pop("agent", None)
    if wanted is not None and wanted not in agents:
        given = did_you_mean_or_list(str(wanted), agents) if agents else "no agents were passed: pass agents="
        raise ConfigurationError(f"step {name!r}: agents= has no agent {wanted!r}: {given}")
    condition = known.pop("when", None)
    try:
        when = None if condition is None else When.from_data(condition)
    except ConfigurationError as error:
        raise ConfigurationError(f"step {name!r}: {error}") from None
    after = known.pop("after", [])
    if not isinstance(after, str) and not _is_name_list(after):
        raise ConfigurationError(f"step {name!r}: after: must be a list of step names, not {after!r:.100}")
    agent = None if wanted is None else agents[wanted]
    return PipelineStep(name, agent=agent, when=when, after=after, **known)


def definition_from(data: Any, agents: Agents) -> dict[str, Any]:
    """Convert the data of a whole definition file to the arguments of `Pipeline`, by name.

    Raises:
        ConfigurationError: The data is invalid.
    """
    found = dict(_object(data, "the file", _KEYS))
    steps = found.pop("steps", None)
    if not isinstance(found.get("pipeline"), str) or not isinstance(steps, Mapping):
        raise ConfigurationError(
            "a pipeline file must have `pipeline:` with the name of the pipeline, and `steps:` with the steps by name"
        )
    if "inputs" in found and not _is_name_list(found["inputs"]):
        raise ConfigurationError(f"inputs: must be a list of names, not {found['inputs']!r:.100}")
    named = agents if isinstance(agents, Mapping) else {agent.name: agent for agent in agents}
    made = [step_from_data(name, each, named) for name, each in steps.items()]
    return {"name": found.pop("pipeline"), "steps": made, **found}


def _object(data: Any, label: str, keys: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigurationError(f"{label} must be an object with keys and values, not {data!r:.100}")
    for key in data:
        if key not in keys:
            raise ConfigurationError(f"{label} has no {key!r}: {did_you_mean_or_list(str(key), keys)}")
    return data


def _is_name_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


# --- files -----------------------------------------------------------------------------------


def read_definition(path: str | Path) -> Mapping[str, Any]:
    """Read a pipeline definition file and return its data.

    Raises:
        ConfigurationError: The file cannot be read, or is neither YAML nor JSON; an `InvalidFile` has the line.
    """
    file = Path(path)
    if not file.exists():
        raise ConfigurationError(f"{file} cannot be read: the file does not exist")
    _check_suffix(file)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file} cannot be read: it is not UTF-8") from None
    if file.suffix != JSON_SUFFIX:
        return read_yaml(text, name=file.name).values
    try:
        data: Mapping[str, Any] = load_document(text)
    except ValueError as error:
        raise InvalidFile(file.name, getattr(error, "lineno", 1), f"invalid JSON: {error}") from None
    return _object(data, "the file", _KEYS)


def write_definition(path: str | Path, data: Mapping[str, Any]) -> None:
    """Write the data of a pipeline to a definition file. The suffix of the path selects YAML or JSON.

    Raises:
        ConfigurationError: The suffix is unknown, a value cannot be written as JSON, or the file cannot be written.
    """
    file = Path(path)
    _check_suffix(file)
    try:
        text = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the pipeline cannot be saved: {error}") from None
    if file.suffix != JSON_SUFFIX:
        text = _to_yaml(json.loads(text))
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from None


def _to_yaml(data: Any) -> str:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.allow_unicode = False, True
    yaml.representer.sort_base_mapping_type_on_output = False
    out = StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def _check_suffix(path: Path) -> None:
    if path.suffix not in (*YAML_SUFFIXES, JSON_SUFFIX):
        raise ConfigurationError(
            f"{path} must end with .yaml, .yml or .json: the suffix selects the format of the pipeline file"
        )
