"""A tiny Flower app that trains nothing but leaves the artefacts that the command line reads."""

from __future__ import annotations

from pathlib import Path

from fedproto_app.ops import superlink

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
    """Write the app, whose method fuels copies the files of ``artefacts`` into its run folder.

    Method fedavg stops with a reason in error.txt, method solo with an exception, ditto not at all.
    """
    package = superlink.write_app(folder) / "toy_app"
    package.mkdir()
    (package / "__init__.py").write_text("")
    server = f"from pathlib import Path\n\nARTEFACTS = Path({str(artefacts)!r})\n{_SERVER}"
    (package / "server.py").write_text(server)
    (package / "client.py").write_text(_CLIENT)
    project = folder / "pyproject.toml"
    text = project.read_text()
    for half in ("server", "client"):
        text = text.replace(f"fedproto_app.{half}_app:app", f"toy_app.{half}:app")
    project.write_text(text)
    return folder
