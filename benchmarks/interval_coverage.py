"""How often intervals hold the value if the validation part has few forecasts.

    python -m benchmarks.interval_coverage                # simulated errors
    python -m benchmarks.interval_coverage --real         # milano, electricity, m4, METR-LA

Simulated: the errors of 2,000 series, of n validation forecasts that begin a step apart, and of the
first forecast whose values all come later. Its coverage is the mean over series and steps. Real:
`analytic` is trained once with each length of the validation part, and half widths that follow the
errors are held against all test forecasts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fedproto_app
from benchmarks.pages import data_root, print_table
from benchmarks.parts import parser_of
from benchmarks.results.declared import page
from fedproto_app.data.recognition import reading_of
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import lookback, make_windows
from fedproto_app.experiments.trial import with_period
from fedproto_app.report.forecasting.examples import evaluated_clients, find_examples
from fedproto_app.settings import settings_from
from fedproto_app.tasks.forecasting.intervals import first_half_widths, tracked
from fedproto_app.tasks.forecasting.metrics import LEVELS
from fedproto_app.tasks.forecasting.task import ForecastingTask

Floats = NDArray[np.floating]
Draw = Callable[[tuple[int, ...]], Floats]

SERIES = 2000
COUNTS = (5, 8, 12, 20)  # validation forecasts
HORIZON = 24
# Name, steps ahead, calendar, and number of validation forecasts (None: data.validation-share).
REAL = (
    ("milano", HORIZON, "week", 5),
    ("milano", HORIZON, "week", None),
    ("electricity", HORIZON, "week", None),
    ("m4", HORIZON, "week", None),
    ("metr-la", 12, "phase", None),
)


def half_widths(errors: Floats) -> Floats:
    """Return the half widths [L, K, H] of validation errors [K, n, H]."""
    return first_half_widths(errors, np.ones(errors.shape, dtype=bool), LEVELS)


def of_their_time(errors: Floats, horizon: int) -> Floats:
    """Return [K, n, H] where a target time has the same error in every forecast, of [K, T]."""
    samples = errors.shape[1] - horizon + 1
    return np.stack([errors[:, ahead : ahead + samples] for ahead in range(horizon)], axis=2)


def autoregression(draw: Draw, shape: tuple[int, int], correlation: float) -> Floats:
    """Return first-order autoregressions [K, T], after a start of 100 steps."""
    noise = draw((shape[0], shape[1] + 100))
    values = np.zeros_like(noise)
    for time in range(1, noise.shape[1]):
        values[:, time] = correlation * values[:, time - 1] + noise[:, time]
    return values[:, 100:]


def best_forecasts(draw: Draw, shape: tuple[int, int, int], correlation: float) -> Floats:
    """Return the errors [K, n, H] of the best forecasts of a first-order autoregression.

    If the correlation is 1, they are the errors of a random walk and grow with the step ahead.
    """
    series, samples, horizon = shape
    noise, errors = draw((series, samples + horizon)), np.zeros(shape)
    for ahead in range(horizon):
        for past in range(ahead + 1):
            weight = correlation ** (ahead - past)
            errors[:, :, ahead] += weight * noise[:, past : past + samples]
    return errors


def simulated_errors(generator: np.random.Generator, samples: int) -> dict[str, Floats]:
    """Return the errors [K, samples, H] of each case."""
    normal: Draw = lambda shape: generator.normal(size=shape)  # noqa: E731
    heavy: Draw = lambda shape: generator.standard_t(3, size=shape)  # noqa: E731
    times, day = (SERIES, samples), (SERIES, samples + HORIZON - 1)
    return {
        "1 step, independent": of_their_time(normal(times), 1),
        "1 step, independent, Student's t with 3 degrees": of_their_time(heavy(times), 1),
        "1 step, correlation 0.7": of_their_time(autoregression(normal, times, 0.7), 1),
        "24 steps, independent times": of_their_time(normal(day), HORIZON),
        "24 steps, correlation 0.7": of_their_time(autoregression(normal, day, 0.7), HORIZON),
        "24 steps, correlation 0.9": of_their_time(autoregression(normal, day, 0.9), HORIZON),
        "24 steps, best forecasts, 0.8": best_forecasts(normal, (SERIES, samples, HORIZON), 0.8),
        "24 steps, a random walk": best_forecasts(normal, (SERIES, samples, HORIZON), 1.0),
    }


def simulated_coverage() -> dict[str, dict[int, list[float]]]:
    """Return the coverage of each level in percent, by case and number of forecasts."""
    generator = np.random.default_rng(0)
    coverages: dict[str, dict[int, list[float]]] = {}
    for count in COUNTS:
        # The first forecast after the last validation target begins HORIZON steps later.
        for case, errors in simulated_errors(generator, count + HORIZON).items():
            later = np.abs(errors[:, count - 1 + errors.shape[2]])
            coverages.setdefault(case, {})[count] = [
                100 * float((later <= widths).mean()) for widths in half_widths(errors[:, :count])
            ]
    return coverages


def real_errors(
    name: str, horizon: int, calendar: str, count: int | None
) -> list[tuple[Floats, Floats]]:
    """Return each client's validation errors [n, H] and test errors [m, H], standardised."""
    path = data_root() / page("forecasting").tables[name].data
    table: dict[str, Any] = {**reading_of(path).all_settings, "data.path": str(path)}
    table |= {"method": "analytic"}
    table |= {"data.horizon": horizon, "data.calendar": calendar}
    series = load_series(settings_from(table).data)
    table = with_period(series, table)
    if count is not None:
        shortest = min(len(client.values) for client in series)
        values = shortest - lookback(settings_from(table).data)
        table["data.validation-share"] = (count + horizon - 1) / values
    with tempfile.TemporaryDirectory() as folder:
        output = {"output.dir": folder, "output.pictures": False}
        run = fedproto_app.run({**table, **output}, workers=1, progress=False)
        names = evaluated_clients(run.path)
        examples = find_examples(run.path, run.settings, dict(zip(names, names, strict=True)))
    parameters = {example.client: example.parameters for example in examples}
    errors = []
    for client in series:
        if client.name not in parameters:
            continue
        windows = make_windows(client, run.settings.data)
        task = ForecastingTask(run.settings.of_client(client.name))
        samples = task.gather([windows], 1)
        model = {key: value.unsqueeze(0) for key, value in parameters[client.name].items()}
        with torch.no_grad():
            forecasts = task.forecast(model, samples.inputs)
        error = (forecasts - samples.targets)[0].double().numpy()
        complete = np.flatnonzero(windows.present.all(axis=1))
        validated, tested = (
            complete[(complete >= part.start) & (complete < (part.stop or len(error)))]
            for part in (windows.validation, windows.test)
        )
        if len(validated) and len(tested):
            errors.append((error[validated], error[tested]))
    return errors


def real_coverage(clients: Sequence[tuple[Floats, Floats]]) -> list[float]:
    """Return the mean coverage of each level in percent, of half widths that follow the errors."""
    shares = []
    for validation, test in clients:
        scores = np.abs(test)[None]
        judged = np.ones(scores.shape, dtype=bool)
        followed = tracked(half_widths(validation[None]), scores, judged, LEVELS).at
        shares.append([100 * float((scores <= widths).mean()) for widths in followed])
    return list(map(float, np.mean(shares, axis=0)))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--real", action="store_true", help="real series instead of simulated")
    levels = [f"coverage of {level}%" for level in LEVELS]
    if not parser.parse_args().real:
        rows = [
            (case, str(count), *(f"{share:.1f}" for share in coverage))
            for case, by_count in simulated_coverage().items()
            for count, coverage in by_count.items()
        ]
        print_table([("errors", "validation forecasts", *levels), *rows])
        return
    lines = [["data, steps ahead, calendar", "clients", "validation forecasts", *levels]]
    for name, horizon, calendar, count in REAL:
        clients = real_errors(name, horizon, calendar, count)
        forecasts = int(np.median([len(validation) for validation, _ in clients]))
        cells = [str(len(clients)), str(forecasts)]
        cells += [f"{share:.1f}" for share in real_coverage(clients)]
        lines.append([f"{name}, {horizon}, {calendar}", *cells])
    print_table(lines)


if __name__ == "__main__":
    main()
