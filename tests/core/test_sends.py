"""What follows from a declaration."""

from __future__ import annotations

from typing import Any

import pytest

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Reply
from fedproto_app.core.sends import Expected, Sends, Sizes, averages, model

SIZES = Sizes(
    period=24, width=8, classes=3, parameters={"encoder.w": (8, 2), "head.w": (8,), "head.b": ()}
)
ROWS = Sends("rows", {"rows": (4,)}, rows="class")
SUMS = Sends("sums", {"sums": (2, 2)}, combine="sum", any_size=True, when="evaluated")
ANSWER = Sends("answer", {"answer": (9,)}, when="question")


def test_replies_are_expected_as_declared() -> None:
    releases = [model("encoder."), Sends("p", {"p": (24, 8)}), ROWS, SUMS, ANSWER]
    plain = Expected.declared(releases, SIZES, evaluates=False)
    assert plain == Expected(
        mean={"encoder.w": (8, 2)},
        per_client={"p": (24, 8)},
        per_class={"rows": (4,)},
        classes=3,
        models=[],
        of_any_size=[],
    )
    judged = Expected.declared(releases, SIZES, nodes_average=False, evaluates=True)
    assert judged.mean == {}
    assert judged.per_client == {"encoder.w": (8, 2), "p": (24, 8), "sums": (2, 2)}
    assert (judged.models, judged.of_any_size) == (["encoder.w"], ["sums"])


def test_values_are_counted_for_each_client() -> None:
    expected = Expected.declared([model("head."), ROWS], SIZES, evaluates=False)
    reply = Reply(["a", "b"], [1, 1], classes=[[0, 2], [1]])
    assert expected.values(reply) == 2 * (8 + 1) + 3 * 4


@pytest.mark.parametrize(
    ("release", "rule"),
    [
        (model(), True),
        (Sends("head", combine="groups"), True),
        (Sends("sums", combine="sum"), True),
        (Sends("prototype"), False),
    ],
)
def test_a_robust_rule_can_replace_means_and_sums(release: Sends, rule: bool) -> None:
    assert averages([release]) == rule


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"combine": "average"}, "combine = 'average': expected 'each', 'groups', 'mean', 'sum'"),
        ({"clip": "all"}, "clip = 'all': expected '', 'step', 'rows', 'sums'"),
        ({"consent": "anything"}, "consent = 'anything'"),
        ({"clip": "step", "arrays": {"p": (2,)}}, "'step' goes with parameters"),
        ({"clip": "rows", "parameters": ("",)}, "'rows' and 'sums' with arrays"),
    ],
)
def test_a_declaration_that_cannot_be_kept_is_refused(fields: Any, message: str) -> None:
    """Noise on a step would leave arrays that are declared with it as they are."""
    with pytest.raises(SettingsError, match=message):
        Sends("p", **fields)
