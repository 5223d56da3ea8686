"""FedAvg on FUELS's forecaster as Flower's own tutorials write it: a node is a client.

The peer of `benchmarks.stock_flower`. It takes the same windows and batches as fedproto-app; all
else is Flower's FedAvg, torch.nn and torch.optim. To be no easier prey than it must, it keeps its
data in memory between rounds and takes batches by index instead of through a DataLoader.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import ClientWindows, make_windows
from fedproto_app.settings import settings_from

CLOSE, HIDDEN = 3, 128

client_app = ClientApp()
server_app = ServerApp()


class Forecaster(nn.Module):
    """Two GRUs over the close and the periodic values, one linear layer: [B, 6] → [B]."""

    def __init__(self) -> None:
        super().__init__()
        self.close = nn.GRU(1, HIDDEN, batch_first=True)
        self.periodic = nn.GRU(1, HIDDEN, batch_first=True)
        self.decoder = nn.Linear(2 * HIDDEN, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        windows = inputs.unsqueeze(2)
        _, close = self.close(windows[:, :CLOSE])
        _, periodic = self.periodic(windows[:, CLOSE:])
        representation = torch.cat([close[0], periodic[0]], dim=1)
        prediction: Tensor = self.decoder(representation).squeeze(1)
        return prediction


@cache
def all_clients(clients: int, days: int) -> list[ClientWindows]:
    """The synthetic clients; loaded once in each process, so that only round 1 pays for it."""
    settings = settings_from({"data.synthetic.clients": clients, "data.synthetic.days": days})
    return [make_windows(series, settings.data) for series in load_series(settings.data)]


def train_epoch(model: Forecaster, client: ClientWindows, learning_rate: float) -> float:
    """One epoch of the client's batches in random order; returns its mean loss."""
    inputs, targets = torch.from_numpy(client.inputs), torch.from_numpy(client.targets)
    present, batches = torch.from_numpy(client.present), torch.from_numpy(client.batches)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    total = 0.0
    for batch in batches[torch.randperm(len(batches))]:
        optimizer.zero_grad()
        squared = (model(inputs[batch]) - targets[batch]).square() * present[batch]
        loss = squared.sum() / present[batch].sum().clamp(min=1)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(batches)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on this node's client and send it back."""
    model = Forecaster()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    config = context.run_config
    clients = all_clients(int(config["clients"]), int(config["days"]))
    client = clients[int(context.node_config["partition-id"])]
    loss = train_epoch(model, client, float(config["learning-rate"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": client.train_samples})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Flower's FedAvg over all nodes; notes the mean loss at the end of each round."""
    config = context.run_config
    rounds_file = Path(str(config["rounds-file"]))

    def mean_loss(replies: list[RecordDict], weighted_by_key: str) -> MetricRecord:
        losses = [float(str(reply.metric_records["metrics"]["train_loss"])) for reply in replies]
        loss = sum(losses) / len(losses)
        with rounds_file.open("a") as rounds:
            rounds.write(json.dumps({"clients": len(losses), "loss": {"total": loss}}) + "\n")
        return MetricRecord({"train_loss": loss})

    nodes = int(config["clients"])
    strategy = FedAvg(
        min_train_nodes=nodes,
        min_available_nodes=nodes,
        fraction_evaluate=0.0,
        train_metrics_aggr_fn=mean_loss,
    )
    arrays = ArrayRecord(Forecaster().state_dict())
    strategy.start(grid, arrays, num_rounds=int(config["num-server-rounds"]))
