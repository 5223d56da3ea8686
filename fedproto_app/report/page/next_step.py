"""Recommend what to do after reading a report, with the command for it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

from fedproto_app.core.endings import shown
from fedproto_app.core.tasks import task_record
from fedproto_app.report.comparison import Question, client_errors
from fedproto_app.report.gain import FEWEST_CLIENTS, Finding
from fedproto_app.report.runs import Group, Run, known_settings
from fedproto_app.report.taking_part import Candidate
from fedproto_app.settings import defaults_of
from fedproto_app.tasks.metrics import TaskMetrics


@dataclass(frozen=True)
class NextStep:
    """A recommendation, and the command that follows it."""

    text: str
    command: str


def next_step(question: Question, chosen: Candidate | None) -> NextStep:
    """Return what a reader should do next. chosen: the runs that the verdict is about."""
    if chosen is not None:
        return _after_verdict(question, chosen)
    alone = [group.is_alone for group in question.groups]
    if not any(alone):
        return _run_alone(question.groups[0])
    if all(alone):
        return _run_together(question.groups[0])
    rivals = [group.known_columns for group in question.groups if group.is_alone]
    if unfair := [g for g in question.groups if not g.is_alone and g.known_columns not in rivals]:
        return _run_alone(unfair[0])
    return NextStep("Compare the runs client by client:", _compare(question))


def check_first(group: Group) -> NextStep:
    """Return what to do if doubts about the data limit the verdict."""
    settings = shown(group.runs[0].folder / "settings.toml")
    return NextStep(
        "Check the data before you decide, because of the warnings:",
        shlex.join(["fedproto", "data", "check", "--config", settings]),
    )


def _after_verdict(question: Question, chosen: Candidate) -> NextStep:
    finding, run = chosen.finding, chosen.group.runs[0]
    if chosen.group.had_not_converged:
        return _train_longer(chosen.label, run)
    if finding is Finding.OPEN and not chosen.model_ran_alone:
        return _run_alone(chosen.group)
    forecasts = task_record(run.task).forecasts
    if finding is Finding.OPEN:
        return _decide_later(question, chosen, forecasts)
    if finding is Finding.PAYS:
        if forecasts and (command := _forecast(run)):
            return NextStep(f"Use {chosen.label}. Its models forecast the next values:", command)
        return NextStep(
            f"Use {chosen.label}. Once a node runs at each site, train at the sites:",
            _run_again(run, f"{run.method}-at-sites", superlink="federation"),
        )
    label, group = _most_promising(chosen, question.metrics)
    if forecasts and (command := _forecast(group.runs[0])):
        return NextStep(
            f"Use {label}, which is not federated. Its models forecast the next values:", command
        )
    return NextStep(
        f"Use {label}, which is not federated. To see each client's gain or loss:",
        _compare(question),
    )


def _decide_later(question: Question, chosen: Candidate, forecasts: bool) -> NextStep:
    """Return what may settle an open comparison.

    For forecasts another seed does not help, because it adds neither clients nor days.
    """
    gain, run = chosen.gain, chosen.group.runs[0]
    later = f"Do not decide yet, because {gain.why_open}."
    if len(gain.ratios) < FEWEST_CLIENTS:
        return NextStep(f"{later} Until then look at each client:", _compare(question))
    if forecasts:
        return NextStep(
            f"{later} Repeat all runs with more data or more clients, or with a longer test part, "
            "for example this run:",
            _run_again(run, f"{run.method}-long-test", "data.train-share=0.5"),
        )
    seed = max(member.summary["seed"] for member in chosen.group.runs) + 1
    return NextStep(
        f"{later} Repeat all runs with more data or more clients, or with another seed, for "
        "example this run:",
        _run_again(run, f"{run.method}-seed-{seed}", f"seed={seed}"),
    )


def _most_promising(chosen: Candidate, metrics: TaskMetrics) -> tuple[str, Group]:
    """Return the group without sharing that has the lowest mean validation error."""

    def error(group: Group) -> float:
        errors = [e.validation for e in client_errors(group.runs[0], metrics).values()]
        return fmean(errors) if errors else inf

    return min(chosen.alone.items(), key=lambda item: error(item[1]))


def _train_longer(label: str, run: Run) -> NextStep:
    rounds = 2 * known_settings(run)["rounds"]
    words = ["fedproto", "run", "--resume", shown(run.folder), "--set", f"rounds={rounds}"]
    if known_settings(run)["patience"]:  # it may have ended the run
        words += ["--set", "patience=0"]
    return NextStep(f"{label} had not converged. Train it longer, then compare:", shlex.join(words))


def _run_alone(group: Group) -> NextStep:
    run = group.runs[0]
    sharing = f"{group.method}.sharing"
    changes = [f"{sharing}=none" if sharing in known_settings(run) else "method=solo"]
    if group.known_columns:
        changes.append("response.sharing=none")
    return NextStep(
        f"Run {group.method} without sharing, then compare. Only this comparison shows whether a "
        "gain comes from federated learning.",
        _run_again(run, f"{run.folder.name}-local", *changes),
    )


def _run_together(group: Group) -> NextStep:
    run = group.runs[0]
    method = task_record(run.task).first_method
    changes = [f"method={method}"]
    if (sharing := f"{method}.sharing") in defaults_of(method):
        changes.append(f"{sharing}={defaults_of(method)[sharing]}")
    if group.known_columns:
        changes.append("response.sharing=all")
    return NextStep(
        f"Nothing was shared yet. Run {method} with all clients, then compare:",
        _run_again(run, f"{method}-federated", *changes),
    )


def _run_again(run: Run, name: str, *changes: str, superlink: str = "") -> str:
    """Return the command that repeats a run with changed settings, simulated or at a SuperLink."""
    words = ["fedproto", "run", shown(run.folder / "settings.toml")]
    for change in (*changes, f"output.name={name}"):
        words += ["--set", change]
    if superlink:
        words += ["--superlink", superlink]
    elif (run.folder / "state").is_dir() and "nodes.minimum" in run.settings:  # a simulation
        words += ["--nodes", str(run.settings["nodes.minimum"])]
    return shlex.join(words)


def _forecast(run: Run) -> str:
    """Return the command that forecasts with the run's models, or "" if no models are kept here."""
    if not (run.folder / "state").is_dir():
        return ""
    steps = str(known_settings(run).get("data.horizon", 1))
    return shlex.join(
        ["fedproto", "forecast", shown(run.folder), "--steps", steps, "--out", "next.csv"]
    )


def _compare(question: Question) -> str:
    folders: Sequence[str] = [shown(run.folder) for group in question.groups for run in group.runs]
    return f"{shlex.join(['fedproto', 'compare', *folders])} --pairs"
