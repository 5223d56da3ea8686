"""A tiny Flower app that trains nothing but leaves the artefacts that the command line reads."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from fedproto_app.settings import Settings, flower_config

_SERVER = """
import time
from pathlib import Path

from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    run = Path(config["output.dir"]) / config["output.name"]
    run.mkdir(parents=True, exist_ok=True)
    print("toy server at work")
    if config["method"] == "solo":
        raise RuntimeError("the toy breaks")
    if config["method"] == "fedavg":
        (run / "error.txt").write_text("node 1 never came\\n")
        raise RuntimeError("node 1 never came")
    if config["method"] == "ditto":
        (run / "at-work").touch()
        time.sleep(600)
    for source in ARTEFACTS.iterdir():
        (run / source.name).write_text(source.read_text())
"""

_CLIENT = """
from flwr.clientapp import ClientApp

app = ClientApp()
"""


def write_app(folder: Path, artefacts: Path) -> Path:
    """Write the app; method fuels copies the files of ``artefacts`` into its run folder.

    Method fedavg stops with a reason in error.txt, method solo with an exception, ditto not at all.
    """
    package = folder / "toy_app"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    server = f"from pathlib import Path\n\nARTEFACTS = Path({str(artefacts)!r})\n{_SERVER}"
    (package / "server.py").write_text(server)
    (package / "client.py").write_text(_CLIENT)
    (folder / "LICENSE").write_text("for tests\n")
    project = {
        "project": {
            "name": "toy-app",
            "version": "1.0.0",
            "description": "A toy",
            "license": {"file": "LICENSE"},
            "dependencies": ["flwr[simulation]>=1.39"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "tests",
                    "fab-format-version": 1,
                    "flwr-version-target": "1.39.0",
                    "components": {
                        "serverapp": "toy_app.server:app",
                        "clientapp": "toy_app.client:app",
                    },
                    "config": flower_config(Settings()),
                }
            }
        },
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project))
    return folder
