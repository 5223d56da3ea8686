"""Sequences with a class or a number each."""

_CLASSES: dict[str, object] = {
    "rounds": 4,
    "data.source": "synthetic-air-writing",
    "data.synthetic.clients": 8,
    "data.synthetic.sequences": 320,
    "data.sequences.steps": 16,
    "data.clusters.clients": 8,
    "data.clusters.clusters": 2,
    "model.representation-dim": 16,
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
    "output.pictures": False,
}
_NUMBERS: dict[str, object] = {
    "data.sequences.target": "seconds",
    "data.sequences.target-scale": 4.0,
    "data.clusters.scheme": "given",
}
SMALL_RUNS = {"sequence-classification": _CLASSES, "sequence-regression": _CLASSES | _NUMBERS}
