"""The command line as a person calls it, for reports about what it says."""

from __future__ import annotations

from tests.cli.conftest import check as check
from tests.cli.conftest import fedproto as fedproto
