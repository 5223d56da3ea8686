"""docs/solutions.csv: what clients gain from each other's solutions, clipped and with noise.

    python -m benchmarks.solution_noise             # all cells, half an hour of one core
    python -m benchmarks.solution_noise milano-7    # one

Kindred's A and B have tens of thousands of values, too many for noise. A ridge on the plain
features has a few dozen, so each client could send that solution, clipped to a length, and draw its
own fits to the mean of all. This trial adds such fits to the candidates of Kindred alone, one step
ahead. The control adds the same fits drawn to zero, which needs nobody. All errors are geometric
means of test MSE over Kindred's alone, over the first clients of a random order.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from datetime import date

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.history_results import Client, joined, priors_of
from benchmarks.machine import processors
from benchmarks.pages import ROOT, with_origin, write_table
from benchmarks.parts import geometric_mean, parser_of, require_names
from benchmarks.sharing_results import SETS, guidances_of, series_of, settings_in
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.maths.candidates import Candidates, Family
from fedproto_app.maths.ridge import solve
from fedproto_app.models.forecaster import COEFFICIENTS
from fedproto_app.settings import AggregationSettings, flat_settings, settings_from
from fedproto_app.strategies.kindred import KindredSettings
from fedproto_app.strategies.kindred.learner import Fits, KindredLearner, Means
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.trust.masks import fewest
from fedproto_app.trust.privacy_loss import clipped_rows, multiplier_for

FILE = ROOT / "docs" / "solutions.csv"
OUTPUT = ROOT / "runs" / "results" / "solutions"
CELLS = {  # data, periods of training, numbers of clients
    "milano-7": ("milano", 7, (25,)),
    "demo-7": ("demo", 7, (25, 100, 400)),
    "m4-1": ("m4", 1, (25, 100, 414)),
}
JUDGED = 50  # clients at most
EPSILONS = (math.inf, 10.0, 3.0, 1.0)
DELTA, CLIP, DRAWS = 1e-5, 1.0, 2
RIDGE = 0.1  # of the solutions, as Kindred's middle penalties
COLUMNS = ["in the clear", "masked", "drawn to zero", "solutions, no noise"]
COLUMNS += [f"ε = {epsilon:g}" for epsilon in EPSILONS[1:]]


class Borrower:
    """A client that can add fits drawn to a target to its candidates."""

    def __init__(self, learner: KindredLearner, client: Client) -> None:
        self.client, self._learner = client, learner
        self.cohort, self.sent = client.fitted_alone(learner)
        self.alone = client.error(learner, self.cohort)
        self._context = learner.context(Guidance(), self.cohort)
        self._means = Means(*(mean[0] for mean in self._context.means))
        samples, width = self.cohort.samples, learner.model.plain_width
        periods, is_young = samples.batch_counts[0], samples.is_young[0]
        self._families = list(learner._families(self._means, [], periods, is_young))
        self._errors = self._errors_of(Candidates(self._families))
        self._fits = Fits([self._means], learner.model, set(learner.section.penalties))
        penalty = torch.full((width,), RIDGE, dtype=torch.float64)
        plain = self._means.gram[:width, :width], self._means.moment[:width]
        self.solution = solve(*plain, penalty)[:, 0].nan_to_num().numpy()

    def drawn_to(self, target: NDArray[np.float64]) -> float:
        """Return the error with fits drawn to the target, relative to that alone."""
        learner, penalties = self._learner, self._learner.section.penalties
        pairs = [(value, calendar) for value in penalties for calendar in penalties]
        toward = torch.from_numpy(target)[None, :, None]
        family: Family = next(self._fits.with_blocks(pairs, penalties[1:], toward))
        both = zip(self._errors, self._errors_of(Candidates([family])), strict=True)
        validation, training = (torch.cat(errors) for errors in both)
        candidates = Candidates([*self._families, family])
        count = self.cohort.samples.is_validation[0].double().sum()
        mixed = candidates.mean(validation, training, count, learner.section.eta)
        self.cohort.parameters[COEFFICIENTS][0].copy_(mixed.T)
        return self.client.error(learner, self.cohort) / self.alone

    def _errors_of(self, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Return the validation and the training errors of the candidates' fits."""
        count = self.cohort.samples.is_validation[0].double().sum().clamp(min=1)
        squared = self._learner._squared_errors(self.cohort, 0, candidates)
        squares = self._context.squares[0]
        return squared / count, self._learner._training_errors(
            self._means, squares, candidates.fits
        )

    def with_priors(self, guidance: Arrays) -> float:
        """Return the error with what Kindred's server sends, relative to that alone."""
        self.client.receive(self._learner, self.cohort, guidance)
        return self.client.error(self._learner, self.cohort) / self.alone


def figures_of(name: str, periods: int, numbers: tuple[int, ...]) -> list[list[float]]:
    """Return for each number of clients a figure in each column."""
    settings = settings_in(SETS[name], 1, periods)
    if name == "demo":
        changes = {"data.synthetic.clients": max(numbers)}
        settings = settings_from({**flat_settings(settings), **changes})
    section = settings.method_table(KindredSettings)
    learner = KindredLearner(settings.training, section, ForecastingTask(settings))
    series = series_of(SETS[name], settings)
    order = numpy_stream(0, "clients").permutation(len(series))[: max(numbers)]
    clients = [Borrower(learner, Client(series[place], settings, periods)) for place in order]
    judged = clients[:JUDGED]
    zero = [client.drawn_to(np.zeros(learner.model.plain_width)) for client in judged]
    rows = []
    for number in numbers:
        ratios: dict[str, list[float]] = defaultdict(list, {"drawn to zero": zero})
        for first in range(0, max(len(judged), number) - number + 1, number):
            together = clients[first : first + number]
            among = [client for client in together if client in judged]
            for title, target in _targets(together, f"{name} {periods} {first}"):
                ratios[title] += [client.drawn_to(target) for client in among]
            sent = joined([client.sent for client in together])
            priors, alike = priors_of(sent, section.temperatures), guidances_of(sent, [""] * number)
            for row, client in enumerate(among):
                kin = {array: prior[row : row + 1] for array, prior in priors.items()}
                ratios["in the clear"].append(client.with_priors(kin))
                ratios["masked"].append(client.with_priors(alike[row]))
        rows.append([geometric_mean(np.array(ratios[title])) for title in COLUMNS])
        print(name, periods, number, *(f"{figure:.3f}" for figure in rows[-1]), flush=True)
    return rows


def _targets(together: list[Borrower], seed: str) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield means of the clients' solutions with more and more noise, as if each were a node of a
    masked sum that all survive."""
    number, rules = len(together), AggregationSettings()
    total = clipped_rows(np.stack([client.solution for client in together]), CLIP).sum(axis=0)
    spare = number / fewest(rules.secure_minimum, rules.secure_share, number)
    rng = numpy_stream(0, seed)
    for title, epsilon in zip(COLUMNS[3:], EPSILONS, strict=True):
        noisy = math.isfinite(epsilon)
        sigma = multiplier_for(epsilon, DELTA, 1) * CLIP * math.sqrt(spare) if noisy else 0.0
        for _ in range(DRAWS if noisy else 1):
            yield title, (total + sigma * rng.standard_normal(total.size)) / number


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL", help=", ".join(CELLS))
    arguments = parser.parse_args()
    require_names(parser, arguments.cells, CELLS, "cell")
    torch.set_num_threads(1)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    lines = [["data, days of training", "clients", *COLUMNS]]
    for cell, (name, periods, numbers) in CELLS.items():
        file = OUTPUT / f"{cell}.json"
        if not file.exists() and cell in (arguments.cells or CELLS):
            file.write_text(json.dumps(figures_of(name, periods, numbers)), encoding="utf-8")
        rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        for number, figures in zip(numbers, rows, strict=False):
            shown = [f"{figure:.3f}" for figure in figures]
            lines.append([f"{name}, {periods}", str(number), *shown])
    runs = f"one step ahead, δ = 10⁻⁵, {DRAWS} draws, seed 0"
    made = f"{date.today().isoformat()} on {processors()}"
    write_table(FILE, with_origin(lines, runs, made))


if __name__ == "__main__":
    main()
