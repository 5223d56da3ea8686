"""Forecasting: series of values, cut into windows."""

SMALL_RUNS: dict[str, dict[str, object]] = {
    "forecasting": {
        "rounds": 3,
        "data.synthetic.clients": 8,
        "data.synthetic.days": 14,
        "model.representation-dim": 16,
        "output.pictures": False,
        "fuels.prototype-dim": 4,
    }
}
