"""Personalised federated learning on heterogeneous time series and images, as a Flower app."""

__version__ = "0.1.0"  # the same as in pyproject.toml: Flower needs it static there
