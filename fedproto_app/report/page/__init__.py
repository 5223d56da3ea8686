"""Write ``report.html``, a report on runs in one file that opens without a network."""

REPORT = "report.html"
