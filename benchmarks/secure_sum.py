"""docs/secure-sum.md: what masked sums cost through real SuperNodes.

    python -m benchmarks.secure_sum [--page]

A SuperLink and four SuperNodes on loopback, with TLS and registered keys, run FedAvg on eight
synthetic clients: once with plain means, and once with masked sums. Each site's file names the
others' signing keys. Ends with an error if the two last models differ.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from datetime import date
from pathlib import Path
from statistics import mean

import numpy as np
import tomli_w
from safetensors.numpy import load_file

from benchmarks.local_federation import LocalFederation, node_config
from benchmarks.machine import machine_line
from benchmarks.pages import ROOT, table_texts, write_section
from benchmarks.parts import parser_of
from fedproto_app.node.masking import signer_of
from fedproto_app.node.site import Site
from fedproto_app.report.runs import read_rounds
from fedproto_app.settings import flower_config, settings_from

PAGE = ROOT / "docs" / "secure-sum.md"
NODES = ("airport", "harbour", "oldtown", "station")
ROUNDS = 2
ALIKE = 1e-5  # difference of a value below 1: float32, after two rounds
SETTINGS = {
    "method": "fedavg",
    "rounds": ROUNDS,
    "evaluate-every": ROUNDS,
    "model.representation-dim": 64,
    "data.synthetic.clients": 8,
    "data.synthetic.days": 14,
    "nodes.minimum": len(NODES),
    "nodes.start-deadline": 600.0,
    "nodes.round-deadline": 300.0,
    "output.pictures": False,
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all processes end
    lines = [["round", "KB up", "KB down", "seconds"]]
    with tempfile.TemporaryDirectory(prefix="fedproto-secure-sum-") as place:
        folder = Path(place)
        with LocalFederation(folder / "federation") as federation:
            for name in NODES:
                federation.add_node(name, _config(folder, name))
            for kind in ("plain", "masked"):
                lines.append([kind, *_costs(federation, folder / "runs", kind)])
        plain, masked = (
            load_file(folder / "runs" / kind / "model" / "global.safetensors")
            for kind in ("plain", "masked")
        )
        distance = max(float(np.abs(plain[name] - masked[name]).max()) for name in plain)
    section = [
        *table_texts(lines),
        "",
        f"Largest difference between the final models: {distance:.1e}.",
        "",
        f"`python -m benchmarks.secure_sum --page`, {date.today()}, {machine_line()}.",
    ]
    print("\n".join(section))
    if distance > ALIKE:
        sys.exit("the models differ")
    if arguments.page:
        write_section(PAGE, "cost", "benchmarks.secure_sum", section)


def _costs(federation: LocalFederation, runs: Path, kind: str) -> list[str]:
    """Run with plain means or masked sums, and return the means over the rounds."""
    output = {"output.dir": str(runs), "output.name": kind}
    settings = settings_from({**SETTINGS, **output, "aggregation.secure": kind == "masked"})
    federation.complete(federation.submit(flower_config(settings)), deadline=1200)
    rounds = read_rounds(runs / kind)
    traffic = (mean(line[way] for line in rounds) / 1e3 for way in ("bytes_up", "bytes_down"))
    seconds = mean(line["seconds"]["total"] for line in rounds)
    return [*(f"{kilobytes:,.0f}" for kilobytes in traffic), f"{seconds:.1f}"]


def _config(folder: Path, name: str) -> dict[str, str | int]:
    states = {name: str(folder / "state" / name) for name in NODES}
    signers = [signer_of(Site(state_dir=state)).line for state in states.values()]
    file = folder / f"{name}.toml"
    file.write_text(tomli_w.dumps({"masked-sums": {"known": signers}}))
    config = node_config(name, NODES.index(name), len(NODES), Path(states[name]))
    return {**config, "site": str(file)}


if __name__ == "__main__":
    main()
