"""The same forecaster under stock Flower: FedAvg with one client per node.

The peer of `benchmarks.stock_flower`, written as in Flower's tutorials: `torch.nn.GRU`,
`torch.optim.Adam`, one model and one optimiser per message. It avoids what would only make it
slower: it keeps its data in memory between rounds, evaluates nothing, has its batches ready
instead of a DataLoader, and its Adam is fused.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.peers.forecaster import Batch, Forecaster, one_thread, read_clients, train_epoch

client_app = ClientApp()
server_app = ServerApp()


@cache
def all_clients(file: str) -> list[list[Batch]]:
    """Return every client's batches. Each process reads them once, in round 1."""
    return read_clients(Path(file))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on this node's client and send it back."""
    one_thread()
    model = Forecaster()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    clients = all_clients(str(context.run_config["clients-file"]))
    batches = clients[int(context.node_config["partition-id"])]
    loss = train_epoch(model, batches)
    samples = sum(len(inputs) for inputs, _, _ in batches)
    metrics = MetricRecord({"train_loss": loss, "num-examples": samples})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run Flower's FedAvg over all nodes, and write the mean loss at the end of each round."""
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
