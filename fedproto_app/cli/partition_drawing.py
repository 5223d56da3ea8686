"""``--picture`` of ``fedproto data check``: which client holds how much of which class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.errors import SettingsError


def require_drawable(picture: Path) -> None:
    """Refuse a file that is no PNG or has no folder to lie in."""
    if picture.suffix.lower() != ".png":
        raise SettingsError(f"--picture {picture}: expected a .png file")
    if not picture.parent.is_dir():
        raise SettingsError(f"--picture {picture}: no folder {picture.parent}")


def save_partition_picture(
    picture: Path, counts: Mapping[str, NDArray[np.int64]], classes: Sequence[str], thing: str
) -> None:
    """Draw what each client trains on. counts: [M, C] of each client. thing: "image", say."""
    from matplotlib import rc_context

    from fedproto_app.report.drawing import STYLE
    from fedproto_app.report.partition_picture import draw_partition_picture

    with rc_context(STYLE):
        try:
            draw_partition_picture(counts, classes, thing).savefig(picture)
        except OSError as error:
            raise SettingsError(f"--picture {picture}: {error.strerror}") from None
