"""The stage of the response: what clients send before the method's rounds, and what they train on
afterwards.

Round 1: clients send moments of the columns. Round 2: they get the totals of these, and send sums
of seasonal differences. In the method's rounds, a node that has no totals yet gets them with its
order and keeps them. From the totals, its own sums and its validation part, a client computes its
response, whose values are taken off its series. The server only adds up, so sums may be masked.

Where noise must protect the sums (`response.scales`, or public columns), a client sends some of
them as a row (`protected.py`). From the rows' total, the server makes the totals that nodes get.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.round import ClientReply, Round
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.core.stored import AnyArray
from fedproto_app.data.clock import DAY
from fedproto_app.data.shard import Shard
from fedproto_app.data.windows import ClientWindows, make_windows
from fedproto_app.maths.ridge import sums_fault, symmetric, triangle_size
from fedproto_app.settings import DataSettings, Settings
from fedproto_app.settings.data import ResponseSettings
from fedproto_app.strategies.common.closed_form import ClosedFormLearner
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.flower_strategy import FlowerStrategy
from fedproto_app.strategies.common.learner import Cohort, Context, Contribution
from fedproto_app.strategies.common.strategy import BaseStrategy, PersonalStrategy
from fedproto_app.strategies.response import protected
from fedproto_app.strategies.response.features import FEATURES, WIDTHS, Columns, Floats, Response
from fedproto_app.strategies.response.fit import (
    BINS,
    FEWEST_PER_FEATURE,
    History,
    Sums,
    bin_counts,
    fitted,
    lags_of,
    seasonal_sums,
    supported_range,
)
from fedproto_app.strategies.response.moments import (
    Moments,
    moments_of,
    stated_moments,
    unit_fault,
)
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.trust.discrete_noise import LARGEST as LARGEST_NOISE

PREFIX = "response-"  # of the names of the stage's arrays
MOMENTS = tuple(
    PREFIX + name for name in ("mean", "square", "variance", "clients", "others", "years")
)
GRAM, MOMENT, BIN_COUNTS, COUNTS = (PREFIX + name for name in ("gram", "moment", "seen", "counts"))
ROW = "row-of-response"  # clients send it to the server, which does not pass it on

# Features are at most 3 in size, so the squares of their differences are at most 36. The values
# have mean square 1 and their differences at most 4. A spike that is carried over a gap can add to
# that.
LARGEST_MEAN_SQUARE = 400.0
MOST_DAYS = 40_000.0  # a century, so that no client makes the totals look better founded


class _StageLearner(ClosedFormLearner[Context, ForecastingTask]):
    """Base of learners that send arrays and change neither a model nor a client's memory."""

    section: ResponseSettings

    def initial_parameters(self) -> dict[str, Tensor]:
        return {}

    def begin(self, cohort: Cohort) -> None:
        """Weigh all clients alike, however many samples they have, because they send means."""
        cohort.shares = ()

    def context(self, guidance: Guidance, cohort: Cohort) -> Context:
        return _Received(guidance.arrays)

    @property
    def data(self) -> DataSettings:
        """The settings of the data."""
        return self.task.settings.data

    def clients(self, cohort: Cohort) -> Sequence[ClientWindows]:
        """Return the cohort's clients with their series."""
        clients: Sequence[ClientWindows] = cohort.samples.clients
        return clients

    def moments(self, client: ClientWindows) -> Moments:
        """Return a client's moments."""
        return moments_of(client.series, client.trained, self.data.period)


class _Received(Context):
    """The totals that came with the order."""

    def __init__(self, totals: Arrays) -> None:
        self.totals = totals


class MomentsLearner(_StageLearner):
    """Round 1: the moments of a client's columns over its train part."""

    @classmethod
    def sends(cls, section: ResponseSettings, sizes: Sizes) -> Sequence[Sends]:
        shape, columns = (WIDTHS, sizes.known), (sizes.known,)
        return [
            Sends(
                "moments",
                dict(zip(MOMENTS, (shape, shape, shape, columns, columns, (1,)), strict=True)),
                combine="sum",
                any_size=True,
                clip="public" if section.columns == "public" else "",
                reveals="mean and variance of each column that is known in advance",
            )
        ]

    def contribution(self, cohort: Cohort, context: Context) -> Contribution:
        return _stacked([_packed(self.moments(client)) for client in self.clients(cohort)])


class SumsLearner(_StageLearner):
    """Round 2: the sums of a client's seasonal differences."""

    @classmethod
    def sends(cls, section: ResponseSettings, sizes: Sizes) -> Sequence[Sends]:
        width, scaled = FEATURES * sizes.known, len(section.of_columns)
        reveals = "how its values change with the columns that are known in advance"
        of_columns: dict[str, tuple[int, ...]] = {
            GRAM: (triangle_size(width),),
            BIN_COUNTS: (WIDTHS, sizes.known, BINS),
            COUNTS: (3,),
        }
        releases, row = [], protected.private_size(FEATURES * scaled + max(sizes.known - scaled, 0))
        if section.columns == "public":
            releases = [Sends("columns", of_columns, combine="sum", any_size=True, clip="public")]
            row = width + 1
        elif not section.scales:
            reveals += ", and which values of these it has seen"
            arrays = {**of_columns, MOMENT: (width,)}
            return [Sends("response", arrays, combine="sum", any_size=True, reveals=reveals)]
        sums = Sends("response", {ROW: (row,)}, combine="sum", clip="rows", reveals=reveals)
        return [*releases, replace(sums, any_size=True)]

    def contribution(self, cohort: Cohort, context: Context) -> Contribution:
        assert isinstance(context, _Received)
        total = moments_in(context.totals)
        rows, refused = [], {}
        for row, client in enumerate(self.clients(cohort)):
            if fault := unit_fault(self.moments(client), total, client.series.columns):
                refused[row] = fault
            columns = total.columns(client.series.columns)
            history = history_of(client, self.data, columns)
            rows.append(_sums_sent(history, columns, self.section))
        return replace(_stacked(rows), refused=refused)


def moments_in(arrays: Mapping[str, AnyArray]) -> Moments:
    """Return the moments that travelled as these arrays."""
    return Moments(*(arrays[name].astype(np.float64) for name in MOMENTS))


def _packed(moments: Moments) -> Arrays:
    """Return the arrays that `moments_in` reads."""
    values: Iterator[Floats] = iter(moments)
    return {name: value.astype(np.float32) for name, value in zip(MOMENTS, values, strict=True)}


def _stacked(rows: Sequence[Arrays]) -> Contribution:
    return Contribution({name: np.stack([row[name] for row in rows]) for name in rows[0]})


def history_of(client: ClientWindows, data: DataSettings, columns: Columns) -> History:
    """Return the part of a client's series that its response may be learned from."""
    series, period, validation = client.series, data.period, client.validated
    end = validation.stop
    clock = series.clock
    return History(
        values=client.scale.standardised(series.values[:end]),
        v=columns.standardised(series.known[:end], period),
        positions=series.start + np.arange(end),
        train=client.trained,
        validation=validation,
        lags=lags_of(period, has_weeks=clock is not None and clock.steps_in(DAY) == period),
        period=period,
    )


def _sums_sent(history: History, columns: Columns, section: ResponseSettings) -> Arrays:
    """Return what a client sends, which is all 0 if it has too few values.

    With fewer values than features, its differences could be computed from b.
    """
    sums = seasonal_sums(history, history.features(columns))
    values = int(np.isfinite(history.values[history.train]).sum())
    has_few = values < FEWEST_PER_FEATURE * max(1, int(columns.features.sum()))
    arrays = {
        GRAM: sums.gram[np.triu_indices(len(sums.moment))],
        MOMENT: sums.moment,
        BIN_COUNTS: bin_counts(history.v, history.train),
        COUNTS: np.array([1.0, sums.days, sums.square]),
    }
    if section.columns == "public":
        arrays[COUNTS][2] = 0.0
        del arrays[MOMENT]
        arrays[ROW] = protected.public_row(sums)
    elif section.scales:
        arrays = {ROW: protected.private_row(sums, columns.features)}
    return {n: (0 * array if has_few else array).astype(np.float32) for n, array in arrays.items()}


def sums_in(arrays: Mapping[str, AnyArray]) -> Sums | None:
    """Return the means of the clients' sums in these totals, or None if no client sent any."""
    clients, days, square = arrays[COUNTS].astype(np.float64).tolist()
    if clients < 0.5:
        return None
    gram, moment = (torch.from_numpy(arrays[name]).double() / clients for name in (GRAM, MOMENT))
    full = symmetric(gram, len(moment)).numpy()
    return Sums(full, moment.numpy(), square / clients, days / clients)


# --- the server -----------------------------------------------------------------------------------


class _TotalStrategy(PersonalStrategy):
    """Asks all clients in its round and adds up what they send.

    totals: the totals of this stage so far, by name.
    """

    section: ResponseSettings

    def __init__(self, settings: Settings, federation: Federation, totals: Arrays) -> None:
        super().__init__(settings, federation)
        self.totals = totals

    def chosen(self, eligible: list[ClientKey], round_: Round) -> list[ClientKey]:
        return eligible

    def guide(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        return Guidance(dict(self.totals))

    def update(self, round_: Round) -> None:
        names = [name for release in self.releases for name in release.arrays]
        if (total := self.received.total) is not None:
            sums, clients = {name: total.values[name] for name in names}, total.clients
        else:
            replies = self.received.fresh
            clients = len(replies)
            sums = {
                name: np.sum([reply.arrays[name] for reply in replies], axis=0, dtype=np.float64)
                for name in names
                if replies
            }
        if ROW in sums:
            sums = self._from_rows(sums, clients)
        self.totals.update({name: array.astype(np.float32) for name, array in sums.items()})

    def _from_rows(self, sums: dict[str, Floats], clients: int) -> dict[str, Floats]:
        """Return the totals that nodes get, from sums over this many clients that include rows."""
        names, row = self.federation.shape.columns, sums.pop(ROW)
        features = moments_in(self.totals).columns(names).features
        deviation = self.averaging.deviation(self.settings.privacy.clip, clients)
        upper = np.triu_indices(len(features))
        if self.section.columns == "public":
            gram = symmetric(torch.from_numpy(sums[GRAM]), len(features)).numpy()
            totals = protected.public_sums(row, gram, features, deviation)
            counts = np.array([*sums[COUNTS][:2], totals.square])
            return {**sums, GRAM: totals.gram[upper], MOMENT: totals.moment, COUNTS: counts}
        means = protected.private_sums(row, features, deviation)
        return {
            GRAM: means.gram[upper],
            MOMENT: means.moment,
            BIN_COUNTS: protected.usual_bin_counts(len(names)),
            COUNTS: np.array([1.0, means.days, means.square]),
        }


class MomentsStrategy(_TotalStrategy):
    """Round 1: the totals of the moments."""

    first_round = 1

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        """Return why these cannot be the moments of one client, or None."""
        moments = moments_in(reply.arrays)
        flags = np.concatenate([moments.clients, moments.numeric, moments.years])
        if not np.isin(flags, (0, 1)).all():
            return "its moments count more than one client"
        if min(moments.square.min(), moments.variance.min()) < 0:
            return "its moments have a negative square"
        if not np.allclose(moments.square, moments.mean**2, rtol=1e-4, atol=1e-30):
            return "its moments contradict each other"
        return None

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        """Return the clients that have a column in another unit than most other clients."""
        all_moments = {reply.key: moments_in(reply.arrays) for reply in replies}
        if len(all_moments) < 2:
            return {}
        usual = _median_client(list(all_moments.values()))
        names = self.federation.shape.columns
        faults = {key: unit_fault(m, usual, names) for key, m in all_moments.items()}
        return {key: fault for key, fault in faults.items() if fault}


class SumsStrategy(_TotalStrategy):
    """Round 2, or round 1 if the settings state the columns' scales."""

    def __init__(self, settings: Settings, federation: Federation, totals: Arrays) -> None:
        scales = settings.response.of_columns
        self.first_round = 1 if scales else 2
        super().__init__(settings, federation, totals)
        if scales:
            names = federation.shape.columns
            if unknown := sorted(scales.keys() - set(names)):
                raise SettingsError(
                    f"response.scales = {settings.response.scales!r}: {unknown[0]!r} is no column "
                    f"that is known in advance; these are {', '.join(names)}"
                )
            totals.update(_packed(stated_moments(scales, names)))

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        """Return why these cannot be the sums of one client, or None."""
        if ROW in reply.arrays:
            row, clip = reply.arrays[ROW], self.settings.privacy.clip
            noise = LARGEST_NOISE * self.averaging.deviation(clip, 1) * np.sqrt(row.size)
            is_long = noise and np.linalg.norm(row) > clip + noise
            return "its sums are longer than clip and noise allow" if is_long else None
        arrays = {name: torch.from_numpy(array).double() for name, array in reply.arrays.items()}
        sends, days, square = arrays[COUNTS].tolist()
        has_days = sends <= days <= MOST_DAYS
        if sends not in (0, 1) or not has_days or not 0 <= square <= LARGEST_MEAN_SQUARE:
            return f"its sums count as {sends:g} clients with {days:g} days"
        if arrays[BIN_COUNTS].min() < 0:
            return "it has seen fewer than 0 values"
        if not sends:
            sends_some = any(array.any() for array in arrays.values())
            return "it sends sums, and says that it sends none" if sends_some else None
        gram = symmetric(arrays[GRAM], len(arrays[MOMENT]))
        moment = arrays[MOMENT][:, None]
        fault = sums_fault(gram, moment, 1, LARGEST_MEAN_SQUARE, square)
        return fault and f"its sums cannot be those of its values: {fault}"


def _median_client(moments: Sequence[Moments]) -> Moments:
    """Return a made-up client: a column has the median size over the clients that have it."""
    clients = np.array([m.clients for m in moments]).max(axis=0)
    sizes = np.array([m.size for m in moments])
    medians = np.array([np.median(size[size > 0]) if (size > 0).any() else 0 for size in sizes.T])
    zeros = np.zeros((WIDTHS, len(medians)))
    square = zeros.copy()
    square[0] = medians**2
    return Moments(zeros, square, zeros, clients, np.zeros(len(medians)), np.zeros(1))


class ResponseStrategy(FlowerStrategy):
    """The rounds of the stage, and then the method's rounds."""

    def __init__(self, settings: Settings, federation: Federation, method: BaseStrategy) -> None:
        self._totals: Arrays = {}
        strategies: Sequence[type[_TotalStrategy]] = ()
        if settings.response.sharing == "all":
            strategies = (MomentsStrategy, SumsStrategy)[bool(settings.response.scales) :]
        stage = [make(settings, federation, self._totals) for make in strategies]
        super().__init__(method, stage)
        self._informed: set[str] = set()  # the nodes that have the totals

    def first_phase_for(self, node: str) -> Arrays:
        return {} if node in self._informed else self._totals

    def answered(self, nodes: Collection[str], server_round: int) -> None:
        """Send the totals again to nodes that did not answer, because they may have lost them."""
        if server_round > len(self.first):
            self._informed = (self._informed - self.asked) | set(nodes)

    def state(self) -> dict[str, AnyArray]:
        return {**self.method.state(), **self._totals}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        self._totals.update({n: array for n, array in state.items() if n.startswith(PREFIX)})
        self.method.restore({n: array for n, array in state.items() if not n.startswith(PREFIX)})


# --- the clients' samples -------------------------------------------------------------------------


class _TotalsStore(Protocol):
    """A node's store of the totals."""

    def write_first_phase(self, tensors: Mapping[str, Tensor]) -> None: ...

    def read_first_phase(self) -> dict[str, Tensor]: ...


def without_response(
    shard: Shard, names: list[str], received: Arrays, task: ForecastingTask, store: _TotalsStore
) -> Shard:
    """Return the shard with these clients only. Their responses are taken off their series.

    received: holds the totals, unless the node has stored them. Clients whose columns are in
    another unit are refused. Raise `DataError` if this node has no totals yet.
    """
    totals = {name: array for name, array in received.items() if name.startswith(PREFIX)}
    shared = task.settings.response.sharing == "all"
    if totals:
        store.write_first_phase({name: torch.from_numpy(array) for name, array in totals.items()})
    elif shared:
        totals = {name: tensor.numpy() for name, tensor in store.read_first_phase().items()}
        if not totals:
            raise DataError("this node has no totals of the clients' responses yet")
    ready = shard.derived.setdefault(_digest(totals), {})
    refused = dict(shard.refused)
    for name in names:
        client = shard.clients.get(name)
        if client is None or name in ready:
            continue
        assert isinstance(client, ClientWindows)
        data = task.settings.data
        moments = moments_of(client.series, client.trained, data.period)
        total = moments_in(totals) if totals else moments
        if fault := unit_fault(moments, total, client.series.columns):
            refused[name] = fault
            continue
        columns = total.columns(client.series.columns)
        ready[name] = make_windows(client.series, data, _response(client, data, columns, totals))
    clients = {name: ready[name] for name in names if name in ready}
    return replace(shard, clients=clients, refused=refused)


def _response(
    client: ClientWindows, data: DataSettings, columns: Columns, totals: Arrays
) -> Response:
    """Return the response of a client."""
    history = history_of(client, data, columns)
    sums = seasonal_sums(history, history.features(columns))
    if not totals:
        counts = bin_counts(history.v, history.train)
        return fitted(history, columns, sums, None, supported_range(counts))
    counts = totals[BIN_COUNTS].astype(np.float64)
    return fitted(history, columns, sums, sums_in(totals), supported_range(counts))


def _digest(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
