"""What it takes to read a large CSV file, relative to `pandas.read_csv`.

    python -m benchmarks.csv_speed              # files of 100 MB, in turns
    python -m benchmarks.csv_speed --size 10    # MB

A wide file has 200 columns, a long one 300 clients with hourly values. *pandas* only reads the
table. *pandas, series* also reads the times and makes a series for each client, sorted by time.
*app* makes its checked series, ready for samples. Each reading is a process of its own. Its time,
its processor time and its peak of memory, beyond the imports, are compared: the median over the
turns. pandas from 3.1 on reads parts of a file in threads if no column is read as times, so on a
busy machine only processor time means something.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from benchmarks.pages import print_table
from benchmarks.parts import parser_of

READERS = ("pandas", "pandas, series", "app")


def write(folder: Path, megabytes: int) -> dict[str, Path]:
    """Write the files and return their paths by source."""
    rng = np.random.default_rng(0)
    paths = {"wide-csv": folder / "wide.csv", "long-csv": folder / "long.csv"}
    count, steps = 1400 * megabytes // 2, 94 * megabytes
    hours = pd.date_range("2016-01-01", periods=count, freq="h", name="time")
    values = pd.DataFrame(rng.gamma(2, 50, (count, 200)).round(2), index=hours)
    values.add_prefix("c").to_csv(paths["wide-csv"])
    names = np.repeat([f"meter-{number:03d}" for number in range(300)], steps)
    columns = {"unique_id": names, "ds": np.tile(hours[:steps], 300)}
    table = pd.DataFrame({**columns, "y": rng.gamma(2, 50, 300 * steps).round(2)})
    table.to_csv(paths["long-csv"], index=False)
    return paths


def read(reader: str, source: str, path: str) -> None:
    """Read a file once. Print its seconds, the processor's, and the peak of memory in bytes."""
    from fedproto_app.data.sources import load_series
    from fedproto_app.settings import settings_from

    first = path.replace(".csv", "-first.csv")
    data = settings_from({"data.source": source, "data.path": first}).data
    load_series(data)  # imports what is imported late
    before, started, began = _peak(), time.process_time(), time.perf_counter()
    if reader == "pandas":
        pd.read_csv(path)
    elif reader == "pandas, series":
        series_by_pandas(source, path)
    else:
        load_series(data.model_copy(update={"path": path}))
    took = time.perf_counter() - began
    print(took, time.process_time() - started, _peak() - before)


def series_by_pandas(source: str, path: str) -> dict[str, pd.Series]:
    """Return a series for each client, as a user of pandas would make it."""
    if source == "wide-csv":
        table = pd.read_csv(path, parse_dates=["time"]).set_index("time").sort_index()
        return {str(name): column for name, column in table.items()}
    table = pd.read_csv(path, parse_dates=["ds"])
    return {
        str(name): rows.sort_values("ds").set_index("ds")["y"]
        for name, rows in table.groupby("unique_id")
    }


def _peak() -> int:
    status = Path("/proc/self/status").read_text()  # getrusage has the parent's peak too
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])  # type: ignore[index]


def main() -> None:
    """Print a line for each file and reader."""
    parser = parser_of(__doc__)
    parser.add_argument("--size", type=int, default=100, metavar="MB")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        read(*arguments.read)
        return
    lines = [["file", "reader", "s", "ratio", "CPU-s", "ratio", "memory ÷ file"]]
    with tempfile.TemporaryDirectory() as folder:
        for source, path in write(Path(folder), arguments.size).items():
            with path.open() as file:
                rows = [next(file) for _ in range(500)]
            path.with_name(f"{path.stem}-first.csv").write_text("".join(rows))
            costs: dict[str, list[list[float]]] = {reader: [] for reader in READERS}
            for _ in range(arguments.turns):
                for reader in READERS:
                    call = [sys.executable, "-m", __spec__.name, "--read", reader, source]
                    answer = subprocess.run([*call, path], check=True, capture_output=True)
                    costs[reader].append(list(map(float, answer.stdout.split())))
            size = path.stat().st_size
            medians = {
                reader: [median(column) for column in zip(*by_turn, strict=True)]
                for reader, by_turn in costs.items()
            }
            for reader, (*seconds, memory) in medians.items():
                ratios = [
                    s / of_pandas for s, of_pandas in zip(seconds, medians["pandas"], strict=False)
                ]
                pairs = zip(seconds, ratios, strict=True)
                figures = [cell for s, ratio in pairs for cell in (f"{s:.2f}", f"{ratio:.1f}")]
                title = f"{source}, {size / 1e6:.0f} MB"
                lines.append([title, reader, *figures, f"{memory / size:.1f}"])
    print_table(lines, texts=2)


if __name__ == "__main__":
    main()
