"""Fill a folder with three sites to try a federation on: a CSV file and a site.toml each.

    python docker/example.py FOLDER

Makes FOLDER/harbour, FOLDER/oldtown and FOLDER/airport from the embedded synthetic traffic: 12
cells, four at each site, a column each, hourly for six weeks. Nothing that exists is overwritten.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from fedproto_app.data.formats.synthetic_traffic import load_synthetic_traffic
from fedproto_app.settings import DataSettings, SyntheticSettings

SITES = ("harbour", "oldtown", "airport")
CELLS, DAYS = 4, 42
FIRST_HOUR = "2026-01-05"  # a Monday
SAMPLE = Path(__file__).with_name("site.toml")


def make_sites(folder: Path) -> None:
    """Write the sites' folders."""
    settings = DataSettings(synthetic=SyntheticSettings(clients=CELLS * len(SITES), days=DAYS))
    hours = pd.date_range(FIRST_HOUR, periods=DAYS * 24, freq="h")
    table = pd.DataFrame(index=hours.rename("time"))
    for series in load_synthetic_traffic(settings):
        # A cell that went live late has empty fields before.
        table[series.name] = np.concatenate([np.full(series.start, np.nan), series.values])
    for number, site in enumerate(SITES):
        data = folder / site / "data"
        data.mkdir(parents=True)
        site_table = table.iloc[:, number :: len(SITES)]
        site_table.to_csv(data / "traffic.csv", date_format="%Y-%m-%dT%H:%M")
        settings_file = SAMPLE.read_text().replace('name = "harbour"', f'name = "{site}"')
        (folder / site / "site.toml").write_text(settings_file)


if __name__ == "__main__":
    make_sites(Path(sys.argv[1]))
