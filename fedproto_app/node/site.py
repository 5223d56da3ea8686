"""Read a node's own settings: its data, its state directory, its device, its limits.

They come from the SuperNode's ``--node-config``: from the TOML file that the key ``site`` names,
and from short keys (``data-source``, ``data-path``, …), which override the file. A run cannot
change them. In a simulation one person owns all nodes, and the run sets them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.section import Positive, kebab
from fedproto_app.data.source_checks import require_meaning
from fedproto_app.node.policy import CodePolicy, Limits, SumPolicy, Text
from fedproto_app.settings import (
    Count,
    CountOrZero,
    DataSettings,
    Device,
    PlainName,
    Section,
    explain,
)
from fedproto_app.settings.choice import (
    ColumnRange,
    Decimal,
    Delimiter,
    Header,
    KnownList,
    Missing,
    NameList,
    Region,
    Repeated,
    TimeUnit,
    known_in,
    text_of,
)
from fedproto_app.settings.data import ScalePair
from fedproto_app.trust.privacy_ledger import SitePrivacy

# The short keys of --node-config, and their names in a site's file.
SHORT_KEYS = {
    "node-name": ("name",),
    "node-group": ("group",),
    "state-dir": ("state-dir",),
    "device": ("device",),
    "threads": ("threads",),
    "partition-id": ("partition-id",),
    "num-partitions": ("num-partitions",),
    "data-root": ("data", "root"),
    "data-source": ("data", "source"),
    "data-path": ("data", "path"),
    "least-periods": ("limits", "least-periods"),
    "least-samples": ("limits", "least-samples"),
}

# Settings that describe the site's files. If one is missing, its value is detected from the files,
# and never taken from the run.
_OWN_FILES = (
    *("clients", "columns", "time_column", "client_column", "time_unit", "time_zone", "unfold"),
    *("missing", "missing_values", "repeated", "sheet", "header", "delimiter", "decimal", "scale"),
)
_LENT = ("known", "covariates", "holidays")  # the run says which of these it wants
SHORT_KEYS |= {f"data-{kebab(name)}": ("data", kebab(name)) for name in (*_OWN_FILES, *_LENT)}


class SiteSequences(Section):
    """``[data.sequences]`` of a site's file."""

    target: Text | None = None


class SiteData(Section):
    """``[data]`` of a site's file. Missing settings are taken from the run."""

    source: Text | None = None
    path: str = ""
    root: Text | None = None  # the folder in which all data files must lie
    clients: NameList = ""
    columns: NameList = ""
    known: KnownList = ""  # the columns known in advance that a run may ask for
    covariates: str = ""
    holidays: Region = ""
    time_column: NameList = ""
    client_column: NameList = ""
    unfold: ColumnRange = ""
    time_unit: TimeUnit = "auto"
    time_zone: str = ""
    missing: Missing = "gap"
    missing_values: NameList = ""
    repeated: Repeated = "refuse"
    sheet: str = ""
    header: Header = "auto"
    delimiter: Delimiter = "auto"
    decimal: Decimal = "auto"
    scale: ScalePair = ""  # for clients without history
    corrupt_images: Literal["refuse", "skip"] | None = None
    pretrained_encoder: str = ""  # for runs that want vectors in place of images
    sequences: SiteSequences = SiteSequences()


class Site(Section):
    """A node's own settings. If one is None, the run or Flower decides."""

    name: PlainName = ""  # stays the same after a restart
    group: PlainName = ""  # the group of all its clients, such as "office"
    state_dir: Text | None = None
    device: Device | None = None
    threads: Count | None = None
    partition_id: CountOrZero | None = None
    num_partitions: Count = 1
    tells_classes: bool = False  # whether the server may learn the classes of its clients
    shares_classes: bool = False  # whether other nodes may learn its clients' values by class
    width_factor: Positive | None = None  # of all its clients' models. The run must offer it
    audit: Text | None = None  # the file of the gate's audit log
    data: SiteData = SiteData()
    privacy: SitePrivacy = SitePrivacy()
    code: CodePolicy = CodePolicy()
    limits: Limits = Limits()
    masked_sums: SumPolicy = SumPolicy()

    @property
    def label(self) -> str:
        """The node's name or, without one, the number of its data partition, or ""."""
        return self.name or ("" if self.partition_id is None else str(self.partition_id))

    @property
    def is_dealt(self) -> bool:
        """Whether the node's data are a partition of one data set that all nodes hold.

        If not, the node has data of its own, and nobody learns how many samples of each class a
        client has.
        """
        return self.partition_id is not None

    def reads(self, run: DataSettings) -> DataSettings:
        """Return the run's data settings, overridden by the site's.

        Raises `SettingsError` if the site names no source, or names a path outside its root.
        """
        data = self.data
        if data.source is None:
            raise SettingsError(
                "node config: neither data-source nor data.source in a site's file is set; a "
                "deployed node reads only what its own --node-config names"
            )
        update: dict[str, object] = {"source": data.source, "path": self._path("path")}
        update |= self._lends(run)
        update |= {name: getattr(data, name) for name in _OWN_FILES}
        if data.corrupt_images is not None:
            update["corrupt_images"] = data.corrupt_images
        if data.sequences.target is not None:
            if data.source != "recordings" and ":" not in data.source:
                raise SettingsError(
                    f"data.sequences.target = {data.sequences.target!r}: for data.source = "
                    f"'recordings', not for {data.source!r}"
                )
            target = {"target": data.sequences.target}
            update["sequences"] = run.sequences.model_copy(update=target)
        if run.pretrained_encoder:
            update |= self._encodes(run)
        if not self.is_dealt:
            update["least_periods"] = self.limits.least_periods
            scheme = {"scheme": "given"}
            update["clusters"] = run.clusters.model_copy(update=scheme)
            # The site's images are its own, so none of them are reserved for a shared pool.
            update["partition"] = run.partition.model_copy(
                update={**scheme, "reserve_per_class": 0}
            )
        read = run.model_copy(update=update)
        require_meaning(read)
        return read

    def _encodes(self, run: DataSettings) -> dict[str, object]:
        """Return the setting for vectors of the site's pretrained encoder."""
        if not self.data.pretrained_encoder:
            raise SettingsError(
                f"data.pretrained-encoder = {run.pretrained_encoder!r}: this site has none; name "
                "the same file in data.pretrained-encoder of the site's file"
            )
        return {"pretrained_encoder": self._path("pretrained_encoder")}

    def _lends(self, run: DataSettings) -> dict[str, object]:
        """Return the settings for the columns known in advance that the run wants.

        The columns are read from the site's files. Raises `SettingsError` for a column that the
        site's file does not lend.
        """
        if run.covariates and not run.known:
            raise SettingsError(
                f"data.covariates = {run.covariates!r}: a deployed node reads only the table that "
                "its site names; use data.known to name the columns that the run wants"
            )
        lent = {column.name: column for column in known_in(self.data.known)}
        columns = []
        for column in run.known_columns:
            if column.name not in lent:
                names = ", ".join(lent) or "none"
                raise SettingsError(
                    f"data.known = {run.known!r}: this site does not lend column {column.name!r}; "
                    f"data.known of its file lends {names}"
                )
            columns.append(column if column.values else lent[column.name])
        return {
            "known": text_of(column.text for column in columns),
            "covariates": self._path("covariates") if columns else "",
            "holidays": run.holidays and (self.data.holidays or run.holidays),
        }

    def _path(self, key: str) -> str:
        """Return the absolute path in ``data.<key>``. Links must not lead out of the root."""
        data, name = self.data, getattr(self.data, key)
        if not name:
            return ""
        if data.root is None:
            return str(Path(name).expanduser().absolute())
        root = Path(data.root).expanduser().resolve()
        if not root.is_dir():
            raise SettingsError(f"data.root = {data.root!r}: no such folder")
        path = root / Path(name).expanduser()
        if not (real_path := path.resolve()).is_relative_to(root):
            raise SettingsError(
                f"data.{key} = {name!r}: means {real_path}, outside data.root = {root}"
            )
        return str(path)


def read_site(node_config: Mapping[str, object], *, deployed: bool = True) -> Site:
    """Return the site of a ``--node-config``. `SettingsError` names file, key and allowed values.

    deployed: whether unknown keys are refused. In a simulation they belong to Flower.
    """
    table, file = _from_file(node_config.get("site"))
    short: dict[tuple[str, ...], str] = {}
    for key, value in node_config.items():
        if key in SHORT_KEYS:
            short[SHORT_KEYS[key]] = key
            *above, last = SHORT_KEYS[key]
            inner = table.setdefault(above[0], {}) if above else table
            if isinstance(inner, dict):  # else the validation below reports the fault
                inner[last] = str(value) if key.startswith("node-") else value
        elif deployed and key != "site":
            known_keys = ", ".join(["site", *SHORT_KEYS])
            raise SettingsError(f"node config: {key}: unknown key; known here: {known_keys}")
    try:
        site = Site.model_validate(table)
    except ValidationError as error:
        messages = [_message(fault, short, file) for fault in error.errors()]
        raise SettingsError("; ".join(messages)) from None
    if not (site.partition_id or 0) < site.num_partitions:
        raise SettingsError(
            f"node config: partition-id = {site.partition_id} must lie in 0 … num-partitions - 1 = "
            f"{site.num_partitions - 1}"
        )
    return site if file is None else _placed(site, file, short)


def site_file(path: Path) -> Site:
    """Return the site that a file describes, as a node reads it."""
    return read_site({"site": str(path)})


def _from_file(file_name: object) -> tuple[dict[str, Any], Path | None]:
    """Return the table in the site's file and the file's path, or {} and None without a file."""
    if file_name is None:
        return {}, None
    if not isinstance(file_name, str) or not file_name:
        raise SettingsError(f"node config: site = {file_name!r}: must be the path of a TOML file")
    file = Path(file_name).expanduser().absolute()
    try:
        return tomllib.loads(file.read_text(encoding="utf-8")), file
    except OSError as error:
        raise SettingsError(
            f"node config: site = {file_name!r}: cannot be read: {error.strerror or error}"
        ) from None
    except ValueError as error:
        raise SettingsError(f"{file}: not a TOML file: {error}") from None


def _placed(site: Site, file: Path, short: Mapping[tuple[str, ...], str]) -> Site:
    """Return the site with its paths resolved relative to the folder of its file.

    This folder is also the default root of the data. short: the keys from the command line. Their
    paths are relative to the working directory.
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


def _message(fault: Any, short: Mapping[tuple[str, ...], str], file: Path | None) -> str:
    """Return one line about a fault, with the key as the operator wrote it."""
    location = tuple(str(part) for part in fault["loc"])
    if location in short:
        line = explain({**fault, "loc": (short[location],)}, Site)
        return f"node config: {line}"
    return f"{file}: {explain(fault, Site)}"
