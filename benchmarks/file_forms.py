"""Write small files in 24 forms that people have, and tell what each of them gets.

    python -m benchmarks.file_forms           # prints the table, a minute
    python -m benchmarks.file_forms --page    # writes it to docs/your-data.md
    python -m benchmarks.file_forms --try     # also runs `fedproto try --quick` on each

Every file holds the same three hourly series. "Read" means that `fedproto data check` ends well and
that the values, and the times of the day, are those that were written.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from benchmarks.pages import ROOT, table_texts, write_section
from fedproto_app.cli.commands import app
from fedproto_app.core.errors import FedProtoError
from fedproto_app.data.recognition import reading_of
from fedproto_app.data.series import ClientSeries, notes_of
from fedproto_app.data.sources import load_series
from fedproto_app.settings import settings_from

PAGE, SECTION, MAKER = ROOT / "docs" / "your-data.md", "file-forms", "benchmarks.file_forms"
BERLIN = "Europe/Berlin"


def made_frame(zone: str | None = None) -> pd.DataFrame:
    """Return three hourly series of 20 days with a daily rhythm, around the end of summer time."""
    hours = pd.date_range("2024-10-14", periods=20 * 24, freq="h", name="time", tz=zone)
    rng, phase = np.random.default_rng(0), np.sin(np.arange(len(hours)) * np.pi / 12)
    sizes = {"north": 1200.0, "south": 2400.0, "west": 5200.0}
    noise = rng.normal(0, 20, (len(hours), len(sizes)))
    values = {name: size * (1.5 + phase) for name, size in sizes.items()}
    return pd.DataFrame(values, index=hours).add(noise).round(1)


FRAME = made_frame()
HOURS = pd.DatetimeIndex(FRAME.index)


@dataclass(frozen=True)
class Form:
    """One form of file. write: makes it in a folder and returns its path. options: of data check.

    expected: what its reader should get; None if it should be refused. settings: by options.
    """

    title: str
    write: Callable[[Path], Path]
    expected: pd.DataFrame | None = field(default_factory=lambda: FRAME)
    settings: Mapping[str, str] = field(default_factory=dict)


def _text(text: str, name: str = "a.csv") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_text(text, encoding="utf-8")
        return folder / name

    return write


def _long(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Return the frame with a row for each client and time."""
    site, when, load = names or ("unique_id", "ds", "y")
    rows = frame.rename_axis(when).reset_index().melt(when, var_name=site, value_name=load)
    return rows[[site, when, load]]


def _with_times(form: str) -> pd.DataFrame:
    return FRAME.set_axis(pd.Index(HOURS.strftime(form), name="time"))


def _as_written(form: str, decimal: str = ".", thousands: str = "") -> pd.DataFrame:
    """Return the numbers as texts. form: of a number in Python."""
    signs = str.maketrans({".": decimal, ",": thousands})
    return FRAME.map(lambda value: format(value, form).translate(signs))


def _gzipped(folder: Path) -> Path:
    (folder / "a.csv.gz").write_bytes(gzip.compress(FRAME.to_csv().encode()))
    return folder / "a.csv.gz"


def _folder(folder: Path) -> Path:
    for name in FRAME:
        FRAME[[name]].rename(columns={name: "load"}).to_csv(folder / f"{name}.csv")
    return folder


def _parquet(folder: Path) -> Path:
    _long(FRAME).to_parquet(folder / "a.parquet")
    return folder / "a.parquet"


def _excel(folder: Path) -> Path:
    FRAME.to_excel(folder / "a.xlsx")
    return folder / "a.xlsx"


def _with_a_bad_cell() -> str:
    cells = FRAME.astype(str)
    cells.iloc[300, 1] = "n.d."
    return cells.to_csv()


SPARSE = FRAME[:-2].mul(np.arange(len(FRAME) - 2) ** 2 % 7 < 2, axis=0)  # three of seven hours
LOCAL = made_frame(BERLIN)
# The hour that comes twice is averaged; later hours are as clocks show them.
AVERAGED = LOCAL.tz_localize(None).groupby(level=0).mean()
MONTHS = FRAME[:12].set_axis(pd.Index([f"01/{month:02d}/2024" for month in range(1, 13)]))

FORMS = (
    Form("a column per client", _text(FRAME.to_csv())),
    Form("a row per client and time: `unique_id,ds,y`", _text(_long(FRAME).to_csv(index=False))),
    Form(
        "the same with other names, by time",
        _text(
            _long(FRAME, "site", "when", "kW")
            .sort_values("when", kind="stable")
            .to_csv(index=False)
        ),
    ),
    Form("a folder with a file per client", _folder),
    Form("gzipped", _gzipped),
    Form("Parquet", _parquet),
    Form("Excel", _excel),
    Form("`10,2;20,1`", _text(FRAME.to_csv(sep=";", decimal=","))),
    Form('`"1,100.5"`', _text(_as_written(",.1f", ".", ",").to_csv())),
    Form("`1.100,5`", _text(_as_written(",.1f", ",", ".").to_csv(sep=";"))),
    Form(
        '`"1,100"` in all cells', _text((FRAME.round() + 1000).map("{:,.0f}".format).to_csv()), None
    ),
    Form("`31.01.2024 13:00`", _text(_with_times("%d.%m.%Y %H:%M").to_csv())),
    Form("`1/31/2024 1:00 PM`", _text(_with_times("%m/%d/%Y %I:%M %p").to_csv())),
    Form("`01/02/2024`, never a day above 12", _text(MONTHS.rename_axis("time").to_csv()), None),
    Form(
        "times with an offset: `+01:00`",
        _text(FRAME.tz_localize("Etc/GMT-1").to_csv()),
        FRAME.shift(-1, freq="h"),
    ),
    Form(
        "seconds since 1970",
        _text(FRAME.set_axis(HOURS.as_unit("s").asi8).rename_axis("time").to_csv()),
    ),
    Form("rows in any order", _text(FRAME.sample(frac=1, random_state=0).to_csv())),
    Form("a row of units", _text(FRAME.to_csv().replace("\n", "\n,kW,kW,kW\n", 1))),
    Form(
        "no header",
        _text(FRAME.to_csv(header=False)),
        FRAME.set_axis([f"column-{n}" for n in (2, 3, 4)], axis=1),
    ),
    Form(
        "rows left out that mean zero",
        _text(_long(SPARSE).query("y > 0").to_csv(index=False)),
        SPARSE,
        {"data.missing": "zero"},
    ),
    Form("local times, summer time ends", _text(LOCAL.tz_localize(None).to_csv()), AVERAGED),
    Form(
        "the same with its zone",
        _text(LOCAL.tz_localize(None).to_csv()),
        LOCAL.tz_convert(None),
        {"data.time-zone": BERLIN},
    ),
    Form("a column of texts", _text(FRAME.assign(note=["dry", "wet"] * 240).to_csv())),
    Form("a cell that is no number, further down", _text(_with_a_bad_cell()), None),
)


@dataclass(frozen=True)
class Outcome:
    """What a form gets. as_expected: whether it is read right, or refused if it should be."""

    title: str
    says: str
    as_expected: bool


def outcome_of(form: Form, folder: Path, with_trial: bool = False) -> Outcome:
    """Write a file of this form into an empty folder and read it."""
    path = form.write(folder)
    changes = [word for key, value in form.settings.items() for word in ("--set", f"{key}={value}")]
    run = CliRunner().invoke(app, ["data", "check", str(path), *changes])
    settings = "".join(f"`--set {key}={value}`: " for key, value in form.settings.items())
    if isinstance(run.exception, FedProtoError):
        reason = str(run.exception).replace(f"{path}: ", "").replace("|", "\\|")
        return Outcome(form.title, f"{settings}refused: {reason}", form.expected is None)
    reading = reading_of(path)
    table = {**reading.all_settings, **form.settings, "data.path": str(path)}
    clients = load_series(settings_from(table).data)
    notes = [*reading.notes, *notes_of(clients), *reading.left_out]
    is_right = run.exit_code == 0 and form.expected is not None and _equal(clients, form.expected)
    if with_trial:
        trial = CliRunner().invoke(
            app, ["try", str(path), "--quick", "--folder", str(folder / "runs"), *changes]
        )
        is_right &= trial.exit_code == 0
    return Outcome(form.title, settings + "; ".join(["read", *notes]), is_right)


def _equal(clients: list[ClientSeries], expected: pd.DataFrame) -> bool:
    """Return whether the clients have the expected names, values and times."""
    start = int(expected.index[0].timestamp()) // 3600
    return [client.name for client in clients] == list(expected) and all(
        client.start == start
        and np.array_equal(client.values, expected[client.name], equal_nan=True)
        for client in clients
    )


def lines_of(outcomes: list[Outcome]) -> list[str]:
    """Return the table for the page."""
    rows = [(outcome.title, outcome.says) for outcome in outcomes]
    return table_texts([("file", "what it gets"), *rows], texts=None)


def main() -> int:
    """Return 1 if a form is not read as it was written, or not refused."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--page", action="store_true", help=f"write the table to {PAGE.name}")
    parser.add_argument("--try", action="store_true", dest="trial", help="also run a trial of each")
    arguments = parser.parse_args()
    outcomes = []
    for form in FORMS:
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(
                outcome_of(form, Path(folder), arguments.trial and form.expected is not None)
            )
    for line in lines_of(outcomes):
        print(line)
    if wrong := [outcome.title for outcome in outcomes if not outcome.as_expected]:
        print(f"not as expected: {', '.join(wrong)}", file=sys.stderr)
        return 1
    if arguments.page:
        write_section(PAGE, SECTION, MAKER, lines_of(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
