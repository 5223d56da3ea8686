"""What it takes to read a large CSV file, relative to `pandas.read_csv`.

    python -m benchmarks.csv_speed              # files of 100 MB, in turns
    python -m benchmarks.csv_speed --size 10    # MB

A wide file has 200 columns, a long one 300 clients with hourly values. Each reading is a process of
its own. Its processor time and its peak of memory, beyond the imports, are compared: the median
over the turns, with the reader of tables alone and with everything that a run does to the series.
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

READERS = ("pandas", "table", "series")


def write(folder: Path, megabytes: int) -> dict[str, Path]:
    """Write the files and return their paths by source."""
    rng, paths = np.random.default_rng(0), {}
    count = 1400 * megabytes // 2
    hours = pd.date_range("2016-01-01", periods=count, freq="h", name="time")
    values = pd.DataFrame(rng.gamma(2, 50, (count, 200)).round(2), index=hours).add_prefix("c")
    paths["wide-csv"] = folder / "wide.csv"
    values.to_csv(paths["wide-csv"])
    steps = 94 * megabytes
    hours = pd.date_range("2016-01-01", periods=steps, freq="h")
    names = np.repeat([f"meter-{number:03d}" for number in range(300)], steps)
    columns = {"unique_id": names, "ds": np.tile(hours, 300)}
    paths["long-csv"] = folder / "long.csv"
    table = pd.DataFrame({**columns, "y": rng.gamma(2, 50, 300 * steps).round(2)})
    table.to_csv(paths["long-csv"], index=False)
    return paths


def read(reader: str, source: str, path: str) -> None:
    """Read a file once and print the seconds of the processor and the peak of memory in bytes."""
    from fedproto_app.data.formats.csv_table import CsvFile
    from fedproto_app.data.sources import load_series
    from fedproto_app.data.table import Columns
    from fedproto_app.settings import settings_from

    first = path.replace(".csv", "-first.csv")
    data = settings_from({"data.source": source, "data.path": first}).data
    load_series(data)  # imports what is imported late
    before, started = _peak(), time.process_time()
    if reader == "pandas":
        pd.read_csv(path)
    elif reader == "series":
        load_series(data.model_copy(update={"path": path}))
    else:
        file = CsvFile(Path(path), path, data)
        count = len(file.head.names)
        wide = Columns(list(range(1, count)), 0)
        file.read(wide if source == "wide-csv" else Columns([2], 1, 0)).stamps("auto")
    print(time.process_time() - started, _peak() - before)


def _peak() -> int:
    status = Path("/proc/self/status").read_text()  # getrusage has the parent's peak too
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])  # type: ignore[index]


def main() -> None:
    """Print a line for each file and reader."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=100, metavar="MB")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        read(*arguments.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        for source, path in write(Path(folder), arguments.size).items():
            with path.open() as lines:
                rows = [next(lines) for _ in range(500)]
            path.with_name(f"{path.stem}-first.csv").write_text("".join(rows))
            costs: dict[str, list[list[float]]] = {reader: [] for reader in READERS}
            for _ in range(arguments.turns):
                for reader in READERS:
                    call = [
                        sys.executable,
                        "-m",
                        __spec__.name,
                        "--read",
                        reader,
                        source,
                        str(path),
                    ]
                    answer = subprocess.run(call, check=True, capture_output=True, text=True)
                    costs[reader].append([float(number) for number in answer.stdout.split()])
            size = path.stat().st_size
            pandas_seconds = median(seconds for seconds, _ in costs["pandas"])
            for reader, of_reader in costs.items():
                seconds, memory = (median(column) for column in zip(*of_reader, strict=True))
                print(
                    f"{source}, {size / 1e6:.0f} MB, {reader}: {seconds:.2f} s, "
                    f"{seconds / pandas_seconds:.1f} times pandas; memory {memory / size:.1f} "
                    "times the file"
                )


if __name__ == "__main__":
    main()
