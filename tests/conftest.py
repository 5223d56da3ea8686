"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# A slow machine is no fault of what is tested.
settings.register_profile("fedproto", deadline=None)
settings.load_profile("fedproto")
