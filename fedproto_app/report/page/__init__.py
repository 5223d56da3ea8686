"""``report.html``: a report on runs in one file, which opens without a network."""

REPORT = "report.html"
