"""A site's privacy ledger: over all runs, once per release, written before it leaves."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedproto_app.core.errors import SettingsError
from fedproto_app.settings import PrivacySettings
from fedproto_app.trust.privacy_ledger import BudgetSpentError, PrivacyLedger, SitePrivacy
from fedproto_app.trust.privacy_loss import epsilon_of

RUN = PrivacySettings(mechanism="gaussian", noise_multiplier=2.0)  # µ² = 1/4
REPLACING = PrivacySettings(mechanism="gaussian", noise_multiplier=2.0, neighbours="replace")
EXACT, NOISED = (RUN.model_copy(update={"metrics": metrics}) for metrics in ("exact", "noised"))


def account(folder: Path) -> dict[str, float]:
    [file] = (folder / "spent").glob("*.json")
    content: dict[str, float] = json.loads(file.read_text())
    return content


def test_runs_add_up_and_the_same_answer_costs_once(tmp_path: Path) -> None:
    for tags in (["a", "b"], ["b"], ["c"]):  # each run is another process
        PrivacyLedger(tmp_path, SitePrivacy()).enter("cell", RUN, 0.25, tags)
    assert account(tmp_path)["releases"] == 3
    assert account(tmp_path)["spent"] == {"client": 0.75, "sample": 0.0}


def test_what_would_exceed_the_sites_epsilon_does_not_leave_and_is_not_counted(
    tmp_path: Path,
) -> None:
    ledger = PrivacyLedger(tmp_path, SitePrivacy(max_epsilon=epsilon_of(0.5, 1e-5) + 1e-6))
    ledger.enter("cell", RUN, 0.25, ["a"])
    ledger.enter("cell", RUN, 0.25, ["b"])
    with pytest.raises(BudgetSpentError, match=r"max-epsilon = .*'cell' would have spent"):
        ledger.enter("cell", RUN, 0.25, ["c"])
    ledger.enter("cell", RUN, 0.25, ["a"])  # the same answer again
    ledger.enter("other", RUN, 0.25, ["c"])  # who has spent nothing
    spent = [
        json.loads(path.read_text())["releases"] for path in (tmp_path / "spent").glob("*.json")
    ]
    assert sorted(spent) == [1, 2]


def test_noise_for_replacing_is_half_as_dear_where_removing_counts(tmp_path: Path) -> None:
    """Its deviation is 2·C·σ: by C, µ = 1/(2σ) = 1/4."""
    PrivacyLedger(tmp_path, SitePrivacy()).enter("cell", REPLACING, 0.25, ["a"])
    assert account(tmp_path)["spent"] == {"client": 0.0625, "sample": 0.0}


def test_a_site_that_counts_replacing_counts_removing_twice(tmp_path: Path) -> None:
    """µ = 2/σ = 1 of one release, so µ² = 1."""
    site = SitePrivacy(max_epsilon=epsilon_of(1.0, 1e-5) - 1e-6, neighbours="replace")
    with pytest.raises(BudgetSpentError):
        PrivacyLedger(tmp_path, site).enter("cell", RUN, 0.25, ["a"])


def test_an_account_that_cannot_be_read_stops_all(tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path, SitePrivacy())
    ledger.enter("cell", RUN, 0.25, ["a"])
    [file] = (tmp_path / "spent").glob("*.json")
    file.write_text('{"spent":')
    with pytest.raises(SettingsError, match="not a valid account"):
        ledger.enter("cell", RUN, 0.25, ["b"])


def test_processes_at_once_lose_no_release(tmp_path: Path) -> None:
    def enter(number: int) -> None:
        PrivacyLedger(tmp_path, SitePrivacy()).enter("cell", RUN, 0.25, [f"tag-{number}"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, range(40)))
    assert account(tmp_path)["releases"] == 40


@pytest.mark.parametrize(
    ("site", "run", "noise", "why"),
    [
        ({"max_epsilon": 8.0}, PrivacySettings(), None, "privacy.mechanism = 'none'"),
        ({"min_noise": 3.0}, RUN, 2.0, "noise-multiplier = 2: .*min-noise = 3"),
        ({"min_noise": 2.0, "neighbours": "replace"}, RUN, 2.0, "is 1 with .*'replace'"),
        ({"max_epsilon": 8.0, "unit": "sample"}, RUN, 2.0, "unit = 'client': .*'sample'"),
        ({"max_epsilon": 8.0}, EXACT, 2.0, "metrics = 'exact': .*'noised' at most"),
        ({"metrics": "none"}, PrivacySettings(), None, "metrics = 'auto': .*'none' at most"),
        ({"metrics": "none"}, NOISED, 2.0, "metrics = 'noised': .*'none' at most"),
    ],
)
def test_a_site_cannot_be_talked_out_of_what_it_demands(
    site: dict[str, float], run: PrivacySettings, noise: float | None, why: str
) -> None:
    with pytest.raises(SettingsError, match=why):
        SitePrivacy.model_validate(site).require(run, noise)


def test_what_does_as_much_is_let_in() -> None:
    SitePrivacy().require(PrivacySettings(), None)
    SitePrivacy(max_epsilon=1.0, min_noise=2.0).require(RUN, 2.0)
    SitePrivacy(min_noise=4.0).require(REPLACING, 2.0)
    SitePrivacy(max_epsilon=1.0).require(NOISED, 2.0)
    SitePrivacy(max_epsilon=1.0, metrics="exact").require(EXACT, 2.0)
    SitePrivacy(metrics="none").require(PrivacySettings(metrics="none"), None)
