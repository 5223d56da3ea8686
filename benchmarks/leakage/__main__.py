"""What the server learns from what clients send: the tables and picture of docs/leakage.md.

    python -m benchmarks.leakage [--data milano | electricity | synthetic] [--rounds 8] [--page]
    python -m benchmarks.leakage --masked [--page]      # Kindred's sums, clear and masked

Uses real data if FEDPROTO_DATA has it, else embedded data, and the tables say which. A minute on a
core.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.leakage.attackers import Estimate, Vectors
from benchmarks.leakage.days import day_attacks, day_table
from benchmarks.leakage.masked import sum_attacks, sum_table
from benchmarks.leakage.membership import Membership, memberships
from benchmarks.leakage.reconstruction import Reconstruction, profiles, window_from_gradient
from benchmarks.leakage.victims import REAL, Victims, data_settings
from benchmarks.machine import machine_line
from benchmarks.pages import ROOT, picture, table_texts, write_section
from benchmarks.parts import parser_of
from fedproto_app.report.drawing import look

PAGE, PICTURE = ROOT / "docs" / "leakage.md", ROOT / "docs" / "leakage.svg"
SHOWN = 3  # clients in the picture


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--data", default="milano", choices=[*REAL, "synthetic"])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--masked", action="store_true", help="only Kindred's sums")
    parser.add_argument("--page", action="store_true", help="write tables and picture to docs/")
    arguments = parser.parse_args()
    title, data = data_settings(arguments.data)
    console = Console()
    console.print(f"data: {title}", highlight=False)
    victims = Victims(data, arguments.rounds)
    command = f"--data {arguments.data} --rounds {arguments.rounds}"
    origin = f"--page`: {len(victims.names)} clients of {title}, seed 0, {machine_line()}."
    masked = f"`python -m benchmarks.leakage --masked {origin}"
    sections = {"masked": [*sum_table(sum_attacks(victims)), "", masked]}
    if not arguments.masked:
        days, guessed = profiles(victims)
        attacks = [*guessed, window_from_gradient(victims)]
        note = f"`python -m benchmarks.leakage {command} {origin}"
        sections |= {
            "profiles": [*profile_table(attacks), "", note],
            "membership": [*membership_table(memberships(victims)), "", "By the same command."],
            "days": [*day_table(day_attacks(victims)), "", "By the same command."],
        }
        if arguments.page:
            draw(days, guessed, PICTURE)
    for name, lines in sections.items():
        console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
        if arguments.page:
            write_section(PAGE, name, "benchmarks.leakage", lines)


def profile_table(attacks: Sequence[Reconstruction]) -> list[str]:
    """Return a row for each array that is sent. The last row attacks one window's gradient."""
    rows = [[row.says, _estimate(row.share, 2), f"{row.matched:.2f}"] for row in attacks]
    return table_texts([["what the server sees", "error reduction", "correlation"], *rows])


def membership_table(attacks: Sequence[Membership]) -> list[str]:
    """Return a row for each array that is sent."""
    rows = [[row.says, row.scored, _estimate(row.area, 3)] for row in attacks]
    return table_texts([["what the server sees", "scored", "AUC"], *rows], texts=2)


def _estimate(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f} … {estimate.high:.{digits}f})"


def draw(days: Vectors, attacks: Sequence[Reconstruction], file: Path) -> None:
    """Draw mean days of some clients, and the attacks' guesses."""
    shown = [attack for attack in attacks if attack.drawn]
    hours = np.arange(days.shape[1])
    with picture(file, 9, 2.8) as figure:
        panels = figure.subplots(1, SHOWN, sharex=True, sharey=True)
        places = np.linspace(0, len(days) - 1, SHOWN).astype(int)
        for axes, client in zip(panels, places, strict=True):
            axes.plot(hours, days[client], color="black", linewidth=2.2, label="the truth")
            for number, attack in enumerate(shown):
                axes.plot(hours, attack.guesses[client], label=attack.drawn, **look(number))
            axes.set_title(f"client {client + 1}")
            axes.set_xlabel("phase of the day")
        panels[0].set_ylabel("mean day, standardised")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


if __name__ == "__main__":
    main()
