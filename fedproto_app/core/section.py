"""What all tables of settings are made of: the frozen base class, types of values, `setting`."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(gt=0, lt=1)]
ShareOrZero = Annotated[float, Field(ge=0, lt=1)]
ShareOrOne = Annotated[float, Field(gt=0, le=1)]
ShareOrEither = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
PLAIN_NAME = r"[A-Za-z0-9][A-Za-z0-9._=+-]*"  # safe as the name of a folder
PlainName = Annotated[str, Field(pattern=rf"^({PLAIN_NAME})?$", max_length=120)]
Device = Annotated[str, Field(pattern=r"^(cpu|auto|cuda(:\d+)?)$")]

# Descriptions of the allowed values for the documents.
PLAIN_NAMES = "letters, digits, `. _ = + -`"
DEVICES = "`cpu auto cuda cuda:N`"

Value = TypeVar("Value")


def setting(default: Value, meaning: str, allowed: str = "") -> Value:
    """Return a field of a section with its default and its texts for pyproject.toml and the docs.

    meaning: the description in Markdown, for docs/settings.md. In pyproject.toml it has no links.
    allowed: the allowed values in Markdown, by default from the field's type (`tables.allowed`).
    """
    return Field(default=default, description=meaning, json_schema_extra={"allowed": allowed})


def without_markdown(text: str) -> str:
    """Return a description without links and code marks, for comments and help texts."""
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text).replace("`", "")


def kebab(name: str) -> str:
    """Return a field's name as files have it, with dashes."""
    return name.replace("_", "-")


class Section(BaseModel):
    """One frozen table of settings. Keys are kebab-case in files and snake_case here."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=kebab, populate_by_name=True
    )
