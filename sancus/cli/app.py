"""`sancus`: the table of its verbs."""

from __future__ import annotations

from cyclopts import App

from sancus import __version__
from sancus.cli.about import doctor, list_plugins
from sancus.cli.command import make_app, run_verbs
from sancus.cli.compare import compare
from sancus.cli.data import estimate, info, partition, probe
from sancus.cli.demo import demo
from sancus.cli.launch import launch_verbs
from sancus.cli.runs import evaluate, list_runs, predict, replay, report
from sancus.cli.shards import shards_verbs
from sancus.cli.train import train
from sancus.cli.tune import tune

app = make_app(
    "Decentralised full-graph GNN training that avoids communication and shows the bill.", __version__
)
data_verbs = App(name="data", help="Look at graphs.")
data_verbs.command(info)
for verb in (train, compare, data_verbs, predict, evaluate, replay, partition, estimate, probe, tune):
    app.command(verb)
app.command(launch_verbs())
app.command(shards_verbs())
app.command(demo)
app.command(list_plugins, name="list")
app.command(doctor)
app.command(report)
app.command(list_runs, name="runs")
app.register_install_completion_command(help="Complete verbs and flags in this shell: bash, zsh or fish.")


def main() -> None:
    """Entry point of `sancus` and of every rank of it."""
    run_verbs(app)
