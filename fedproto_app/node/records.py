"""What a node knows of its clients' kept models: errors, scales, the rounds that they are of.

All records of a node stand in one file, which is written anew once an order, a line a client:

    {"client": "harbour", "write": 17, "records": [the newest first]}

The file before it stays, in case that one is damaged. Where several processes work for a node each
writes a file, with what it knows of the others' clients; the line of the highest write counts.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedproto_app.core.whole_file import write_whole
from fedproto_app.node.blocks import KEPT, number_of, require_access
from fedproto_app.node.state_log import needed

_SUFFIX = ".jsonl"
_STAYING = 2  # writes whose files stay

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClientRecord:
    """The errors of a client's kept model, and the round that it comes from (0 = none yet).

    scale: what its forecasts take to be in the data's units (`Task.scale`). private: what was found
    of the model for the client's own use (`Task.stays`).
    """

    kept_round: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    scale: dict[str, float] = field(default_factory=dict)
    private: dict[str, float] = field(default_factory=dict)


class _Line:
    """A client's line. known: the records in it, newest first."""

    def __init__(self, write: int, known: list[ClientRecord], text: str = "") -> None:
        self.write, self.known, self.text = write, known, text


class Records:
    """The records in a folder. writer: the number of the process among the node's."""

    def __init__(self, folder: Path, writer: int) -> None:
        self._folder, self._writer = folder, writer
        self._lines: dict[str, _Line] | None = None
        self._write = 1  # the next one's number
        self._changed = False
        self._seen = list[Path]()  # whose lines stand in what is written: these may go

    @property
    def clients(self) -> list[str]:
        """Those that have a kept model, by name."""
        return sorted(name for name, line in self._look().items() if line.known)

    def newest(self, client: str) -> ClientRecord:
        """The client's record."""
        line = self._look().get(client)
        return line.known[0] if line and line.known else ClientRecord()

    def rounds(self, client: str, marks: Sequence[int]) -> set[int]:
        """The rounds of a client's kept models: the server may go back. marks: see `needed`."""
        line = self._look().get(client)
        return _needed(line.known, marks) if line else set()

    def all_rounds(self, marks: Sequence[int]) -> set[int]:
        """The rounds of all clients' kept models."""
        return set().union(*(_needed(line.known, marks) for line in self._look().values()))

    def forget(self, client: str, since: int) -> None:
        """Drop what came of this round or of later ones: the server has gone back before it."""
        line = self._look().get(client)
        if line and line.known and line.known[0].kept_round >= since:
            self._set(client, [one for one in line.known if one.kept_round < since])

    def put(self, client: str, record: ClientRecord, marks: Sequence[int]) -> None:
        """Add a record. marks: see `needed`."""
        line = self._look().get(client)
        before = [one for one in line.known if one.kept_round < record.kept_round] if line else []
        rounds = _needed([record, *before], marks)
        self._set(client, [one for one in (record, *before) if one.kept_round in rounds])

    def write(self, server_round: int) -> None:
        """Write all records, if any has changed; raises OSError."""
        if not self._changed:
            return
        lines = self._look()
        for client, line in lines.items():
            if not line.text:
                records = [asdict(one) for one in line.known]
                told = {"client": client, "write": line.write, "records": records}
                line.text = json.dumps(told) + "\n"
        name = f"{KEPT}-{server_round:06d}-{self._write:06d}-{self._writer}{_SUFFIX}"
        content = "".join(line.text for line in lines.values()).encode()
        write_whole(self._folder / name, content, f".{self._writer}.new")
        self._write, self._changed = self._write + 1, False
        files = [*self._seen, self._folder / name]
        staying = sorted({number_of(one) for one in files})[-_STAYING:]
        for path in files:
            if number_of(path) < staying[0]:
                path.unlink(missing_ok=True)
        self._seen = [one for one in files if number_of(one) >= staying[0]]

    def _set(self, client: str, known: list[ClientRecord]) -> None:
        self._look()[client] = _Line(self._write, known)
        self._changed = True

    def _look(self) -> dict[str, _Line]:
        """What is in the folder, read once."""
        if self._lines is None:
            lines, seen = dict[str, _Line](), list[Path]()
            while new := [one for one in _files(self._folder) if one not in seen]:
                for path in new:
                    self._read(path, lines)
                seen += new
            newest = max(map(number_of, seen), default=-1)
            self._lines, self._seen, self._write = lines, seen, max(self._write, newest + 1)
        return self._lines

    @staticmethod
    def _read(path: Path, lines: dict[str, _Line]) -> None:
        try:
            require_access(path)
            for text in path.read_text(encoding="utf-8").splitlines(keepends=True):
                told = json.loads(text)
                name, write = str(told["client"]), int(told["write"])
                if name not in lines or lines[name].write < write:
                    known = [ClientRecord(**one) for one in told["records"]]
                    lines[name] = _Line(write, known, text)
        except FileNotFoundError:  # another process has written a newer one
            return
        except (ValueError, TypeError, KeyError, OSError) as error:
            _log.warning("%s is damaged (%s): the one before it is used", path, error)


def holds_kept_models(folder: Path) -> bool:
    """Whether the folder is that of a node with a kept model."""
    return any(folder.glob(f"{KEPT}-*{_SUFFIX}"))


def _needed(known: Sequence[ClientRecord], marks: Sequence[int]) -> set[int]:
    return needed([one.kept_round for one in known], marks, at_least=1)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{KEPT}-*{_SUFFIX}"), key=number_of)
