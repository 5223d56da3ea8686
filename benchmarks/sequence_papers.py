"""What Fed-REACT's paper prints for the rows of docs/results/sequences.md."""

from __future__ import annotations

from benchmarks.sequence_rows import BETA_ROWS, EV_CLUSTERS, LSTM, WINDOWS

# The paper's figures by row: accuracies, and RMSE for the vehicles.
_TABLE_2 = ("sc", "ec", "a1", "a2", "a3", "ifca", "flsc")
PAPER: dict[str, dict[str, float]] = {
    "encoder": {  # table 1, 10 clients
        **dict(zip(LSTM, (0.732, 0.804, 0.863, 0.828), strict=True)),
        "encoder-svm": 0.992,
    },
    "clusters": dict(zip(_TABLE_2, (0.763, 0.859, 0.909, 0.928, 0.943, 0.774, 0.83), strict=True)),
    "encoder50": {  # table 1, 50 clients
        **dict(zip(LSTM, (0.945, 0.896, 0.859, 0.946), strict=True)),
        "encoder-svm": 0.948,
    },
    "scale100": dict(zip(_TABLE_2, (0.716, 0.737, 0.75, 0.751, 0.739, 0.74, 0.729), strict=True)),
    "beta": {  # table 3
        f"{beta}-{name}": figure
        for beta, figures in {
            0.1: (0.887, 0.887, 0.888, 0.900, 0.889, 0.693),
            0.25: (0.868, 0.868, 0.872, 0.871, 0.872, 0.761),
            0.5: (0.809, 0.809, 0.816, 0.815, 0.711, 0.735),
            2.0: (0.712, 0.721, 0.742, 0.738, 0.730, 0.721),
        }.items()
        for name, figure in zip(BETA_ROWS, figures, strict=True)
    },
    "ev": {  # table 4
        **dict(zip(LSTM, (43.2, 42.3, 42.0, 42.7), strict=True)),
        **{
            f"c-{c}": rmse
            for c, rmse in zip(EV_CLUSTERS, (24.4, 23.7, 13, 8.8, 5.8, 1.3), strict=True)
        },
    },
    "dtssgd": {  # table 5
        "w1": 0.988,
        **{
            f"w{window}-{factor}": figure
            for factor, figures in {
                0.7: (0.984, 0.988, 0.986),
                0.8: (0.990, 0.982, 0.985),
                0.9: (0.980, 0.990, 0.990),
            }.items()
            for window, figure in zip(WINDOWS, figures, strict=True)
        },
    },
}
