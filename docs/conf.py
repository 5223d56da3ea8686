"""The docs as a site, by `make docs`: Sphinx reads the Markdown pages as they stand.

The site asks no other server for anything, so it also opens from the disk.
"""

from __future__ import annotations

import re

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

project = "fedproto-app"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "jupyter_execute"]

html_theme = "furo"
html_title = "fedproto-app"
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["tables.css"]

myst_heading_anchors = 4  # so that links to a page's sections are checked
nb_execution_mode = "off"  # the tests run the notebook, which keeps its outputs

default_role = "py:obj"  # a name between backticks in a docstring
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints_format = "short"
autodoc_type_aliases = {name: name for name in ("Heads", "Labels", "Matrix", "Table", "Vectors")}
python_maximum_signature_line_length = 88

FIELDS = re.compile(
    r"([a-z_]\w*(?:, \w+)*): (?=\S)"
)  # "names: their meaning", at a line's beginning


def _as_rst(
    app: Sphinx, kind: str, name: str, documented: object, options: object, lines: list[str]
) -> None:
    """Turn a docstring of this project, nearly plain text, into reStructuredText, in place.

    "names: their meaning" begins a paragraph that includes the indented lines below it. Lines
    indented after an empty line are kept as written.
    """
    written: list[str] = []
    for line in lines:
        continues = bool(written and written[-1])
        if line.startswith("  ") and continues and not written[-1].startswith("  "):
            line = line.strip()
        elif line.startswith("  ") and not continues:
            written += ["::", ""]
        if not line.startswith("  "):
            line = line.replace("|", r"\|").replace("*", r"\*")
            if continues and FIELDS.match(line):
                written.append("")
            line = FIELDS.sub(r"**\1**: ", line, count=1) if FIELDS.match(line) else line
        written.append(line)
    lines[:] = [*written, ""]


def _says_nothing(
    app: Sphinx, kind: str, name: str, documented: object, skip: bool, options: object
) -> bool | None:
    """Leave out the docstrings of a NamedTuple's fields, because the class describes them."""
    return True if (documented.__doc__ or "").startswith("Alias for field number") else None


def setup(app: Sphinx) -> None:
    app.add_lexer("csv", TextLexer)  # Pygments knows none
    app.connect("autodoc-process-docstring", _as_rst)
    app.connect("autodoc-skip-member", _says_nothing)
