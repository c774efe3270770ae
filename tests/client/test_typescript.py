"""The TypeScript client in clients/typescript: its types are current and strict, and its cases pass against a gateway."""

import json
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trio

from actgent.evaluation import DatasetFolder
from tests.docs import browser
from tests.interop.node.npm import NODE_22
from tests.web.conftest import open_served

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients" / "typescript"
MODULES = PACKAGE / "node_modules"
CASES = 21


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
    """The types are generated from the OpenAPI document of this version."""
    script = PACKAGE / "generate_types.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_public_types_are_strict(built):
    """The package was compiled with `--strict`, and no exported declaration has the type `any`."""
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


@pytest.mark.parametrize("version", ["installed", "22"])
async def test_each_case_of_the_client_passes(node, built, version, tmp_path):
    """Chat, streams with resumption, approvals, datasets, retries, errors and the React hook."""
    if version == "22":
        if not NODE_22.is_file():
            pytest.skip("Node 22 from npm is not installed in tests/interop/node: `make test` does that")
        node = str(NODE_22)
    async with open_served(datasets=DatasetFolder(tmp_path)) as served:
        with trio.fail_after(120):
            done = await trio.run_process(
                [node, str(built / "cases.mjs")],
                env=env_of(served),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
    assert done.returncode == 0, done.stderr.decode()
    check_outcomes(done.stdout.decode().splitlines()[-1])


def env_of(served):
    """Return the address of a gateway and the tokens, as the cases read them from the environment."""
    names = {"TOKEN": "ada", "OTHER": "bob", "ADMIN": "root"}
    return {"URL": served.gateway.url} | {name: served.tokens[token] for name, token in names.items()}


def check_outcomes(text):
    outcomes = json.loads(text)
    assert [(case, why) for case, why in outcomes.items() if why] == []
    assert len(outcomes) == CASES


PAGE = """<!doctype html><title>cases</title>
<script>
  globalThis.global = globalThis;
  globalThis.process = { env: %s, exit() {} };
  globalThis.outcomes = new Promise((done) => (console.log = done));
</script>
<script type="importmap">%s</script>
<script type="module" src="/cases.mjs"></script>"""
WRAPPED = """%s
const module = { exports: {} };
((module, exports, require) => {
%s
})(module, module.exports, (name) => ({ %s })[name]);
export default module.exports;
export const { %s } = module.exports;"""
"""A CommonJS module as an ES module, as a bundler makes it. React has no other modules."""
USED = {
    "react": (
        "react",
        "react.development.js",
        "createElement, useEffect, useMemo, useState, useSyncExternalStore",
        (),
    ),
    "scheduler": ("scheduler", "scheduler.development.js", "unstable_now", ()),
    "react-test-renderer": (
        "react-test-renderer",
        "react-test-renderer.development.js",
        "act, create",
        ("react", "scheduler"),
    ),
}


def make_site(built, env):
    """Return the files of a web site that runs the cases, by path."""
    dist = built / "node_modules" / "actgent" / "dist"
    files = {f"/actgent/{each.name}": each.read_text() for each in dist.glob("*.js")}
    files["/cases.mjs"] = (built / "cases.mjs").read_text()
    for name, (folder, file, names, needed) in USED.items():
        imports = "\n".join(f'import {each.replace("-", "_")} from "{each}";' for each in needed)
        known = ", ".join(f'"{each}": {each.replace("-", "_")}' for each in needed)
        code = (MODULES / folder / "cjs" / file).read_text()
        files[f"/{name}.mjs"] = WRAPPED % (imports, code, known, names)
    paths = {name: f"/{name}.mjs" for name in USED}
    imports = {"actgent": "/actgent/index.js", "actgent/react": "/actgent/react.js", **paths}
    files["/"] = PAGE % (json.dumps(env), json.dumps({"imports": imports}))
    return files


@contextmanager
def serve_site():
    """Serve a web site at another origin than the gateway.

    Yield its URL and its files by path, to which the test adds files.
    """
    files = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found = files.get(self.path)
            self.send_response(404 if found is None else 200)
            self.send_header("content-type", "text/html" if self.path == "/" else "text/javascript")
            self.end_headers()
            self.wfile.write((found or "").encode())

        def log_message(self, *_):
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", files
        finally:
            server.shutdown()
            thread.join()


async def test_each_case_passes_in_a_browser(built, tmp_path):
    """A page of another origin runs the same cases, so that each request and header passes the checks of CORS."""
    if browser.CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    with serve_site() as (url, files):
        datasets = DatasetFolder(tmp_path)
        async with open_served(origins=[url], datasets=datasets) as served, browser.open_tab() as tab:
            files.update(make_site(built, {**env_of(served), "NODE_ENV": "development"}))
            with trio.fail_after(120):
                await tab.open(f"{url}/")
                done = await tab.call(
                    "Runtime.evaluate", expression="outcomes", awaitPromise=True, returnByValue=True
                )
    check_outcomes(done["result"]["value"])
