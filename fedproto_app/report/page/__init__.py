"""``report.html``: runs as one file for people, which opens without a network.

`charts` says what a chart is, `svg` draws it, `words` are its sentences, and `document` puts all of
it together.
"""

REPORT = "report.html"
