"""Run ``fedproto try`` on five files as a new user has them, and read each answer.

    python -m benchmarks.try_files                       # measures and prints, four minutes
    python -m benchmarks.try_files --fedproto PROGRAM    # one installed elsewhere

Each file lies in an empty folder. The answer must speak of the clients in the file, and report and
forecasts must be there, or the exit code is 1. `.ci/wheel` does so with an installed wheel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from benchmarks.parts import parser_of

FIRST_LINE, TOTAL = 3.0, 120.0  # seconds that a user waits, on two cores
SITES = 6


def loads(sites: int, days: int) -> pd.DataFrame:
    """Return hourly loads [24 · days, sites] with a day's and a week's rhythm."""
    hours = pd.date_range("2023-01-02", periods=24 * days, freq="h", name="time")
    rng = np.random.default_rng(0)
    columns = {}
    for number in range(sites):
        peak, size = rng.choice([9, 13, 20]), rng.uniform(5, 50)
        week = np.where(hours.day_of_week < 5, 1.0, rng.uniform(0.4, 1.2))
        day = 1.2 + np.sin((hours.hour - peak + 6) * np.pi / 12)
        noise = rng.normal(0, size / 10, len(hours))
        columns[f"site-{number:02d}"] = (size * week * day + noise).round(2)
    return pd.DataFrame(columns, index=hours)


def wide(folder: Path) -> Path:
    loads(50, 365).to_csv(folder / "loads.csv")
    return folder / "loads.csv"


def german(folder: Path) -> Path:
    rows = loads(SITES, 90).melt(ignore_index=False, var_name="site").reset_index()
    rows["time"] = rows["time"].dt.strftime("%d.%m.%Y %H:%M")
    rows.to_csv(folder / "loads.csv", sep=";", decimal=",", index=False)
    return folder / "loads.csv"


def parquet(folder: Path) -> Path:
    loads(SITES, 90).to_parquet(folder / "loads.parquet")
    return folder / "loads.parquet"


def tables(folder: Path) -> Path:
    (folder / "loads").mkdir()
    for name, column in loads(SITES, 90).items():
        column.rename("load").to_csv(folder / "loads" / f"{name}.csv")
    return folder / "loads"


def images(folder: Path) -> Path:
    """Write three classes at each site, of other brightness. The class is the main colour."""
    rng = np.random.default_rng(0)
    for site in range(SITES):
        for channel, label in enumerate(("red", "green", "blue")):
            place = folder / "scans" / f"site-{site:02d}" / label
            place.mkdir(parents=True)
            for number in range(40):
                pixels = rng.integers(0, 90, (16, 16, 3)) + 10 * site
                pixels[..., channel] += 25
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")
    return folder / "scans"


@dataclass(frozen=True)
class File:
    """A file as people have it. clients: how many are in it. forecast: the file that is written."""

    title: str
    write: Callable[[Path], Path]
    clients: int = SITES
    forecast: str = "forecast.csv"


FILES = (
    File("CSV, wide: 50 hourly series of a year", wide, 50),
    File("CSV, long: six of 90 days, `31.01.2024 13:00`, decimal commas", german),
    File("Parquet, wide: six of 90 days", parquet),
    File("folder of six CSV files, 90 days each", tables),
    File("folder of 720 images: six sites, three classes", images, forecast=""),
)


@dataclass(frozen=True)
class Answer:
    """What ``try`` printed, and after how many seconds its first line and its end came."""

    text: str
    first_line: float
    seconds: float

    @property
    def verdict(self) -> str:
        """The sentences between the progress lines and the table."""
        lead = r"(?:Federated|Whether federated) learning .*?\n\n"
        sentences = re.findall(lead, self.text, re.DOTALL)
        return " ".join(sentences[-1].split()) if sentences else ""


def answer_of(fedproto: Path, path: Path) -> Answer:
    """Run the command in the file's folder, and exit if it fails."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["COLUMNS"] = "100"
    start = time.monotonic()
    with subprocess.Popen(
        [fedproto, "try", path.name],
        cwd=path.parent,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        first_line = time.monotonic() - start
        text = first + process.stdout.read()
    if process.returncode:
        raise SystemExit(f"fedproto try {path.name} failed:\n{text}")
    return Answer(text, first_line, time.monotonic() - start)


def faults_of(file: File, answer: Answer, runs: Path) -> list[str]:
    """Return what a user would miss in the answer."""
    faults = []
    if not re.search(rf"of {file.clients}\b", answer.verdict):
        faults.append(f"the verdict is not about {file.clients} clients: {answer.verdict!r}")
    if not list(runs.glob("*/report.html")):
        faults.append("no report")
    if file.forecast and not list(runs.glob(f"*/{file.forecast}")):
        faults.append(f"no {file.forecast}")
    if answer.first_line > FIRST_LINE:
        faults.append(f"the first line came after {answer.first_line:.1f} s")
    if answer.seconds > TOTAL:
        faults.append(f"it took {answer.seconds:.0f} s")
    return faults


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--fedproto", type=Path, help="the program; default: on the path")
    options = parser.parse_args(arguments)
    fedproto = (options.fedproto or Path(shutil.which("fedproto") or "fedproto")).absolute()
    faults = []
    for file in FILES:
        with tempfile.TemporaryDirectory() as temporary:
            path = file.write(Path(temporary))
            answer = answer_of(fedproto, path)
            faults += [f"{file.title}: {f}" for f in faults_of(file, answer, path.parent / "runs")]
        sentence = re.split(r"(?<=[a-z)%])\. ", answer.verdict)[0]
        seconds = (f"{answer.first_line:.1f} s", f"{answer.seconds:.0f} s")
        print(file.title, sentence, *seconds, sep=" | ", flush=True)
    if faults:
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
