"""A node's own settings: what it reads, where it keeps its state, on what it computes.

They come from the SuperNode's ``--node-config``: from the TOML file that its key ``site`` names,
and from short keys (``data-source``, ``data-path``, …), which override the file. A run cannot
change them. In a simulation one person owns both, and the run sets them all.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.section import Positive, kebab
from fedproto_app.data.choice import require_meaning
from fedproto_app.node.policy import CodePolicy, Limits, SumPolicy
from fedproto_app.settings import (
    Count,
    CountOrZero,
    DataSettings,
    Device,
    PlainName,
    Section,
    explain,
)
from fedproto_app.settings.choice import Decimal, Delimiter, Header, NameList, TimeUnit
from fedproto_app.trust.privacy_ledger import SitePrivacy

Text = Annotated[str, Field(min_length=1)]

# Short keys of --node-config, and what they are called in a site's file.
SHORT_KEYS = {
    "node-name": ("name",),
    "state-dir": ("state-dir",),
    "device": ("device",),
    "threads": ("threads",),
    "partition-id": ("partition-id",),
    "num-partitions": ("num-partitions",),
    "data-root": ("data", "root"),
    "data-source": ("data", "source"),
    "data-path": ("data", "path"),
}

# What describes the site's own files; what it leaves out is found by itself, never the run's.
_OWN_FILES = (
    *("clients", "columns", "time_column", "client_column", "time_unit"),
    *("header", "delimiter", "decimal"),
)
SHORT_KEYS |= {f"data-{kebab(name)}": ("data", kebab(name)) for name in _OWN_FILES}


class SiteSequences(Section):
    """``[data.sequences]`` of a site's file."""

    target: Text | None = None


class SiteData(Section):
    """``[data]`` of a site's file; what it leaves out is as the run has it."""

    source: Text | None = None
    path: str = ""
    root: Text | None = None  # what is read lies in it
    clients: NameList = ""
    columns: NameList = ""
    time_column: str = ""
    client_column: str = ""
    time_unit: TimeUnit = "auto"
    header: Header = "auto"
    delimiter: Delimiter = "auto"
    decimal: Decimal = "point"
    corrupt_images: Literal["refuse", "skip"] | None = None
    sequences: SiteSequences = SiteSequences()


class Site(Section):
    """A node's own settings; None is left to the run, or to Flower."""

    name: PlainName = ""  # stable over restarts
    state_dir: Text | None = None
    device: Device | None = None
    threads: Count | None = None
    partition_id: CountOrZero | None = None
    num_partitions: Count = 1
    tells_classes: bool = False  # whether a method may learn of the classes of its clients
    shares_classes: bool = False  # whether other nodes may learn what they make of their classes
    width_factor: Positive | None = None  # one of the run's for the models of all its clients
    audit: Text | None = None  # the file of the gate's audit log
    data: SiteData = SiteData()
    privacy: SitePrivacy = SitePrivacy()
    code: CodePolicy = CodePolicy()
    limits: Limits = Limits()
    masked_sums: SumPolicy = SumPolicy()

    @property
    def label(self) -> str:
        """The node's name; else that of its share of the data; "" without both."""
        return self.name or ("" if self.partition_id is None else str(self.partition_id))

    @property
    def is_dealt(self) -> bool:
        """Whether the node has a share of one data set that all nodes hold.

        If not, its data are its own: nothing is dealt out, and nobody learns how many samples of
        which class a client has.
        """
        return self.partition_id is not None

    def reads(self, run: DataSettings) -> DataSettings:
        """The run's settings of data, with the site's own decisions in place.

        Raises `SettingsError` if the site names no source, or a path outside its root.
        """
        data = self.data
        if data.source is None:
            raise SettingsError(
                "node config: data-source is not set, nor data.source in a site's file; a deployed "
                "node reads only what its own --node-config names"
            )
        update: dict[str, object] = {"source": data.source, "path": self._path()}
        update |= {name: getattr(data, name) for name in _OWN_FILES}
        if data.corrupt_images is not None:
            update["corrupt_images"] = data.corrupt_images
        if data.sequences.target is not None:
            if data.source != "recordings" and ":" not in data.source:
                raise SettingsError(
                    f"data.sequences.target = {data.sequences.target!r}: for data.source = "
                    f"'recordings', not for {data.source!r}"
                )
            own = {"target": data.sequences.target}
            update["sequences"] = run.sequences.model_copy(update=own)
        if not self.is_dealt:
            given = {"scheme": "given"}
            update["clusters"] = run.clusters.model_copy(update=given)
            # Its images are its own: it puts none aside for somebody else.
            update["partition"] = run.partition.model_copy(update={**given, "reserve_per_class": 0})
        read = run.model_copy(update=update)
        require_meaning(read)
        return read

    def _path(self) -> str:
        """The absolute path of the data, which links may not lead out of the root."""
        data = self.data
        if not data.path:
            return ""
        if data.root is None:
            return str(Path(data.path).expanduser().absolute())
        root = Path(data.root).expanduser().resolve()
        if not root.is_dir():
            raise SettingsError(f"data.root = {data.root!r}: no such folder")
        path = root / Path(data.path).expanduser()
        if not (meant := path.resolve()).is_relative_to(root):
            raise SettingsError(
                f"data.path = {data.path!r}: means {meant}, outside data.root = {root}"
            )
        return str(path)


def read_site(node_config: Mapping[str, Any], *, deployed: bool = True) -> Site:
    """The site of a ``--node-config``; `SettingsError` names file, key, value, what is allowed.

    deployed: not a node of a simulation, where keys that are unknown here are Flower's own.
    """
    table, file = _from_file(node_config.get("site"))
    short: dict[tuple[str, ...], str] = {}
    for key, value in node_config.items():
        if key in SHORT_KEYS:
            short[SHORT_KEYS[key]] = key
            *above, last = SHORT_KEYS[key]
            inner = table.setdefault(above[0], {}) if above else table
            if isinstance(inner, dict):  # else the file is wrong there, which is told below
                inner[last] = str(value) if key == "node-name" else value
        elif deployed and key != "site":
            known = ", ".join(["site", *SHORT_KEYS])
            raise SettingsError(f"node config: {key}: unknown key; known here: {known}")
    try:
        site = Site.model_validate(table)
    except ValidationError as error:
        told = [_told(fault, short, file) for fault in error.errors()]
        raise SettingsError("; ".join(told)) from None
    if not (site.partition_id or 0) < site.num_partitions:
        raise SettingsError(
            f"node config: partition-id = {site.partition_id} must lie in 0 … num-partitions - 1 = "
            f"{site.num_partitions - 1}"
        )
    return site if file is None else _placed(site, file, short)


def site_file(path: Path) -> Site:
    """The site that a file describes, as a node would read it."""
    return read_site({"site": str(path)})


def _from_file(named: object) -> tuple[dict[str, Any], Path | None]:
    """The table in the site's file, and the file; both empty if there is none."""
    if named is None:
        return {}, None
    if not isinstance(named, str) or not named:
        raise SettingsError(f"node config: site = {named!r}: must be the path of a TOML file")
    file = Path(named).expanduser().absolute()
    try:
        return tomllib.loads(file.read_text(encoding="utf-8")), file
    except OSError as error:
        raise SettingsError(
            f"node config: site = {named!r}: cannot be read: {error.strerror or error}"
        ) from None
    except ValueError as error:
        raise SettingsError(f"{file}: not a TOML file: {error}") from None


def _placed(site: Site, file: Path, short: Mapping[tuple[str, ...], str]) -> Site:
    """The site with the file's folders seen from its own, which is the data's root by default.

    short: the keys that the command line gave; its folders are seen from where the node runs.
    """
    folder, update = file.parent, dict[str, object]()
    if ("data", "root") not in short:
        root = folder / Path(site.data.root or "").expanduser()
        update["data"] = site.data.model_copy(update={"root": str(root)})
    if site.state_dir is not None and ("state-dir",) not in short:
        update["state_dir"] = str(folder / Path(site.state_dir).expanduser())
    if site.audit is not None:
        update["audit"] = str(folder / Path(site.audit).expanduser())
    return site.model_copy(update=update)


def _told(fault: Any, short: Mapping[tuple[str, ...], str], file: Path | None) -> str:
    """One line for a fault, under the name by which the operator knows the key."""
    location = tuple(str(part) for part in fault["loc"])
    if location in short:
        line = explain({**fault, "loc": (short[location],)}, Site)
        return f"node config: {line}"
    return f"{file}: {explain(fault, Site)}"
