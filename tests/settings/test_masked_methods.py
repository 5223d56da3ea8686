"""Which methods go with masked sums, by their declarations, and the refusals."""

from __future__ import annotations

from typing import Any

import pytest

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.methods import METHODS
from fedproto_app.core.sends import Sends, unmaskable
from fedproto_app.settings import settings_from
from fedproto_app.settings.fit import releases_of

MASKED = {"aggregation.secure": True}


def settings_of(method: str, **changes: Any) -> Any:
    task = (*METHODS[method].tasks, "forecasting")[0]
    clusters = {"fed-react.clusters": 2} if METHODS[method].pretraining else {}
    return settings_from({"method": method, "task": task, "keep": "last", **clusters, **changes})


def declared(method: str) -> tuple[Sends, ...]:
    return releases_of(METHODS[method], settings_of(method))


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_taken_or_refused_with_the_reason(method: str) -> None:
    reason = unmaskable(declared(method))
    if not reason:
        assert settings_of(method, **MASKED).aggregation.secure
        return
    with pytest.raises(SettingsError) as caught:
        settings_of(method, **MASKED)
    start = f"aggregation.secure = true: method = {method!r} {reason}; for task = "
    assert str(caught.value).startswith(start)
    assert " masked sums go with " in str(caught.value)


@pytest.mark.parametrize(
    ("release", "reason"),
    [
        (Sends("model", combine="mean"), ""),
        (Sends("sums", combine="sum"), ""),
        (Sends("model"), "looks at each client's model"),
        (Sends("head", combine="groups"), "averages the clients' head in groups"),
        (
            Sends("prototype", combine="mean", remember="latest"),
            "remembers each client's latest prototype",
        ),
        (Sends("prototype", combine="mean", remember="latest", of_present="the mean of now"), ""),
    ],
)
def test_the_reason_follows_from_the_declaration(release: Sends, reason: str) -> None:
    assert unmaskable([Sends("other", combine="sum"), release]) == reason


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aggregation.rule": "median"}, "client's model, and a masked sum hides these"),
        ({"method": "analytic", "analytic.sharing": "none"}, "method = 'analytic' sends nothing;"),
        (
            {
                "task": "sequence-classification",
                "method": "analytic",
                "analytic.sharing": "clustered",
            },
            "method = 'analytic' averages the clients' sums in groups; for task = ",
        ),
        ({"aggregation.secure-share": 0.4}, "secure-share = 0.4: input should be greater than or "),
    ],
)
def test_settings_that_exclude_masks_are_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_from({"method": "fedavg", **MASKED, **changes})
    assert why in str(caught.value)
