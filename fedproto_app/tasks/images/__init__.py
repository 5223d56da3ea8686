"""Classification of images."""

SMALL_RUNS: dict[str, dict[str, object]] = {
    "classification": {
        "keep": "last",
        "rounds": 4,
        "local-epochs": 2,
        "data.source": "digits",
        "data.synthetic.clients": 8,
        "data.partition.clients": 8,
        "data.partition.classes": 3,
        "data.partition.stages": 2,
        "data.partition.imbalance-factor": 4.0,
        "data.partition.samples": 12,
        "model.representation-dim": 16,
        "model.width": 4,
        "optimizer.name": "sgd",
        "optimizer.learning-rate": 0.05,
        "output.pictures": False,
        "classification.batch-size": 5,
        "classification.augment": "crop",
        "gldp.encoder-epochs": 2,
        "gldp.head-epochs": 2,
    }
}
