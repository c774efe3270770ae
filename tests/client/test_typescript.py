"""The TypeScript client in clients/typescript: its types are current and strict, and its cases pass against a gateway."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.web.conftest import open_served

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients" / "typescript"
MODULES = PACKAGE / "node_modules"
CASES = 17


@pytest.fixture(scope="module")
def node():
    """Return the path of Node. Skip if Node or the development packages are missing."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("Node is missing: install Node 20 or later")
    if not (MODULES / "typescript").is_dir():
        pytest.skip("packages from npm are not installed in clients/typescript: `make test` does that")
    return found


@pytest.fixture(scope="module")
def built(node, tmp_path_factory):
    """Build the package, and return a folder in which scripts can import it."""
    folder = tmp_path_factory.mktemp("typescript")
    package = folder / "node_modules" / "actgent"
    compile_package(node, "--outDir", str(package / "dist"))
    shutil.copy(PACKAGE / "package.json", package)
    for name in ("react", "react-test-renderer", "react-is", "scheduler"):
        (folder / "node_modules" / name).symlink_to(MODULES / name)
    shutil.copy(Path(__file__).parent / "typescript" / "cases.mjs", folder)
    return folder


def compile_package(node, *options):
    command = [
        node,
        str(MODULES / "typescript" / "bin" / "tsc"),
        "--project",
        str(PACKAGE),
        "--strict",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_types_are_current():
    """They are generated from the OpenAPI document of this version."""
    script = PACKAGE / "generate_types.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_public_types_are_strict(node, built):
    """The package compiles with `--strict`, and no exported declaration has the type `any`."""
    compile_package(node, "--noEmit")
    declarations = list((built / "node_modules" / "actgent" / "dist").glob("*.d.ts"))
    assert len(declarations) == 6
    for each in declarations:
        assert ": any" not in each.read_text(), each


def test_document_is_valid_openapi(node, tmp_path):
    """A validator from npm accepts the OpenAPI document as version 3.1."""
    from actgent.web.routes.endpoint_table import ENDPOINTS
    from actgent.web.routes.openapi import document_of

    document, script = tmp_path / "openapi.json", tmp_path / "validate.mjs"
    document.write_text(json.dumps(document_of(ENDPOINTS)))
    validator = MODULES / "@seriousme" / "openapi-schema-validator" / "index.js"
    script.write_text(
        f"import {{ Validator }} from {json.dumps(str(validator))};\n"
        "const validator = new Validator();\n"
        "const { valid, errors } = await validator.validate(process.argv[2]);\n"
        "console.log(JSON.stringify([valid, validator.version, errors ?? null]));\n"
    )
    done = subprocess.run([node, str(script), str(document)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [True, "3.1", None]


async def test_each_case_of_the_client_passes(node, built):
    """Chat, streams with resumption, approvals, retries, errors and the React hook."""
    async with open_served() as served:
        with trio.fail_after(120):
            done = await trio.run_process(
                [node, str(built / "cases.mjs")],
                env={"URL": served.gateway.url, "TOKEN": served.tokens["ada"], "OTHER": served.tokens["bob"]},
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
    assert done.returncode == 0, done.stderr.decode()
    outcomes = json.loads(done.stdout.decode().splitlines()[-1])
    assert [(case, why) for case, why in outcomes.items() if why] == []
    assert len(outcomes) == CASES
