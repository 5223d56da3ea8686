"""Other ways to train FUELS's forecaster by FedAvg, for `benchmarks.stock_flower`."""
