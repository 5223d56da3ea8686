"""The version of the app, the same as in pyproject.toml, where Flower needs a literal."""

__version__ = "0.2.0"
