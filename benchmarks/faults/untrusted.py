"""Nodes that must be refused: poisoned and repeated replies, strangers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.faults.rows import COMPLETE, HIT, counts, harmed, row
from benchmarks.faults.table import Row, fault
from benchmarks.faults.trial import NODES, ROUNDS, Trial, summary
from benchmarks.local_federation import LocalFederation
from fedproto_app.ops.keys import make_keys


@fault("poisoned-replies")
def poisoned_replies(folder: Path) -> Iterator[Row]:
    """One poison a round: see `hook.poison`."""
    poisons = {
        "NaN": "NaN or infinite",
        "a wrong shape": "has shape",
        "a huge weight": f"reports {10**12} train samples",
        "a negative count": "reports -5 train samples",
    }
    with Trial(folder, {"rounds": len(poisons) + 2}) as trial:
        trial.begin(fault="poison")
        trial.finish()
        *poisoned, foreign, last = trial.rounds()
        refusals = [line["refused"] for line in poisoned]
        yield Row(
            f"replies with {', '.join(poisons)}, one a round",
            "refused by name; the others continue",
            summary(trial.rounds()),
            good=last["clients"] == 6
            and not last["refused"]
            and all(line["clients"] >= 4 for line in poisoned)
            and all(
                len(refused) == 1 and refused[0]["node"] == HIT and reason in refused[0]["reason"]
                for refused, reason in zip(refusals, poisons.values(), strict=True)
            ),
        )
        (refusal,) = foreign["refused"]
        yield Row(
            "a node replies for a client of another node",
            "that client refused by name; the others count",
            summary([foreign]),
            good=refusal["node"] == HIT
            and refusal["reason"] == "not a client of this node that was asked"
            and foreign["clients"] == 5,
        )


@fault("junk-replies")
def junk_replies(folder: Path, array: int = 300, allowed: int = 256) -> Iterator[Row]:
    """Junk in every reply of a node: four arrays, in MB, where one reply may have less.

    The database and its write-ahead log each hold what the node has sent until it is refused.
    """
    environment = {"FEDPROTO_LARGEST_REPLY_MB": str(allowed)}
    with Trial(folder, {"local-epochs": 1}, environment=environment) as trial:
        trial.begin(fault=f"junk-{array}")
        database, largest = folder / "federation" / "superlink.db", 0

        def ended() -> bool:
            nonlocal largest
            sizes = [path.stat().st_size for path in database.parent.glob(f"{database.name}*")]
            largest = max(largest, sum(sizes))
            return len(trial.rounds()) == ROUNDS

        trial.wait_until(ended, "the last round", 500)
        trial.finish()
        log = trial.federation.superlink.log_text()
        refusals = log.count(f"a reply may have {allowed} MB in all")
        yield row(
            trial,
            f"every reply of a node has {4 * array} MB of junk; {allowed} MB are allowed",
            "refused before it is stored; the others continue",
            good=counts(trial) == [(2, 3)] * ROUNDS
            and refusals > 0
            and largest < (3 * allowed + 50) * 2**20,
            also=f"{refusals} refusals by the SuperLink, whose database had {largest >> 20} MB",
        )


@fault("duplicate-replies", "fuels")
def duplicate_replies(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        trial.begin(fault="duplicate")
        trial.finish()
        pushes = trial.federation.superlink.log_text().count("Fleet.PushMessages")
        replies = (ROUNDS + 1) * len(NODES)
        replayed = pushes - replies
        also = f"{pushes} pushes of {replies} replies"
        for harm, expected, fewest in (
            ("a node sends every reply twice", "the second changes nothing", 1),
            (
                "a node sends all its earlier replies with each reply",
                "they change nothing",
                ROUNDS + 2,
            ),
        ):
            good = replayed >= fewest and counts(trial) == COMPLETE
            yield row(trial, harm, expected, good=good, method="fuels", also=also)


@harmed(
    "withheld-parts",
    "a node announces its reply of round 2, and never sends its parts; deadline 60 s",
    "waited for until the deadline; the others continue",
    changes={"nodes.round-deadline": 60.0, "local-epochs": 1},
)
def withheld_parts(trial: Trial) -> tuple[bool, str]:
    """A reply that is announced and never sent, in a phase that all others end in seconds."""
    trial.begin(fault="announce")
    trial.finish()
    (late,) = trial.rounds()[1]["refused"]
    seconds = trial.rounds()[1]["seconds"]["total"]
    good = counts(trial)[1] == (2, 3) and all(answered >= 2 for answered, _ in counts(trial))
    return good and late["node"] == HIT and seconds < 80, f"{seconds:.0f} s"


@harmed(
    "no-message",
    "a node's reply of round 2 is no message of Flower's",
    "refused by name; the others continue",
    changes={"local-epochs": 1},
)
def no_message(trial: Trial) -> tuple[bool, str]:
    trial.begin(fault="no-message")
    trial.finish()
    (refused,) = trial.rounds()[1]["refused"]
    return counts(trial) == [(3, 3), (2, 3), (3, 3), (3, 3)] and refused["node"] == HIT, ""


@fault("strangers")
def strangers(folder: Path) -> Iterator[Row]:
    folder.mkdir(parents=True)
    make_keys(folder / "other", ["127.0.0.1"], [])
    with LocalFederation(folder / "federation") as federation:
        refused = {
            "node with an unregistered key": (
                federation.add_node("unregistered", {}, registered=False),
                r"code[^\n]*2004|2004[^\n]*",
            ),
            "node that trusts another CA": (
                federation.add_node("wrong-ca", {}, ca=folder / "other" / "ca.crt"),
                r"CERTIFICATE_VERIFY_FAILED",
            ),
            "node with a key, without TLS": (
                federation.add_node("plaintext-key", {}, plaintext=True),
                r"requires a secure TLS connection",
            ),
        }
        plaintext = federation.add_node("plaintext", {}, plaintext=True, has_key=False)
        for stranger, (node, reason) in refused.items():
            code = node.wait_until_ended(deadline=120)
            message = re.search(reason, node.log_text())
            flower = re.search(r"Exit Code: (\d+)", node.log_text())
            exit_text = f"Flower's exit code {flower[1]}" if flower else f"exit code {code}"
            words = f", {message[0]}" if message else ""
            yield Row(
                stranger, "refused", exit_text + words, good=code != 0 and message is not None
            )
        pattern = r"(?s)Connection attempt failed.*Connection attempt failed"
        plaintext.wait_for_log(pattern, deadline=120)
        online = federation.online()
        yield Row(
            "node without key and TLS",
            "never connected",
            f"it tries again and again; {len(online)} nodes online",
            good=not online and "SuperNode ID" not in plaintext.log_text(),
        )
