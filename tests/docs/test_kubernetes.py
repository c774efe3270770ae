"""The manifests of `examples/kubernetes` match the schema of Kubernetes, each other, and the command line."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
VERSIONS = ("1.29", "1.34")
"""Releases of Kubernetes whose schemas the manifests must match."""
HAND_OVER_SECONDS = 10
THREAD_SECONDS = 5


def read_manifests():
    """Return the objects of all files as (file name, object)."""
    return [
        (path.name, found)
        for path in sorted(FOLDER.glob("*.yaml"))
        for found in YAML(typ="safe").load_all(path.read_text(encoding="utf-8"))
    ]


def one_of(kind):
    (found,) = [each for _, each in read_manifests() if each["kind"] == kind]
    return found


@pytest.fixture
def node():
    """Return the container of a node."""
    (container,) = one_of("Deployment")["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_match_the_schema(version):
    """Unknown fields are errors."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    found = read_manifests()
    assert {each["kind"] for _, each in found} == {"Deployment", "PodDisruptionBudget", "Secret", "Service"}
    for name, each in found:
        validate.validate(each, version, strict=True)
        with pytest.raises(validate.ValidationError):
            validate.validate({**each, "unknownField": name}, version, strict=True)


def test_container_command_has_existing_options(node):
    """The options of the container are options of `actgent serve`."""
    from actgent.cli.main import app

    program, *words = node["command"] + node["args"]
    assert program == "actgent"
    command, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
    assert command.__name__ == "serve"
    assert bound.arguments["options"].bind == "0.0.0.0:8300"


def test_labels_ports_and_secrets_match():
    """Each referenced name exists in another object."""
    spec = one_of("Deployment")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert one_of("Service")["spec"]["selector"] == labels
    assert one_of("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    (container,) = spec["template"]["spec"]["containers"]
    ports = {each["name"] for each in container["ports"]}
    assert {each["targetPort"] for each in one_of("Service")["spec"]["ports"]} <= ports
    secrets = {each["metadata"]["name"] for _, each in read_manifests() if each["kind"] == "Secret"}
    named = {each["secretRef"]["name"] for each in container["envFrom"]}
    named |= {
        each["secret"]["secretName"] for each in spec["template"]["spec"]["volumes"] if "secret" in each
    }
    assert named == secrets
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in spec["template"]["spec"]["volumes"]}


def test_termination_grace_covers_the_drain(node):
    """Kubernetes waits for preStop, the grace of turns, the handover and the tool threads."""
    options = dict(each.removeprefix("--").split("=", 1) for each in node["args"])
    (_, pause) = node["lifecycle"]["preStop"]["exec"]["command"]
    pod = one_of("Deployment")["spec"]["template"]["spec"]
    needed = float(pause) + float(options["grace"]) + HAND_OVER_SECONDS + THREAD_SECONDS
    assert pod["terminationGracePeriodSeconds"] >= needed


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_probes_use_an_allowed_host(node, probe):
    """A gateway rejects other values of `Host`. The path is an existing path."""
    from actgent.web.routes.endpoint_table import ENDPOINTS

    asked = node[probe]["httpGet"]
    hosts = [each.removeprefix("--host=") for each in node["args"] if each.startswith("--host=")]
    (name,) = [each["value"] for each in asked["httpHeaders"] if each["name"] == "Host"]
    assert name in hosts
    assert asked["path"] in {f"/v1{each.path}" for each in ENDPOINTS if each.scope is None}
    assert asked["port"] in {each["name"] for each in node["ports"]}
