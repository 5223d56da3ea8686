"""``report.html``: runs as one file for people, which opens without a network.

`charts` says what a chart is, `svg` draws it, `story` finds the words, `document` puts them together.
"""
