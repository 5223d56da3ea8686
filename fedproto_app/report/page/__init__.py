"""``report.html``: a report on runs in one file, which opens without a network.

`tables` and `records` make its tables, `words` its sentences, and `document` puts them together.
"""

REPORT = "report.html"
