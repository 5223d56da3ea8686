"""``fedproto data check`` on images, as a person calls it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Fedproto, rows
from tests.data.images.made_images import encoded, noise, write_folder


def dealt(**settings: object) -> list[str]:
    """Options that set these settings of the partition."""
    keys = {name.replace("_", "-"): value for name, value in settings.items()}
    return [f"--set=data.partition.{key}={value}" for key, value in keys.items()]


def class_folders(root: Path, clients: tuple[str, ...] = ("",), **files: bytes) -> Path:
    """Per client 6 train and 2 test images of each of two classes, and files by class."""
    image = encoded(noise(0, 4, 4, 3))
    written = {
        f"{client}/{split}/{name}/{number}.png".lstrip("/"): image
        for client in clients
        for split, number_of in (("train", 6), ("test", 2))
        for name in ("cat", "[red]dog")
        for number in range(number_of)
    }
    more = {f"{clients[0]}/train/cat/{name}.png".lstrip("/"): file for name, file in files.items()}
    return write_folder(root, written | more)


def test_digits_and_what_dealing_them_comes_to(check: Fedproto) -> None:
    outcome = check(
        *("--source", "digits"), *dealt(clients=5, stages=2, imbalance_factor=10, classes=3)
    )
    assert outcome.code == 0, outcome.err
    table = rows(outcome.out)
    assert table[0] == ["class", "train", "test", "dealt", "clients"]
    assert table[1][:3] == ["0", "161", "17"]
    assert "1621 train, 176 test; 8 × 8, grey" in outcome.out
    assert ["decoded", "1797;", "0", "corrupt"] in table
    assert "long-tail: clients 5, stages 2, classes a stage 3, imbalance factor 10" in outcome.out
    assert "clients with the rarest classes: 9: " in outcome.out
    (train,) = [row for row in table if row[:1] == ["train"] and "images" in row]
    assert train[1:] == [train[1], "images", "a", "client", "and", "stage"]  # all rows alike


def test_reserved_images_are_told(check: Fedproto, tmp_path: Path) -> None:
    (tmp_path / "reserving.toml").write_text(
        'task = "classification"\nmethod = "fedavg"\nkeep = "last"\n[data]\nsource = "digits"\n'
        "[data.partition]\nclients = 5\nstages = 2\nreserve-per-class = 7\n"
    )
    outcome = check("--config", tmp_path / "reserving.toml")
    assert outcome.code == 0, outcome.err
    (reserved,) = [row for row in rows(outcome.out) if row[:1] == ["reserved"]]
    assert reserved[1:5] == ["7", "train", "images", "of"]


def test_images_that_cannot_be_dealt_are_shown_all_the_same(check: Fedproto) -> None:
    outcome = check("--source", "digits")  # 100 client stages
    assert outcome.code == 1
    assert rows(outcome.out)[0] == ["class", "train", "test"]
    assert "1621 train, 176 test" in outcome.out
    assert "refused data.partition: too few images: 412 (2 … 149 a class)" in outcome.out


def test_corrupt_images_are_named_and_counted(check: Fedproto, tmp_path: Path) -> None:
    torn = {f"torn-{number}": b"no image" for number in range(7)}
    folder = class_folders(tmp_path, **torn)
    outcome = check(folder, *dealt(scheme="given"))
    assert outcome.code == 1
    refused = [line for line in outcome.out.split("\n") if line.startswith("refused image")]
    assert len(refused) == 5
    assert refused[0].endswith("train/cat/torn-0.png: not a JPEG, PNG or BMP image")
    assert "7 corrupt of 23 decoded; data.corrupt-images = 'skip' leaves them out" in outcome.out
    assert "[red]dog" in outcome.out
    skipped = check(folder, *dealt(scheme="given"), "--set=data.corrupt-images=skip")
    assert skipped.code == 0
    assert "warning 7 corrupt of 23 decoded" in skipped.out
    assert "refused" not in skipped.out


def test_given_clients_a_picture_and_a_hint(check: Fedproto, tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "sites", clients=("ann", "bob"))
    picture = tmp_path / "partition.png"
    outcome = check(folder, "--picture", picture)
    assert outcome.code == 0, outcome.err
    assert "2: ann, bob" in outcome.out
    assert "--set data.partition.scheme=given --set rounds=1" in outcome.out
    assert "given: clients and stages as the source has them" in outcome.out
    assert f"picture: {picture}" in outcome.out
    assert picture.read_bytes().startswith(b"\x89PNG")
    outcome = check(folder, *dealt(clients=2, stages=1, classes=1, imbalance_factor=1))
    assert outcome.code == 0, outcome.out
    assert "scheme=given takes the source's own clients" in outcome.out
