"""CNFGNN: a client's two GRUs, the gradient by messages, the costs, and which clients count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Message
from safetensors.torch import load_file
from torch import Tensor

from fedproto_app.core.clients import ClientFacts, ClientKey
from fedproto_app.core.errors import FederationError, FedProtoError
from fedproto_app.core.messages import Guidance, SampleTimes
from fedproto_app.core.metrics import Metric
from fedproto_app.core.round import ClientReply, Round
from fedproto_app.core.sends import Expected
from fedproto_app.data.windows import ClientWindows
from fedproto_app.engine.local import nodes_sharing
from fedproto_app.maths.losses import prediction_loss
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import Forecaster
from fedproto_app.report.runs import read_rounds
from fedproto_app.serving import require_predicts
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.learner import Cohort, make_learner
from fedproto_app.tasks.table import load_shard, make_task
from fedproto_compared.cnfgnn import strategy as cnfgnn
from fedproto_compared.cnfgnn.learner import (
    COUNT,
    ENCODINGS,
    FIRST,
    GRADIENT,
    GRAPH,
    STEPS,
    CnfgnnLearner,
)
from fedproto_compared.cnfgnn.models import (
    BLOCKS,
    UPDATED,
    Graph,
    GraphForecaster,
    GraphNetwork,
    GuidedForecaster,
    Seq2SeqForecaster,
)
from fedproto_compared.cnfgnn.strategy import (
    CnfgnnStrategy,
    Encoded,
    GraphLearning,
    Proposal,
    clipped_to_median,
)
from tests.helpers.local_grid import run_locally, small_settings, synthetic_nodes
from tests.helpers.tiny_cohort import NAMES as TWO
from tests.helpers.tiny_cohort import PERIOD, tiny_cohort, tiny_learner
from tests.strategies.server_half import NAMES, NODE, one_node, refusals

# --- the client's half ---------------------------------------------------------------------------


WIDTH = 3
GUIDANCE = Guidance()


def learner_of(model: str = "paper") -> CnfgnnLearner:
    learner = tiny_learner("cnfgnn", **{"cnfgnn.hidden": WIDTH, "cnfgnn.model": model})
    assert isinstance(learner, CnfgnnLearner)
    return learner


def span(cohort: Cohort) -> tuple[int, int]:
    """The time of the clients' first sample, and how many they have."""
    client = cohort.samples.clients[0]
    return client.start, len(client.targets)


def with_graph(first: int, values: Tensor, names: list[str] = TWO) -> Guidance:
    """An order with g [n, T, d_g] of these clients."""
    options = {FIRST: float(first), COUNT: float(values.shape[1])}
    return replace(GUIDANCE, arrays={GRAPH: values.numpy()}, clients=names, options=options)


@pytest.mark.parametrize("model", ["paper", "fuels"])
def test_g_reaches_the_samples_of_its_times(model: str) -> None:
    """g of all times, in training for each sample of a batch."""
    learner = learner_of(model)
    cohort = tiny_cohort(learner)
    first, count = span(cohort)
    values = torch.arange(count - 2.0).reshape(1, -1, 1).repeat(1, 1, WIDTH)
    # From the second to the second-last sample, for client b alone.
    learner.context(with_graph(first + 1, values, ["b"]), cohort)
    phases, graph = learner.model.guidance(cohort.samples.inputs)
    assert not graph[0].any()
    assert graph[1, :, 0].tolist() == [0.0, *range(count - 2), 0.0]
    assert phases[0, :, 0].tolist() == [(first + i) % PERIOD for i in range(count)]
    draws = [torch.Generator().manual_seed(0) for _ in TWO]
    for batch in learner.batches(cohort.samples, draws):
        phases, graph = learner.model.guidance(batch.inputs)
        assert phases[0, :, 0].tolist() == [0, 1, 2, 3]
        rows = [int(value) + 1 for value in graph[1, :, 0]]
        torch.testing.assert_close(cohort.samples.targets[1, rows], batch.targets[1])


def test_times_at_which_a_client_has_no_sample_are_zeros() -> None:
    learner = learner_of()
    cohort = tiny_cohort(learner)
    first, count = span(cohort)
    guidance = replace(GUIDANCE, options={FIRST: first - 2.0, COUNT: count + 5.0})
    encodings = learner.answer(cohort, guidance).arrays[ENCODINGS]
    assert encodings.shape == (2, count + 5, WIDTH)
    present = np.abs(encodings).max(axis=2) > 0
    assert present.tolist() == [[False] * 2 + [True] * count + [False] * 3] * 2
    assert np.abs(encodings).max() < 1


def test_the_gradient_is_of_times_that_a_client_trains_on_and_has_a_target_of() -> None:
    """Three times: trained on, in no batch, and with a missing target."""
    learner = learner_of()
    cohort = tiny_cohort(learner)
    first, count = span(cohort)
    used = sorted(int(place) for place in cohort.samples.batches[0].flatten())
    places = [used[3], count - 1, used[5]]
    cohort.samples.present[1, used[5]] = 0
    graph = torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(1))
    arrays = {GRAPH: graph.flip(0).numpy(), STEPS: np.array(places, dtype=np.float32)}
    guidance = replace(GUIDANCE, arrays=arrays, clients=["b", "a"], options={FIRST: float(first)})
    gradient = torch.from_numpy(learner.answer(cohort, guidance).arrays[GRADIENT])
    assert gradient.any(dim=2).tolist() == [[True, False, True], [True, False, False]]


def test_evaluation_is_with_the_g_that_comes() -> None:
    learner = learner_of()
    cohort = tiny_cohort(learner)
    first, count = span(cohort)
    values = torch.zeros(1, count, WIDTH)
    values[0, -1] = 3.0
    before, after = (
        learner.evaluate(cohort, guidance)
        for guidance in (GUIDANCE, with_graph(first, values, ["a"]))
    )
    changed = [a != b for a, b in zip(before[Metric("mse")], after[Metric("mse")], strict=True)]
    assert changed == [True, False]
    assert before[Metric("validation-mse")] == after[Metric("validation-mse")]


# --- the server's half ---------------------------------------------------------------------------


HIDDEN = 4
SIZE = 3 * HIDDEN * (2 + HIDDEN + 2) + 6 * HIDDEN * (2 + 2 * HIDDEN + 2) + 2 * HIDDEN + 1


def settings_of(tmp_path: Path, **changes: Any) -> Settings:
    return small_settings(tmp_path, **{"method": "cnfgnn", "cnfgnn.hidden": HIDDEN, **changes})


def unequal(tmp_path: Path) -> Path:
    """Two clients of 20 days: the second begins two days late, and ends a day early."""
    hours = np.arange(24 * 20)
    late = np.cos(hours * np.pi / 12) * 3 + np.random.default_rng(0).normal(size=len(hours))
    late[(hours < 48) | (hours >= 456)] = np.nan
    path = tmp_path / "unequal.csv"
    pd.DataFrame({"early": np.sin(hours * np.pi / 12), "late": late}).to_csv(path, index=False)
    return path


def recorded_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> list[tuple[Encoded, Proposal, tuple[Tensor, ...]]]:
    """The server's steps from now on: encodings, the network's proposal, the slopes of the loss."""
    steps: list[tuple[Encoded, Proposal, tuple[Tensor, ...]]] = []
    of_clients, batches = CnfgnnStrategy._gradient, GraphLearning.batches

    def gradient(
        strategy: CnfgnnStrategy, encoded: Encoded, proposal: Proposal, ask: Any
    ) -> tuple[Tensor, int]:
        result = of_clients(strategy, encoded, proposal, ask)
        leaves = list(proposal.leaves.values())
        slopes = torch.autograd.grad(
            [proposal.outputs], leaves, [result[0]], retain_graph=True, materialize_grads=True
        )
        steps.append((encoded, proposal, slopes))
        return result

    def few_batches(*arguments: Any) -> list[Tensor]:
        """At the first times one client trains alone."""
        return [torch.arange(3), *list(batches(*arguments))[:5]]

    monkeypatch.setattr(CnfgnnStrategy, "_gradient", gradient)
    monkeypatch.setattr(GraphLearning, "batches", few_batches)
    return steps


def test_the_gradient_by_messages_is_that_of_one_central_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients of other lengths, on two nodes, three time steps a step of the server."""
    data = {"data.source": "wide-csv", "data.path": str(unequal(tmp_path))}
    settings = settings_of(tmp_path, **{"rounds": 1, "cnfgnn.server-batch": 3, **data})
    steps = recorded_steps(monkeypatch)
    nodes = nodes_sharing(settings.data, 2, tmp_path / "state")
    folder, _ = run_locally(settings, nodes)
    windows = load_shard(settings, 0, 1).clients.values()
    clients = [client for client in windows if isinstance(client, ClientWindows)]
    assert [client.start for client in clients] == [72, 48 + 72]
    learner = make_learner(settings, make_task(settings, load_shard(settings, 0, 1).shape))
    assert isinstance(learner, CnfgnnLearner)
    model = {
        n: v.unsqueeze(0) for n, v in load_file(folder.path / "model/global.safetensors").items()
    }

    steps_with_both = 0
    for encoded, proposal, slopes in steps:
        positions = encoded.first + proposal.steps
        leaves = {name: value.detach().requires_grad_() for name, value in proposal.leaves.items()}
        inputs, hidden, present = [], [], []
        for client in clients:
            places = (positions - client.start).clamp(0, len(client.targets) - 1)
            trained = torch.from_numpy(np.isin((positions - client.start).numpy(), client.batches))
            inputs.append((torch.from_numpy(client.inputs)[places][None], (positions % 24)[None]))
            none = torch.zeros(1, len(places), HIDDEN)
            guided = learner.model.guided(*inputs[-1], none)
            hidden.append(learner.model.encoding(model, guided)[0])
            present.append(trained)
        network = {name: leaf[0] for name, leaf in leaves.items()}
        presence = torch.stack(present, dim=1)
        answers = GraphNetwork(HIDDEN, HIDDEN).answers(
            network, torch.stack(hidden, dim=1), presence, encoded.graph
        )
        losses = []
        for row, client in enumerate(clients):
            guided = learner.model.guided(*inputs[row], answers[None, :, row])
            forecast = learner.model.predict(model, learner.model.encode(model, guided))
            places = (positions - client.start).clamp(0, len(client.targets) - 1)
            targets = torch.from_numpy(client.targets)[places][None]
            losses.append(prediction_loss(forecast, targets, presence[None, :, row, None].float()))
        clients_asked = int(presence.any(dim=0).sum())
        steps_with_both += clients_asked == 2
        loss = torch.cat(losses).sum() / clients_asked
        expected = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        largest = max(float(client.abs().max()) for client in expected)
        assert largest > 0.01
        for ours, central in zip(slopes, expected, strict=True):
            torch.testing.assert_close(ours, central, rtol=0, atol=1e-6)
    assert 0 < steps_with_both < len(steps)


def test_what_a_round_costs(tmp_path: Path) -> None:
    """8 clients have 14 days, and some begin later. Each trains on 7 days, from times 88 to 261
    overall. Samples that no client trains on begin at 256, and the last is at 335."""
    settings = settings_of(tmp_path, **{"cnfgnn.server-batch": 50})
    folder, grid = run_locally(settings, synthetic_nodes(2, tmp_path / "state"))
    trained, judged, trained_or_judged, profile = 261 - 88, 336 - 256, 336 - 88, 24
    first, *later = read_rounds(folder.path)
    assert first["figures"] == {"graph_steps": 4, "shortened_gradients": 0}
    up = SIZE + HIDDEN * trained_or_judged + HIDDEN * trained  # θ, h, ∂L/∂g
    # θ to train, to encode and to be judged, g with its times, and g to be judged.
    down = 3 * SIZE + (HIDDEN + 1) * trained + HIDDEN * judged
    assert first["parameters_up"] == 8 * (profile + up)
    assert first["parameters_down"] == 8 * down
    for line in later:
        assert line["parameters_up"] == 8 * up
        assert line["parameters_down"] == 8 * (down + HIDDEN * trained)  # g to train with
    kinds = [message.metadata.message_type for message in grid.sent if message_round(message) == 2]
    expected_kinds = ["train", *["query.question"] * 5, "evaluate"]
    assert kinds == [kind for kind in expected_kinds for _ in range(2)]


def message_round(message: Message) -> int:
    return int(message.metadata.group_id)


def test_a_kept_model_does_not_forecast_by_itself(tmp_path: Path) -> None:
    with pytest.raises(FedProtoError, match="'cnfgnn': a kept model predicts nothing: its decod"):
        require_predicts(settings_of(tmp_path))


def test_without_epochs_of_the_server_it_is_fedavg_of_the_model(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, **{"cnfgnn.server-epochs": 0, "rounds": 1})
    folder, grid = run_locally(settings, synthetic_nodes(2, tmp_path / "state"))
    (line,) = read_rounds(folder.path)
    assert (line["parameters_up"], line["parameters_down"]) == (8 * SIZE, 2 * 8 * SIZE)
    assert "query.question" not in {message.metadata.message_type for message in grid.sent}
    assert line["test_mse"] > 0


TIMES = SampleTimes("3600 seconds", 0, 4, 6)


def strategy_of(tmp_path: Path, times_of: dict[str, SampleTimes]) -> CnfgnnStrategy:
    settings = settings_of(tmp_path)
    federation = one_node(settings)
    for name, times in times_of.items():
        key = ClientKey(name, NODE)
        facts: ClientFacts = federation.members.facts[key]
        federation.members.facts[key] = replace(facts, times=times)
    return CnfgnnStrategy(settings, federation)


def concluded(strategy: CnfgnnStrategy, name: str, factor: float) -> Round:
    """A round that multiplies the first client's array of this name."""

    def ask(keys: Any, guide: Any, expected: Expected, **_: Any) -> list[ClientReply]:
        [(sent_name, shape)] = expected.per_client.items()
        draws = np.random.default_rng(0)
        arrays = {key: draws.uniform(-1, 1, shape).astype(np.float32) for key in sorted(keys)}
        if sent_name == name and ClientKey("a", NODE) in arrays:
            arrays[ClientKey("a", NODE)] *= np.float32(factor)
        return [ClientReply(key, 4, {sent_name: array}) for key, array in arrays.items()]

    round_ = Round(1, strategy.federation.members.facts)
    strategy.federation.asking = lambda server_round: ask  # type: ignore[method-assign]
    strategy.conclude(round_)
    return round_


def test_encodings_that_cannot_be_true_are_refused_by_name(tmp_path: Path) -> None:
    """Who has sent no encodings has no g to be judged with, nor to train with."""
    strategy = strategy_of(tmp_path, dict.fromkeys([*NAMES, "late"], TIMES))
    clients = strategy.federation.members.clients()
    assert strategy.guide(clients, Round(1)).clients == ()
    refused = refusals(concluded(strategy, ENCODINGS, 1e3))
    assert set(refused) == {"a"}
    assert refused["a"].startswith("its encodings hold ±")
    assert strategy.to_evaluate(clients, Round(1)) == clients[1:]
    for guidance in (strategy.guide, strategy.guide_evaluation):
        assert guidance(clients, Round(2)).clients == ["b", "c", "late"]


def test_a_huge_gradient_is_shortened_to_those_of_the_others(tmp_path: Path) -> None:
    strategy = strategy_of(tmp_path, dict.fromkeys([*NAMES, "late"], TIMES))
    figures = concluded(strategy, GRADIENT, 1e4).figures
    assert figures["graph_steps"] == figures["shortened_gradients"] > 0


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        (
            SampleTimes("300 seconds", 0, 4, 6),
            "its clock is '300 seconds', most clients have '3600 seconds'",
        ),
        (SampleTimes("3600 seconds", 0, 4, 2**60), "its samples begin or end far from"),
        (SampleTimes("3600 seconds", -61, 4, 6), "its samples begin or end far from"),
        (SampleTimes("3600 seconds", -60, 4, 66), None),
    ],
)
def test_a_client_of_another_time_is_refused_once_by_name(
    tmp_path: Path, late: SampleTimes, reason: str | None
) -> None:
    strategy = strategy_of(tmp_path, {**dict.fromkeys(NAMES, TIMES), "late": late})
    clients = strategy.federation.members.clients()
    for _ in range(2):
        eligible = [key.client for key in strategy.eligible(clients)]
        assert eligible == ([*NAMES, "late"] if reason is None else NAMES)
    refused = [
        (refusal.client, refusal.reason[: len(reason or "")])
        for refusal in strategy.federation.history.log.refused
    ]
    assert refused == ([] if reason is None else [("late", reason)])


def test_more_encodings_than_fit_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cnfgnn, "MOST_VALUES", 4 * 6 * HIDDEN - 1)
    strategy = strategy_of(tmp_path, dict.fromkeys([*NAMES, "late"], TIMES))
    reason = "encodings of 4 clients at 6 time steps, 4 values each, are more than 95 values"
    with pytest.raises(FederationError, match=reason):
        concluded(strategy, ENCODINGS, 1)


def test_sites_with_data_of_their_own_do_not_run_it(tmp_path: Path) -> None:
    node = {"data-source": "synthetic-traffic", "state-dir": str(tmp_path / "state")}
    told_of = "runs only in a simulation, .*: a client's model forecasts only with the server"
    with pytest.raises(FederationError, match=told_of):
        run_locally(settings_of(tmp_path), [node])


# --- the models -----------------------------------------------------------------------------------


PLACES = [-3, -2, -1, -72, -48, -24]  # close values, then one, two, three days ago


def layout(horizon: int = 1, times: int = 0) -> WindowLayout:
    return WindowLayout(close=3, distances=3, horizon=horizon, period=24, times=times)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rand(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=seeded(seed))


def one_client(model: GraphForecaster) -> dict[str, Tensor]:
    drawn = model.initial_parameters(seeded())
    return {name: value.unsqueeze(0).double() for name, value in drawn.items()}


def guided(model: GraphForecaster, samples: Tensor, graph: Tensor) -> Tensor:
    """Samples whose first targets are at the phases 22, 23, 0, …."""
    phases = (22 + torch.arange(samples.shape[1])) % 24
    return model.guided(samples, phases.double().unsqueeze(0), graph)


def test_sizes_are_what_the_papers_count_is_made_of() -> None:
    parameters = Seq2SeqForecaster(layout(), PLACES, 64).initial_parameters(seeded())
    sizes = {
        part: sum(v.numel() for n, v in parameters.items() if n.startswith(part))
        for part in ("encoder.", "decoder.gru.", "decoder.")
    }
    assert sizes == {"encoder.": 13_056, "decoder.gru.": 50_688, "decoder.": 50_688 + 129}
    model = sum(value.numel() for value in parameters.values())
    assert model == 63_873
    assert model + 128 * 64 == 72_065  # with one batch of 128 encodings


def torchs(parameters: dict[str, Tensor], prefix: str, hidden: int) -> torch.nn.GRU:
    gru = torch.nn.GRU(len(parameters[prefix + "weight_ih"][0]), hidden, batch_first=True).double()
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(gru, name + "_l0").copy_(parameters[prefix + name][0].transpose(0, -1))
    return gru


@pytest.mark.parametrize(("horizon", "times"), [(1, 0), (3, 1), (3, 2)])
def test_it_equals_torchs_grus_over_the_values_in_the_order_of_time(
    horizon: int, times: int
) -> None:
    """Samples of Saturday evening and Sunday, which with 2 calendar columns hold the day, too."""
    hidden, rows = 4, 5
    distant = [day + ahead for day in (-72, -48, -24) for ahead in range(horizon)]
    places = [-3, -2, -1, *distant]
    model = Seq2SeqForecaster(layout(horizon, times), places, hidden)
    parameters = one_client(model)
    samples = rand(1, rows, len(places))
    graph = rand(1, rows, hidden, seed=2)
    calendar = torch.tensor([[(22 + row) % 24, (5 + (22 + row) // 24) % 7] for row in range(rows)])
    samples = torch.cat([samples, calendar[None, :, :times].double()], dim=2)
    inputs = guided(model, samples, graph)
    encoder = torchs(parameters, "encoder.", hidden)
    decoder = torchs(parameters, "decoder.gru.", 2 * hidden)

    def time_of(row: int, place: int) -> list[float]:
        hour = 5 * 24 + 22 + row + place  # of the week
        return [hour % 24 / 24, *([hour // 24 % 7 / 7] if times > 1 else [])]

    for row in range(rows):
        in_time = sorted(range(len(places)), key=lambda column: places[column])
        read = [[float(samples[0, row, c]), *time_of(row, places[c])] for c in in_time]
        _, h = encoder(torch.tensor([read], dtype=torch.float64))
        torch.testing.assert_close(model.encoding(parameters, inputs)[0, row], h[0, 0])
        state = torch.cat([h[0, 0], graph[0, row]]).reshape(1, 1, -1)
        value, expected = samples[0, row, 2], []
        for step in range(horizon):
            step_input = [[[float(value.detach()), *time_of(row, step - 1)]]]
            _, state = decoder(torch.tensor(step_input, dtype=torch.float64), state)
            value = state[0, 0] @ parameters["decoder.weight"][0, :, 0]
            value = value + parameters["decoder.bias"][0, 0]
            expected.append(value)
        actual = model.predict(parameters, model.encode(parameters, inputs))
        torch.testing.assert_close(actual[0, row], torch.stack(expected))


def test_what_the_server_gets_does_not_depend_on_what_it_gives() -> None:
    for model in (Seq2SeqForecaster(layout(), PLACES, 4), GuidedForecaster(8, layout(), 4)):
        parameters = one_client(model)
        samples = rand(1, 3, 6)
        none = guided(model, samples, torch.zeros(1, 3, 4, dtype=torch.float64))
        with_g = guided(model, samples, torch.ones(1, 3, 4, dtype=torch.float64))
        encodings = [
            model.encoding(parameters, guided_samples) for guided_samples in (none, with_g)
        ]
        assert torch.equal(*encodings)
        assert encodings[0].shape == (1, 3, model.encoding_width)
        assert encodings[0].abs().max() < 1
        forecasts = [model.predict(parameters, model.encode(parameters, o)) for o in (none, with_g)]
        assert not torch.isclose(*forecasts).any()


@pytest.mark.parametrize("times", [0, 2])
def test_without_g_the_guided_forecaster_is_fuelss(times: int) -> None:
    window_layout = layout(2, times)
    model, fuels = GuidedForecaster(8, window_layout, 4), Forecaster(8, window_layout)
    parameters = one_client(model)
    samples = rand(1, 3, 3 + 6)
    numbers = torch.tensor([[5.0, 1.0], [6.0, 1.0], [7.0, 6.0]], dtype=torch.float64)
    samples = torch.cat([samples, numbers[None, :, :times]], dim=2)
    without = {**parameters, "decoder.weight": parameters["decoder.weight"].clone()}
    without["decoder.weight"] = torch.cat(
        [parameters["decoder.weight"][:, :8], parameters["decoder.weight"][:, 12:]], dim=1
    )
    r = torch.cat([fuels.encode(without, samples), window_layout.blocks(samples).beside()], dim=2)
    inputs = guided(model, samples, torch.zeros(1, 3, 4, dtype=torch.float64))
    actual = model.predict(parameters, model.encode(parameters, inputs))
    torch.testing.assert_close(actual, fuels.predict(without, r))


VALUES, ANSWERS = 5, 3


def drawn(network: GraphNetwork) -> dict[str, Tensor]:
    """In float64, so that other orders of sums tell nothing."""
    initial = network.initial_parameters(seeded())
    return {name: value.double() for name, value in initial.items()}


ADJACENCY = torch.tensor([[9.0, 0.5, 0.0], [0.5, 0.0, 0.2], [0.7, 0.2, 0.0]])  # 0.7: one way


def test_its_size_is_the_published_one() -> None:
    parameters = GraphNetwork(64, 64).initial_parameters(seeded())
    sizes: dict[str, int] = {}
    for name, value in parameters.items():
        part = ".".join(name.split(".")[: 1 if name.startswith("answer") else 2])
        sizes[part] = sizes.get(part, 0) + value.numel()
    assert sizes == {
        "0.edges": 148_352,  # 2·64 + 1 + 64 inputs
        "0.vertices": 164_480,  # 64 + 128 + 64
        "0.whole": 180_864,  # 128 + 128 + 64
        "1.edges": 279_424,  # 2·192 + 129 + 192
        "1.vertices": 230_016,  # 192 + 128 + 192
        "1.whole": 213_632,  # 128 + 128 + 192
        "answer": 20_544,  # 320 → 64
    }
    assert sum(sizes.values()) == 1_237_312


def network_of(parameters: dict[str, Tensor], prefix: str, *parts: Tensor) -> Tensor:
    hidden = torch.cat(parts)
    for layer in range(3):
        hidden = torch.relu(hidden) if layer else hidden
        weight, bias = (parameters[f"{prefix}.{layer}.{name}"] for name in ("weight", "bias"))
        hidden = weight.T @ hidden + bias
    return hidden


def by_hand(
    parameters: dict[str, Tensor], vertices: Tensor, edges: list[tuple[int, int]]
) -> Tensor:
    """One time: edge by edge, vertex by vertex, [N, F] → [N, answers]."""
    states, graph_values = list(vertices), vertices.new_zeros(VALUES)
    on = {edge: ADJACENCY[edge].double().reshape(1) for edge in edges}
    for block in range(BLOCKS):
        messages = {
            (a, b): network_of(
                parameters, f"{block}.edges", states[a], states[b], value, graph_values
            )
            for (a, b), value in on.items()
        }
        got = [vertices.new_zeros(UPDATED) for _ in states]
        for (_, b), message in messages.items():
            got[b] = got[b] + message
        updated = [
            network_of(parameters, f"{block}.vertices", state, message, graph_values)
            for state, message in zip(states, got, strict=True)
        ]
        total = sum(messages.values(), start=vertices.new_zeros(UPDATED))
        sums = torch.stack(updated).sum(dim=0), total, graph_values
        graph_values = torch.cat([network_of(parameters, f"{block}.whole", *sums), graph_values])
        states = [torch.cat([new, state]) for new, state in zip(updated, states, strict=True)]
        on = {edge: torch.cat([messages[edge], on[edge]]) for edge in on}
    return torch.stack(states) @ parameters["answer.weight"] + parameters["answer.bias"]


@pytest.mark.parametrize(
    ("adjacency", "edges"),
    [
        (ADJACENCY, [(0, 1), (1, 0), (1, 2), (2, 0), (2, 1)]),
        (torch.full((1, 1), 100.0), []),  # who is alone has no edges, whatever the weight
    ],
)
def test_it_equals_layers_on_inputs_side_by_side(
    adjacency: Tensor, edges: list[tuple[int, int]]
) -> None:
    network = GraphNetwork(VALUES, ANSWERS)
    parameters, vertices = drawn(network), rand(2, len(adjacency), VALUES)
    present = torch.ones(2, len(adjacency), dtype=torch.bool)
    actual = network.answers(parameters, vertices, present, Graph.from_adjacency(adjacency))
    expected = torch.stack([by_hand(parameters, features, edges) for features in vertices])
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-9)


def test_who_is_absent_changes_nothing_for_the_others() -> None:
    network = GraphNetwork(VALUES, ANSWERS)
    parameters, vertices = drawn(network), rand(2, 3, VALUES)
    present = torch.tensor([[True, False, True], [True, True, True]])
    vertices[0, 1] = 1e6
    actual = network.answers(parameters, vertices, present, Graph.from_adjacency(ADJACENCY))
    without_absent = network.answers(
        parameters,
        vertices[:1, [0, 2]],
        torch.ones(1, 2, dtype=torch.bool),
        Graph.from_adjacency(ADJACENCY[[0, 2]][:, [0, 2]]),
    )
    torch.testing.assert_close(actual[0, [0, 2]], without_absent[0], rtol=1e-6, atol=1e-9)
    assert not actual[0, 1].any()
    assert actual[1, 1].any()


def test_none_is_much_longer_than_the_others() -> None:
    gradients = torch.zeros(5, 2, 2)
    for row, length in enumerate((1.0, 2.0, 3.0, 0.0, 1e30)):
        gradients[row, 0, 0] = length
    clipped, shortened = clipped_to_median(gradients, 10.0)
    # The median of the lengths above 0 is 2.5.
    assert clipped[:, 0, 0].tolist() == [1.0, 2.0, 3.0, 0.0, 25.0]
    assert shortened == 1
    assert torch.equal(clipped_to_median(gradients[:3], 10.0)[0], gradients[:3])
    zeros = torch.zeros(2, 3)
    assert clipped_to_median(zeros, 10.0)[0] is zeros
