"""A site refuses excessive settings before any work, and ends work that takes too long."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.core.loading import load
from fedproto_app.core.messages import NodeRoster, Order
from fedproto_app.core.methods import METHODS
from fedproto_app.data.shard import Shard, groups_in
from fedproto_app.node.orders import carry_out, tell_roster, with_enough
from fedproto_app.node.policy import (
    CodePolicy,
    Limits,
    TooLong,
    require_masks,
    require_named_code,
    require_within,
    within_seconds,
)
from fedproto_app.node.site import site_file
from fedproto_app.settings import Settings, flat_settings, settings_from
from tests.helpers.local_grid import LocalGrid, small_settings


def refusal(limits: Limits, **changes: Any) -> str:
    config = {key.replace("_", "-"): value for key, value in changes.items()}
    try:
        require_within(settings_from(config), limits)
    except SettingsError as error:
        return str(error)
    return ""


def test_a_run_that_multiplies_work_is_refused_by_default() -> None:
    assert refusal(Limits()) == ""
    assert refusal(Limits(), **{"local-epochs": 10**9}) == (
        "local-epochs = 1000000000: this site allows 0 … 1000 (limits.epochs)"
    )
    for limits, method, key in (
        (Limits(), "fedrep", "fedrep.head-epochs = 2000"),
        (Limits(steps=4), "pfedme", "pfedme.inner-steps = 5"),
        (Limits(steps=9), "fed-react", "encoder.steps = 500"),
        (Limits(steps=9), "ifca", "encoder.steps = 500"),
    ):
        name, _, value = key.partition(" = ")
        task = {"task": "sequence-classification"} if name.startswith("encoder") else {}
        message = refusal(limits, method=method, **task, **{name: int(value)})
        assert message.startswith(f"{key}: this site allows")
    assert refusal(Limits(epochs=5000), **{"local-epochs": 5000}) == ""
    # What another method would do is no work of this run's.
    assert refusal(Limits(epochs=10), **{"gldp.head-epochs": 2000}) == ""


def test_every_setting_of_work_has_a_limit() -> None:
    """A new setting that counts epochs or steps under another name would have no limit."""
    numbers = {
        key
        for method in METHODS
        for key, value in flat_settings(Settings(method=method)).items()
        if isinstance(value, int) and not isinstance(value, bool)
        if any(word in key for word in ("epoch", "iteration", "-steps"))
    }
    limited = {key for key in numbers if key.endswith(("epochs", "steps", "iterations"))}
    assert numbers == limited
    assert len(numbers) > 15


def test_methods_and_tasks_are_the_sites_to_choose() -> None:
    only = Limits(methods=("fedavg", "fuels"), tasks=("forecasting",))
    assert refusal(only, method="fuels") == ""
    assert refusal(only, method="solo") == (
        "method = 'solo': this site allows fedavg, fuels (limits.methods)"
    )
    assert "limits.tasks" in refusal(only, task="sequence-regression", method="fedavg")


def test_a_site_may_let_arrays_leave_in_masked_sums_alone() -> None:
    masked = {"method": "fedavg", "aggregation.secure": True, "aggregation.secure-minimum": 5}
    require_masks(settings_from(masked), 5)
    require_masks(settings_from({}), 0)
    for changed, why in (
        ({"aggregation.secure": False}, r"aggregation.secure = false: arrays leave this site"),
        ({"aggregation.secure-minimum": 4}, r"secure-minimum = 4: .* at least 5 nodes"),
        ({"aggregation.secure-share": 0.6}, r"secure-share = 0.6: .* at least 2/3 against"),
    ):
        with pytest.raises(SettingsError, match=why):
            require_masks(settings_from({**masked, **changed}), 5)


@pytest.mark.parametrize("key", ["method", "data.source", "model.name"])
def test_a_run_names_no_code_that_the_site_has_not_allowed(key: str) -> None:
    config = {key: "shutil:rmtree", "device": "cuda:0", "seed": 3}
    with pytest.raises(SettingsError, match=rf"{key} = 'shutil:rmtree'.* allows: none"):
        require_named_code(config, CodePolicy())
    with pytest.raises(SettingsError, match="allows: mine:METHOD"):
        require_named_code(config, CodePolicy(own=("mine:METHOD",)))
    require_named_code(config, CodePolicy(own=("shutil:rmtree",)))


def test_what_is_let_through_as_no_code_is_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing a module runs its code, whatever name is looked up in it."""
    (tmp_path / "planted.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for text in ("planted:", "planted:1", "planted:a-b", "planted: NAME", "planted"):
        require_named_code({"model.module": text}, CodePolicy())
        with pytest.raises(SettingsError, match=r"expected package\.module:NAME"):
            load(text, "model.module")


def test_an_order_that_takes_longer_is_ended() -> None:
    start = time.monotonic()
    with (
        pytest.raises(TooLong, match=r"limits.seconds = 1 of this site"),
        within_seconds(Limits(seconds=1)),
    ):
        time.sleep(60)
    assert time.monotonic() - start < 5
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with within_seconds(Limits(seconds=1)):
        pass
    time.sleep(1.1)  # no alarm comes late


def write_site(tmp_path: Path, limits: str) -> dict[str, Any]:
    file = tmp_path / "site.toml"
    file.write_text(
        f'name = "harbour"\nstate-dir = "state"\n{limits}\n[data]\nsource = "synthetic-traffic"\n'
    )
    return {"site": str(file)}


def test_a_node_tells_the_server_why_it_refuses(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, **{"local-epochs": 1001})
    (context,) = LocalGrid(settings, [write_site(tmp_path, "")]).contexts.values()
    roster: NodeRoster = tell_roster(context, simulated=False)
    assert roster.error == "local-epochs = 1001: this site allows 0 … 1000 (limits.epochs)"
    assert not roster.samples
    # An order all the same: its clients fail for that reason, and nothing is written.
    order = Order("run", "0a", 1, ["cell-1"])
    assert carry_out("train", order, context, simulated=False).failed == {"cell-1": roster.error}
    assert not (tmp_path / "state").exists()


def test_groups_are_the_sites_word_or_in_a_simulation_the_runs(tmp_path: Path) -> None:
    table = tmp_path / "groups.csv"
    table.write_text("client,group\noffice-00,towers\n", encoding="utf-8")
    three = {"data.synthetic.clients": 3, "data.groups": str(table)}
    settings = small_settings(tmp_path, **three)
    kinds = {f"{kind}-00": kind for kind in ("office", "residential", "nightlife")}
    for site, simulated, expected in (
        ("", True, {**kinds, "office-00": "towers"}),
        ("", False, kinds),
        ('group = "mine"', True, dict.fromkeys(kinds, "mine")),
    ):
        assert roster_of(tmp_path, site, settings, simulated=simulated).groups == expected
    for text in ("office-00\n", None):
        table.write_text(text) if text else table.unlink()
        with pytest.raises(
            DataError, match=r"data.groups = '.*groups.csv': expected lines of a cl"
        ):
            groups_in(str(table))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[limits]\nepochs = 0", r"site.toml: limits.epochs = 0"),
        ("[limits]\nepoch = 3", r"limits.epoch"),
        ("[code]\nrun = 'mine'", r"code.run = 'mine'"),
        ("[code]\ndigests = ['12']", r"code.digests"),
        ("[masked-sums]\nleast = -1", r"masked-sums.least = -1"),
        ("[masked-sums]\nknown = ['ssh-rsa AAAA']", r"'ssh-rsa AAAA': must be a public key"),
    ],
)
def test_a_wrong_file_is_refused_by_key(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        site_file(Path(write_site(tmp_path, text)["site"]))


def test_the_file_in_the_guide_is_good() -> None:
    site = site_file(Path(__file__).parents[2] / "docker" / "site.toml")
    assert site.code.run == "installed"
    assert site.limits == Limits(memory_mb=4096)
    assert site.audit == "/audit/audit.jsonl"


# --- how many periods and samples must stand behind what leaves -----------------------------------


def roster_of(tmp_path: Path, limits: str, settings: Settings, *, simulated: bool) -> NodeRoster:
    (context,) = LocalGrid(settings, [write_site(tmp_path, limits)]).contexts.values()
    roster: NodeRoster = tell_roster(context, simulated=simulated)
    return roster


def test_a_run_that_reads_single_days_is_refused_in_one_line(tmp_path: Path) -> None:
    days = {"data.synthetic.days": 42, "method": "kindred"}
    for history, limits, allowed in (
        (1, "", "7"),
        (6, "", "7"),
        (7, "", ""),
        (2, "[limits]\nleast-periods = 3", "3"),
        (1, "[limits]\nleast-periods = 0", ""),
    ):
        settings = small_settings(tmp_path, **days, **{"data.history": history})
        roster = roster_of(tmp_path, limits, settings, simulated=False)
        reason = (
            f"data.history = {history}: this site's clients train on at least {allowed} periods "
            "(limits.least-periods)"
        )
        assert roster.error == (reason if allowed else "")
        assert bool(roster.samples) == (not allowed)
        # One machine has one owner.
        assert not roster_of(tmp_path, limits, settings, simulated=True).error


def test_a_run_cannot_move_a_part_by_days(tmp_path: Path) -> None:
    """The first block begins on day 7. Of 39 days, 70% and 68% end after day 28, and 60% and 50%
    after day 21."""
    samples = []
    for share in (0.7, 0.68, 0.6, 0.5):
        changes = {"data.synthetic.days": 42, "method": "kindred", "data.train-share": share}
        # What a run says of blocks counts for nothing.
        settings = small_settings(tmp_path, **changes, **{"data.least-periods": 1})
        roster = roster_of(tmp_path, "", settings, simulated=False)
        samples.append(set(roster.samples.values()))
    assert samples == [{3 * 168}, {3 * 168}, {2 * 168}, {2 * 168}]


NOISE = {"privacy.mechanism": "gaussian", "privacy.noise-multiplier": 1.0}


@pytest.mark.parametrize("privacy", [{}, NOISE])
def test_clients_of_too_few_periods_only_receive(tmp_path: Path, privacy: dict[str, Any]) -> None:
    """They declare no samples, also where clients withhold their number."""
    few_samples = {"data.train-share": 0.2}  # of 14 days 2.8, less than half a block
    settings = small_settings(tmp_path, method="fedavg", **few_samples, **privacy)
    roster = roster_of(tmp_path, "", settings, simulated=False)
    assert roster.samples == dict.fromkeys(roster.samples, 0)
    assert len(roster.samples) == 8
    assert not roster.refused


def test_a_client_needs_samples_enough() -> None:
    class Client:
        def __init__(self, name: str, train_samples: int) -> None:
            self.name, self.train_samples = name, train_samples

    clients: Any = {name: Client(name, n) for name, n in (("few", 9), ("enough", 10))}
    shard = with_enough(Shard(clients, {"broken": "an image"}), 10)
    assert list(shard.clients) == ["enough"]
    assert shard.refused == {
        "broken": "an image",
        "few": "9 train samples: this site's clients train on at least 10 (limits.least-samples)",
    }
