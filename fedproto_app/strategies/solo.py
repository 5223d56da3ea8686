"""Solo, server half: ask every client to train, listen to its errors, send nothing."""

from __future__ import annotations

from fedproto_app.strategies.strategy import PersonalStrategy


class SoloStrategy(PersonalStrategy):
    """The base strategy, with nothing to exchange."""
