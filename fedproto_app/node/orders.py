"""Carry out an order at a node, with the site's settings, data and state, and return the reply.

Some faults can be repaired by the operator: wrong settings, unreadable data, a full disk. For these
the node sends an ordinary reply that reports the clients as failed, with the reason. The round
continues without them, and their state is unchanged.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from logging import INFO
from typing import Any, Literal, NamedTuple

import torch
from flwr.app import Context

from fedproto_app.core.errors import DataError, FedProtoError, SettingsError, system_fault
from fedproto_app.core.events import Value, tell
from fedproto_app.core.messages import MaskingOrder, NodeRoster, Order, Reply, SampleTimes
from fedproto_app.core.methods import method_named
from fedproto_app.data.images.vectors import kept_in
from fedproto_app.data.series import notes_of
from fedproto_app.data.shard import Shard, groups_in
from fedproto_app.data.shared_read import forget
from fedproto_app.data.windows import ClientWindows
from fedproto_app.node.device import torch_device, use_precision
from fedproto_app.node.folder import (
    name_of,
    own_secret,
    secret_of_simulation,
    state_dir,
    state_root,
)
from fedproto_app.node.masking import MaskingError, secrets_of
from fedproto_app.node.merging import absent_reply, merged, summed
from fedproto_app.node.policy import require_masks, require_within, within_seconds
from fedproto_app.node.process import worker_number
from fedproto_app.node.protection import Protection
from fedproto_app.node.questions import answers
from fedproto_app.node.shares import Share, shares_of, size_by_memory
from fedproto_app.node.site import Site, read_site
from fedproto_app.node.store import ClientStore, store_of
from fedproto_app.node.trainer import Node
from fedproto_app.settings import DataSettings, Settings, settings_from
from fedproto_app.settings.fit import releases_of, withholds_samples
from fedproto_app.settings.run import OutputSettings
from fedproto_app.strategies.common.learner import (
    AnyLearner,
    make_learner,
    samples_after_pretraining,
)
from fedproto_app.tasks.table import load_shard, make_task, task_class
from fedproto_app.trust.fixed_point import Vector
from fedproto_app.trust.masks import new_seed
from fedproto_app.trust.outliers import growth_fault, root_mean_square, value_fault
from fedproto_app.trust.privacy_ledger import FOLDER as LEDGER
from fedproto_app.trust.privacy_ledger import PrivacyLedger
from fedproto_app.trust.privacy_loss import privacy_plan

Phase = Literal["train", "evaluate", "question"]
_WORK: dict[Phase, Callable[[Node, Order, Sequence[Share]], list[Reply]]] = {
    "train": Node.train,
    "evaluate": Node.evaluate,
    "question": answers,
}


def tell_roster(context: Context, *, simulated: bool) -> NodeRoster:
    """Return the clients that this node holds, or the reason why it has none."""
    site, shard, times, error = Site(), Shard({}, {}), dict[str, SampleTimes](), ""
    groups = dict[str, str]()  # the groups that the run names
    least_samples = 0  # if positive, the node declares this number instead of the clients' own
    try:
        site = read_site(context.node_config, deployed=not simulated)
        run = settings_from(context.run_config)
        shard = _shard(run, site, simulated=simulated)
        groups = groups_in(run.data.groups) if simulated and run.data.groups else {}
        if withholds_samples(run):
            least_samples = task_class(run.task).sample_multiple(run)
        if method_named(run.method).by_time:
            times = {client.name: client.sample_times for client in _series_of(shard)}
    except FedProtoError as fault:
        error = str(fault)
    clients = shard.clients.values()
    counts = {client.name: client.class_counts for client in clients if client.class_counts}
    if not simulated:
        node, refused = name_of(context, site), len(shard.refused)
        tell("roster", node=node, clients=len(clients), refused=refused, error=error or None)
        # Only the node's own log says what was done to series, as this reveals times and columns.
        for note in notes_of([client.series for client in _series_of(shard)]):
            tell("note", node=node, note=note)
    samples = {client.name: client.train_samples for client in clients}
    if least_samples:  # clients that only receive still declare 0
        samples = {name: least_samples if count else 0 for name, count in samples.items()}
    return NodeRoster(
        label=site.label,
        partitions=site.num_partitions if simulated else 0,
        samples=samples,
        groups={c.name: site.group or groups.get(c.name, c.group) for c in clients},
        missing_shares={
            client.name: 0.0 if least_samples else client.missing_share for client in clients
        },
        refused=shard.refused,
        error=error,
        inputs=shard.shape.inputs,
        classes=shard.shape.classes,
        columns=shard.shape.columns,
        step=shard.shape.step,
        class_counts=counts if site.is_dealt else {},
        stages=max([1, *map(len, counts.values())]),
        notes={c.name: c.note for c in clients if c.note and not least_samples},
        times=times,
    )


def _series_of(shard: Shard) -> list[ClientWindows]:
    return [client for client in shard.clients.values() if isinstance(client, ClientWindows)]


class Part(NamedTuple):
    """This process's number among the node's processes. Usually there is only one process."""

    number: int = 0
    total: int = 1


def carry_out(phase: Phase, order: Order, context: Context, *, simulated: bool) -> Reply:
    """Carry out the order. If the operator can repair a fault, the reply reports it."""
    return merged(carry_out_part(phase, order, context, Part(), simulated=simulated))


def carry_out_part(
    phase: Phase, order: Order, context: Context, part: Part, *, simulated: bool, session: str = ""
) -> list[Reply]:
    """Carry out this process's part of the order. Return its cohorts' replies, to be merged.

    session: the session of the masked sum, if results leave the node only in such a sum.
    """
    start = time.monotonic()
    error: str | None = None
    site = Site()
    try:
        site = read_site(context.node_config, deployed=not simulated)
        if not simulated:
            _tell("order", phase, order, context, site, clients=len(order.clients))
        run = settings_from(context.run_config)
        if run.aggregation.secure and not (simulated or session or phase == "evaluate"):
            raise SettingsError(
                "aggregation.secure = true: arrays leave this node only in a masked sum, and this "
                "order is not part of one"
            )
        with nullcontext() if simulated else within_seconds(site.limits):
            replies = _done(phase, order, context, run, site, part, session, simulated=simulated)
    except (FedProtoError, OSError, MemoryError) as fault:
        error = reason_of(fault)
        replies = [absent_reply(dict.fromkeys(order.clients, error))]
    seconds = time.monotonic() - start
    if not simulated:
        trained = sum(len(reply.names) for reply in replies)
        failed = sum(len(reply.failed) for reply in replies)
        counts = {"trained": trained, "failed": failed}
        _tell("done", phase, order, context, site, **counts, seconds=seconds, error=error)
    return replies


def _tell(
    event: str, phase: Phase, order: Order, context: Context, site: Site, **fields: Value
) -> None:
    node = name_of(context, site)
    tell(event, INFO, round=order.server_round, node=node, phase=phase, **fields)


def _done(
    phase: Phase,
    order: Order,
    context: Context,
    run: Settings,
    site: Site,
    part: Part,
    session: str,
    *,
    simulated: bool,
) -> list[Reply]:
    shard = _shard(run, site, simulated=simulated)
    device_name = site.device or (run.device if simulated else "auto")
    site_settings = {"device": device_name, "threads": site.threads or run.threads}
    settings = with_own_width(run.model_copy(update=site_settings), site)
    torch.set_num_threads(settings.threads)
    folder = state_dir(context, settings, site, order.run, order.token, simulated=simulated)
    device = torch_device(settings.device, worker_number())
    use_precision(settings.precision, device)
    store = store_of(folder, len(shard.clients), device)
    store.write_settings(_stored(settings, site, simulated=simulated), shard.shape)
    work = _Work(phase, order, part, site, simulated, settings, shard, store, device, session)
    with _without_denormals():
        return work.replies()


@dataclass(frozen=True)
class _Work:
    """This process's part of an order, and what it needs to carry this out."""

    phase: Phase
    order: Order
    part: Part
    site: Site
    simulated: bool
    settings: Settings  # those of the run, with the site's device, threads and width
    shard: Shard
    store: ClientStore
    device: torch.device
    session: str  # of the masked sum that the order is part of, "" without one

    def replies(self) -> list[Reply]:
        """Return the replies of the cohorts, and a reply about clients that cannot take part."""
        absent = self.shard.absent(self.order.clients) if self.part.number == 0 else {}
        silent = self._silent()
        absent |= silent if self.part.number == 0 else {}
        able = [name for name in self.order.clients if name not in silent]
        replies: list[Reply] = []
        place, start = 0, time.perf_counter()
        make_samples = samples_after_pretraining(self.settings, self.order.server_round)
        for sized, clients in self.settings.by_width(able):
            shard, learner = self.shard, self._learner(sized, self.shard)
            planned = self._cohorts(learner, clients, place, has_samples=make_samples is None)
            place += len(planned)
            shares = [s for s in planned if s.place % self.part.total == self.part.number]
            if make_samples:
                names = [name for share in shares for name in share.clients]
                guidance = self.order.guidance
                received = {**guidance.arrays, **guidance.first_phase}
                shard = make_samples(self.shard, names, received, learner.task, self.store)
                absent |= shard.absent(names)
                limited = [share.limited_to(shard) for share in shares]
                shares = [share for share in limited if share.clients]
                learner = self._learner(sized, shard)
            replies += self._carried_out(learner, shard, shares)
        return [*replies, absent_reply(absent, time.perf_counter() - start)]

    def _silent(self) -> dict[str, str]:
        """Return the clients of the order that must not send anything, with the reason.

        They declare no train samples, so an honest server does not ask them.
        """
        if self.phase == "evaluate":
            return {}
        return {
            name: "what it would send would rest on too few values, so it only receives"
            for name in self.order.clients
            if name in self.shard.clients and not self.shard.clients[name].train_samples
        }

    def _learner(self, sized: Settings, shard: Shard) -> AnyLearner:
        """Return the learner for clients of one width. sized: the settings with this width."""
        task = make_task(sized, shard.shape, self.device)
        return make_learner(sized, task, self.order.server_round)

    def _cohorts(
        self, learner: AnyLearner, clients: list[str], place: int, *, has_samples: bool
    ) -> list[Share]:
        """Return the cohorts of these clients, which are the same in all processes of the node.

        place: the place of the first cohort. has_samples: whether the clients' samples already
        exist.
        """
        size = self.settings.cohort_on_cpu
        sized_by_memory = has_samples and not self.settings.cohort_size and self.part.total == 1
        if self.device.type != "cpu" and sized_by_memory:
            order = replace(self.order, clients=clients)
            size = size_by_memory(learner, self.shard, order, trains=self.phase == "train")
        return shares_of(clients, self.order.server_round, self.shard, learner.task, size, place)

    def _carried_out(self, learner: AnyLearner, shard: Shard, shares: list[Share]) -> list[Reply]:
        protection, tells = self._protection(learner), self.site.is_dealt
        parts = (self.settings, shard, self.store, learner)
        node = Node(*parts, tells_classes=tells, protection=protection)
        return _WORK[self.phase](node, self.order, shares)

    def _protection(self, learner: AnyLearner) -> Protection | None:
        """Return the stage that clips what clients send and adds noise. None in a run without
        noise."""
        plan = privacy_plan(self.settings)
        if plan is None:
            return None
        if self.simulated:
            secret = secret_of_simulation(self.settings.seed)
            return Protection(plan, secret, None, learner, self.session)
        folder = state_root(self.site) / LEDGER
        ledger = PrivacyLedger(folder, self.site.privacy)
        return Protection(plan, own_secret(folder), ledger, learner, self.session)


def with_own_width(run: Settings, site: Site) -> Settings:
    """Return the run's settings, with the width from the site's file if there is one."""
    factor = site.width_factor
    if factor is None:
        return run
    if factor not in run.model.factors:
        raise SettingsError(
            f"width-factor = {factor:g} in this site's file is not among the run's "
            f"model.width-factors = {run.model.width_factors!r}"
        )
    return run.with_factor(factor)


def _shard(settings: Settings, site: Site, *, simulated: bool) -> Shard:
    """Return the node's clients. Only in a simulation may a run choose the data source."""
    if not simulated:
        require_admitted(settings, site)
    data = _data_of(settings, site, simulated=simulated)
    try:
        # A shard does not depend on where a run is written, so runs in one process share shards.
        of_data = settings.model_copy(update={"data": data, "output": OutputSettings()})
        with kept_in(state_root(site) / "vectors") if site.state_dir else nullcontext():
            shard = _cached_shard(of_data, site.partition_id or 0, site.num_partitions)
    except OSError as error:
        raise DataError(f"cannot read its data: {system_fault(error)}") from None
    except MemoryError:
        raise DataError("its data do not fit into the memory that it may use") from None
    own_data = not (simulated or site.is_dealt)
    return with_enough(shard, site.limits.least_samples) if own_data else shard


def _data_of(settings: Settings, site: Site, *, simulated: bool) -> DataSettings:
    """Return the settings of the data that the node reads."""
    if simulated and site.data.source is None:
        return settings.data
    return site.reads(settings.data)


def _stored(settings: Settings, site: Site, *, simulated: bool) -> dict[str, Any]:
    """Return the settings that new values are read and predicted with, as a table.

    How the site's files are read is the site's matter. What makes samples of them is the run's.
    """
    run = {
        name: getattr(settings.data, name) for name in ("partition", "clusters", "least_periods")
    }
    data = _data_of(settings, site, simulated=simulated).model_copy(update=run)
    stored = settings.model_copy(update={"data": data})
    return stored.model_dump(by_alias=True, exclude={"output", "nodes"})


def with_enough(shard: Shard, least_samples: int) -> Shard:
    """Return the shard without clients that have too few train images or sequences. Series have a
    limit of their own."""
    too_few = {
        client.name: f"{client.train_samples} train samples: this site's clients train on at least "
        f"{least_samples} (limits.least-samples)"
        for client in shard.clients.values()
        if not isinstance(client, ClientWindows) and client.train_samples < least_samples
    }
    if not too_few:
        return shard
    clients = {name: client for name, client in shard.clients.items() if name not in too_few}
    return replace(shard, clients=clients, refused={**shard.refused, **too_few})


def require_admitted(settings: Settings, site: Site) -> None:
    """Refuse a run that asks for more than the site's file allows."""
    require_within(settings, site.limits)
    require_masks(settings, site.masked_sums.least)
    require_allowed(settings, site)
    with_own_width(settings, site)


def require_allowed(settings: Settings, site: Site) -> None:
    """Refuse methods that this site cannot run, or that reveal more than the site's file allows."""
    plan = privacy_plan(settings)
    site.privacy.require(settings.privacy, plan.noise_multiplier if plan else None)
    in_sums = plan is not None and settings.aggregation.secure
    if in_sums and site.privacy.demands and not site.masked_sums.known:
        raise SettingsError(
            "aggregation.secure = true: each node of a masked sum adds a part of the noise, so a "
            "server that invents nodes can remove their parts; this site's file demands noise, so "
            "it must name the other sites (masked-sums.known)"
        )
    method = method_named(settings.method)
    if method.needs_simulation and not site.is_dealt:
        raise SettingsError(
            f"method = {settings.method!r} runs only in a simulation, not at sites with data of "
            f"their own: {method.needs_simulation}"
        )
    if method.joined_clients and settings.graph.path:
        raise SettingsError(
            f"graph.path = {settings.graph.path!r}: a run cannot point a deployed node at a file"
        )
    if site.is_dealt:
        return
    if 0 < settings.data.history < site.limits.least_periods:
        raise SettingsError(
            f"data.history = {settings.data.history}: this site's clients train on at least "
            f"{site.limits.least_periods} periods (limits.least-periods)"
        )
    for release in releases_of(method, settings):
        if release.consent == "tells-classes" and not site.tells_classes:
            raise SettingsError(
                f"method = {settings.method!r} sends {release.reveals}, so the server learns which "
                "classes each client has; this site's file does not allow that; to allow it, set "
                "tells-classes = true"
            )
        if release.passed_on and not site.shares_classes:
            raise SettingsError(
                f"method = {settings.method!r} {release.passed_on}; this site's file does not "
                "allow that; to allow it, set shares-classes = true"
            )


@lru_cache(maxsize=256)
def _cached_shard(settings: Settings, partition: int, partitions: int) -> Shard:
    """Load a shard. It stays in the process's memory between the messages of a run."""
    return load_shard(settings, partition, partitions)


def forget_data() -> None:
    """Free the data of earlier runs, so that the next run of this process reads them again."""
    _cached_shard.cache_clear()
    forget()


@contextmanager
def _without_denormals() -> Iterator[None]:
    """Flush denormals to 0. Contrastive gradients have many, and they slow processors down."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def reason_of(fault: FedProtoError | OSError | MemoryError) -> str:
    """Return why an order failed. An OSError can come only from writing the state."""
    if isinstance(fault, FedProtoError):
        return str(fault)
    if isinstance(fault, MemoryError):
        return "the order needs more memory than the node may use"
    return f"cannot write its state: {system_fault(fault)}"


def train_masked(
    order: Order, masking: MaskingOrder, context: Context, *, simulated: bool
) -> tuple[Reply, Vector | None]:
    """Train. Return the reply without its arrays, and the masked sums of these arrays.

    If the node must not or cannot mask its sums, the reply gives the reason, and the sums are None.
    """
    try:
        secrets = secrets_of(masking, context, simulated=simulated)
        secrets.begin(masking)
        replies = carry_out_part(
            "train", order, context, Part(), simulated=simulated, session=masking.session
        )
        reply = merged(replies)
        if not reply.names:
            return reply, None
        _require_plausible(replies, reply, order)
        site = read_site(context.node_config, deployed=not simulated)
        run, noise = settings_from(context.run_config), None
        shard = _shard(run, site, simulated=simulated)
        sums = summed(replies, len(shard.shape.classes))
        if run.privacy.is_on:
            noise = {n: part for cohort in replies for n, part in cohort.noise.items()}
        seed = new_seed()
        if simulated:  # so that a run can be repeated exactly
            node_round = f"{name_of(context, site)}\x1f{order.server_round}".encode()
            seed = hmac.digest(secret_of_simulation(run.seed), node_round, "sha256")
        vector = secrets.masked(masking, sums, noise, seed)
        return replace(reply, arrays={}, classes=[]), vector
    except (FedProtoError, OSError) as fault:
        return Reply([], [], failed=dict.fromkeys(order.clients, reason_of(fault))), None


def _require_plausible(cohorts: Sequence[Reply], reply: Reply, order: Order) -> None:
    """Raise `MaskingError` for values that a server would refuse.

    The server sees only the masked sum, so it cannot check the values itself.
    """
    for cohort in cohorts:
        owners = cohort.owners if cohort.classes else range(len(cohort.names))
        for name, array in cohort.arrays.items():
            for row, values in zip(owners, array, strict=True):
                if fault := value_fault(name, values):
                    client = cohort.names[row]
                    raise MaskingError(f"client {client!r}: {fault}; the node sends nothing")
    personal = {name for cohort in cohorts for name in cohort.arrays}
    mean = {name: array for name, array in reply.arrays.items() if name not in personal}
    faults = [fault for name, array in mean.items() if (fault := value_fault(name, array))]
    before = root_mean_square(list(order.guidance.arrays.values()))
    if fault := next(iter(faults), None) or growth_fault(mean, before):
        raise MaskingError(fault)
