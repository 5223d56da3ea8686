"""What the default inputs change: errors with them, relative to those with `data.lags = ""`.

    python -m benchmarks.input_results                          # all sets, an hour of one core
    python -m benchmarks.input_results electricity --seeds 1    # one set

The sets are those of `benchmarks.sharing_results`, and wind. Ratios are of the mean squared errors
on the validation and the test part, geometric means over clients and seeds, which draw Kindred's
waves. Ridge is each client for itself, Kindred with the others. Both inputs have the same targets.
Before, Kindred had no `course_of_weekdays` either; `--courses` compares with these alone lacking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.history_results import KINDRED, RIDGE, Client, joined, learner_of, priors_of
from benchmarks.parts import parser_of, require_names
from benchmarks.sharing_results import SETS, DataSet, series_of, settings_in
from fedproto_app.core.messages import Guidance
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import make_windows
from fedproto_app.settings import Settings, flat_settings, settings_from
from fedproto_app.strategies.common.learner import AnyLearner, Cohort
from fedproto_app.strategies.kindred import KindredSettings
from fedproto_app.tasks.forecasting.metrics import MSE, VALIDATION_MSE

WIND: dict[str, object] = {
    "data.source": "long-csv",
    "data.path": "gefcom2012_wind_hourly.csv.gz",
    "data.columns": "power",
    "data.calendar": "phase",
}
ALL_SETS = {**SETS, "wind": DataSet(WIND, periods=(7, 0))}
COURSES = "fedproto_app.strategies.kindred.learner._TURNS"
Changes = Mapping[str, object]
Errors = NDArray[np.float64]  # [clients, 2], on the validation and the test part


def errors_of(
    series: Sequence[ClientSeries], settings: Settings, periods: int
) -> tuple[list[Errors], int]:
    """Return the errors of ridge and of Kindred, and the values that a client of Kindred sends."""
    ridge, kindred = learner_of(settings, RIDGE), learner_of(settings, KINDRED)
    clients = [Client(client_series, settings, periods) for client_series in series]
    alone = [client.fitted_alone(ridge)[0] for client in clients]
    fitted = [client.fitted_alone(kindred) for client in clients]
    sent = joined([arrays for _, arrays in fitted])
    priors = priors_of(sent, settings.method_table(KindredSettings).temperatures)
    for row, (client, (cohort, _)) in enumerate(zip(clients, fitted, strict=True)):
        client.receive(kindred, cohort, {n: prior[row : row + 1] for n, prior in priors.items()})
    errors = [_judged(ridge, alone), _judged(kindred, [cohort for cohort, _ in fitted])]
    return errors, sum(array[0].size for array in sent.values())


def _judged(learner: AnyLearner, cohorts: Sequence[Cohort]) -> Errors:
    metrics = [learner.evaluate(cohort, Guidance()) for cohort in cohorts]
    return np.array([[of_client[m][0] for m in (VALIDATION_MSE, MSE)] for of_client in metrics])


def line_of(name: str, steps: int, periods: int, seeds: int, before: Changes) -> str | None:
    """Return the line of a cell, or None if its clients have too few periods."""
    chosen = ALL_SETS[name]
    series = series_of(chosen, settings_in(chosen, steps, 0))
    whole = settings_in(chosen, steps, 0).data
    if periods >= min(len(make_windows(client, whole).batches) for client in series):
        return None
    ratios = []
    for seed in range(seeds):
        after = flat_settings(settings_in(chosen, steps, periods)) | {"seed": seed}
        new, values = errors_of(series, settings_from(after), periods)
        with patch(COURSES, 0):
            old, fewer = errors_of(series, settings_from({**after, **before}), periods)
        ratios.append(np.array(new) / np.array(old))
    table = np.nanmean(np.log(ratios), axis=(0, 2))  # (methods, parts)
    figures = [f"{ratio:.3f}" for ratio in np.exp(table).ravel()]
    cells = [name, str(steps), str(periods or "all"), *figures, f"{fewer:,}", f"{values:,}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("sets", nargs="*", metavar="SET", help="; ".join(ALL_SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--periods", type=int, nargs="+", help="of training, 0: all")
    parser.add_argument("--courses", action="store_true", help="compare with no courses alone")
    arguments = parser.parse_args()
    require_names(parser, arguments.sets, ALL_SETS, "set")
    torch.set_num_threads(1)
    titles = ["data", "steps", "periods"]
    titles += [f"{method}, {part}" for method in ("ridge", "Kindred") for part in ("val", "test")]
    print(f"| {' | '.join([*titles, 'values sent before', 'after'])} |")
    print(f"|{' --- |' * 3}{' ---: |' * 6}")
    before = {} if arguments.courses else {"data.lags": ""}
    for name in arguments.sets or ALL_SETS:
        chosen = arguments.periods or ALL_SETS[name].periods
        for steps, periods in product(ALL_SETS[name].steps, chosen):
            if line := line_of(name, steps, periods, arguments.seeds, before):
                print(line, flush=True)


if __name__ == "__main__":
    main()
