"""Settings of each task for a run that takes seconds: 8 clients, small models, few rounds.

For checks of methods (`experiments.invariants`), tests and comparisons of two versions.
"""

from __future__ import annotations

from collections.abc import Mapping

_COMMON: Mapping[str, object] = {
    "rounds": 3,
    "data.synthetic.clients": 8,
    "model.representation-dim": 16,
    "output.pictures": False,
}
SERIES: Mapping[str, object] = {
    **_COMMON,
    "data.synthetic.days": 14,
    "fuels.prototype-dim": 4,
}
IMAGES: Mapping[str, object] = {
    **_COMMON,
    "keep": "last",
    "rounds": 4,
    "local-epochs": 2,
    "data.source": "digits",
    "data.partition.clients": 8,
    "data.partition.classes": 3,
    "data.partition.stages": 2,
    "data.partition.imbalance-factor": 4.0,
    "data.partition.samples": 12,
    "model.width": 4,
    "optimizer.name": "sgd",
    "optimizer.learning-rate": 0.05,
    "classification.batch-size": 5,
    "classification.flip": False,
    "gldp.encoder-epochs": 2,
    "gldp.head-epochs": 2,
}
_SEQUENCES: Mapping[str, object] = {
    **_COMMON,
    "rounds": 4,
    "model.embedding-dim": 6,
    "model.hidden-dim": 8,
    "sequence.batch-size": 10,
    "encoder.rounds": 2,
    "encoder.steps": 3,
    "encoder.blocks": 3,
    "encoder.channels": 6,
    "encoder.reduced-dim": 8,
    "encoder.output-dim": 10,
    "fed-react.clusters": 2,
    "fed-react.samples": 16,
}
LABELLED_SEQUENCES: Mapping[str, object] = {
    **_SEQUENCES,
    "data.source": "synthetic-air-writing",
    "data.synthetic.sequences": 320,
    "data.sequences.steps": 16,
    "data.clusters.clients": 8,
    "data.clusters.clusters": 2,
}
MEASURED_SEQUENCES: Mapping[str, object] = {
    **LABELLED_SEQUENCES,
    "data.sequences.target": "seconds",
    "data.sequences.target-scale": 4.0,
    "data.clusters.scheme": "given",
}
