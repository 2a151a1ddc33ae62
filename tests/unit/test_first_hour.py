"""What is mistyped in the first hour: a value out of range, a wrong name, a flag that lacks another.

Each is answered in one line, and before any rank starts. `test_cli.py` has mistakes of machine and launcher,
`test_mistakes.py` those of Python, `test_datasets_mistakes.py` and `test_node_tables.py` those of files.
"""

from __future__ import annotations

from typing import Any

import pytest

from sancus.launch.exit_codes import EXIT_USER
from tests.helpers.command import endings_of

GRAPH = "synthetic:nodes=60,features=4,classes=3"
# The command, with G for a graph, and how the answer begins.
MISTAKES = {
    "train G --epochs 0": "--epochs 0: must be at least 1",
    "train G --epochs -3": "--epochs -3: must be at least 1",
    "train G --epochs ten": 'Invalid value for --epochs: unable to convert "ten" into int.',
    "train G --lr -1": "--lr -1.0: must be a number that is not negative",
    "train G --lr nan": "--lr nan: must be a number that is not negative",
    "train G --dropout 1": "--dropout 1.0: must be at least 0 and below 1",
    "train G --dropout 1.5": "--dropout 1.5: must be at least 0 and below 1",
    "train G --hidden 0": "--hidden 0: a layer needs at least 1 column",
    "train G --layers 0": "--layers 0: a model needs at least 1 layer",
    "train G --layers 2.5": "--layers 2.5: must be a whole number",
    "train G --ranks 0": "--ranks 0: must be at least 1",
    "train G --ranks -1": "--ranks -1: must be at least 1",
    "train G --threads 0": "--threads 0: must be at least 1",
    "train G --seed -1": "--seed -1: must not be negative",
    "train G --seed abc": 'Invalid value for --seed: unable to convert "abc" into int.',
    "train G --eval-every 0": "--eval-every 0: must be at least 1",
    "train G --patience -1": "--patience -1: must not be negative",
    "train G --metric f1": 'Invalid value "f1" for --metric',
    "train G --metric roc-auc": "--metric roc-auc: the graph has one label a node",
    "train G --norm group": 'Invalid value "group" for --norm',
    "train G --jumping sum": 'Invalid value "sum" for --jumping',
    "train G --heads 0 --model gat": "--heads 0: must be at least 1",
    "train G --model gat --hidden 10 --heads 4": "--hidden 10 is not a multiple of --heads 4",
    "train G --model gat --plan prepost": "this model weighs edges by content, but the plan sends sums",
    "train G --optimizer lion": 'Invalid value "lion" for --optimizer',
    "train G --weight-decay -1": "--weight-decay -1.0: must be a number that is not negative",
    "train G --class-weights 1,2": "--class-weights 1,2: 2 numbers for 3 classes",
    "train G --class-weights foo": "--class-weights foo: give none, balanced, or one number that is not neg",
    "train G --label-smoothing 2": "--label-smoothing 2.0: must be at least 0 and below 1",
    "train G --checkpoint-every -1": "--checkpoint-every -1: must not be negative",
    "train G --keep 0": "--keep 0: must be at least 1",
    "train G --timeout 0": "--timeout 0: must be above 0 and at most 1e+06 seconds",
    "train G --timeout -5": "--timeout -5: must be above 0 and at most 1e+06 seconds",
    "train G --track": 'Command "train" parameter --track requires an argument.',
    "train G --track comet": "tracker 'comet' does not exist",
    "train G --device tpu": 'Invalid value "tpu" for --device',
    "train G --device cuda": "--device cuda, but torch finds no GPU here",
    "train G --dtype float16": 'Invalid value "float16" for --dtype',
    "train G --backend nccl": "--backend nccl moves CUDA tensors",
    "train G --backend tcp": "backend 'tcp' does not exist",
    "train G --broadcast tree": 'Invalid value "tree" for --broadcast',
    "train G --codec int3": "codec 'int3' does not exist",
    "train G --codec int4:tail=long": "codec 'int4': tail='long' is not one of full, short",
    "train G --codec auto:budget=0": "codec 'auto:budget=0': budget=0.0 must be between 1 and 8 bits a value",
    "train G --staleness epoch-fixed:bound=-1": "policy 'epoch-fixed:bound=-1': bound=-1 must be a whole nu",
    "train G --staleness epoch-fixed:bond=1": "policy 'epoch-fixed' has no setting 'bond'",
    "train G --staleness variation-gap:gap=abc": "policy 'variation-gap': gap='abc' is not a number",
    "train G --clip -1": "--clip -1.0: must be a positive number",
    "train G --parameter-codec low-rank:rank=0": "parameter-codec 'low-rank:rank=0': rank=0 must be at leas",
    "train G --parameters mean": 'Invalid value "mean" for --parameters',
    "train G --batch-size -1": "--batch-size -1: must not be negative",
    "train G --batch-size 10 --fanout 5,5,5": "--fanout 5,5,5 is for 3 layers, and --layers is 2",
    "train G --batch-size 10 --fanout -1": "--fanout -1: '-1' is no number of neighbours",
    "train G --batch-size 10 --sampler graphsage": "sampler 'graphsage' does not exist",
    "train G --schedule pipeline --stages 9 --ranks 9": "--stages 9: the model has 2 graph layers, and a st",
    "train G --schedule pipeline --stages 2 --ranks 3": "--stages 2: does not divide the number of ranks, 3",
    "train G --schedule pipe": "schedule 'pipe' does not exist",
    "train G --model nofile.py:Net": "model 'nofile.py:Net': cannot import 'nofile.py': there is no file no",
    "train G --config nope.json": "--config nope.json: cannot be read",
    "train G --resume nowhere": "--resume nowhere: no checkpoint there",
    "train synthetic:nodes=0": "graph 'synthetic': nodes=0 must be at least 8 with classes=8",
    "train synthetic:nodes=abc": "graph 'synthetic': nodes='abc' is not a whole number",
    "train synthetic:node=10": "graph 'synthetic' has no setting 'node'",
    "train synthetic:redit@0.1": "graph 'synthetic:redit@0.1': 'redit' is neither key=value nor a shape amo",
    "train pyg:": "graph 'pyg:': '' is not the name of a dataset of PyG, e.g",
    "train ogb:": "graph 'ogb:': node datasets of OGB are named ogbn-…, e.g",
    "partition G --parts 0 --out p": "--parts 0: must be at least 1",
    "partition G --parts 100 --out p": "100 ranks for 60 nodes: every rank needs at least one",
    "partition G --out p": 'Command "partition" parameter --parts requires an argument.',
    "partition G --parts 2": "--out is missing: the directory for the shards",
    "partition G --parts 2 --partitioner metiss --out p": "partitioner 'metiss' does not exist",
    "estimate G": 'Command "estimate" parameter --ranks requires an argument.',
    "estimate G --ranks 0": "--ranks 0: must be from 1 to the 60 nodes",
    "estimate G --ranks 2 --link fast": "--link 'fast': write a number and a unit, e.g",
    "estimate G --ranks 2 --link 0Gbit": "--link '0Gbit': write a number and a unit, e.g",
    "compare G --presets lean --seeds 0 --out c": "--seeds 0: must be at least 1",
    "report": "RUN_DIR is missing: give the --out directory of one run or of several",
    "report nowhere": "nowhere holds no run",
    "evaluate nowhere": "nowhere holds no finished run",
    "data info nofile": "graph 'nofile' does not exist",
    "launch slurm G": 'Command "launch slurm" parameter --ranks requires an argument.',
    "tune G": 'Command "tune" parameter --ranks requires an argument.',
    "tune G --ranks 2 --within -1": "--out is missing: the directory for all runs, and for going on",
    "tune G --ranks 2 --objective money": 'Invalid value "money" for --objective',
    "list extra": "too many arguments: extra",
    "doctor extra": "too many arguments: extra",
    "demo extra": "too many arguments: extra",
    "train G extra": "too many arguments: extra",
    "train G --verbose --quiet": "--quiet and --verbose contradict each other",
    "train G --no-such": "Unknown option: --no-such",
    "train G --preset sancus-a:9": "preset 'sancus-a:9' does not exist",
    "train G --preset bns:2": "preset 'bns:2' does not exist",
    "train G --preset digest:0": "preset 'digest:0' does not exist",
    "train G --plan drawn:rate=2": "plan 'drawn:rate=2': rate=2.0 must be at least 1.1e-16 and at most 1",
    "train G --row-order foo": 'Invalid value "foo" for --row-order',
    "train G --restarts -1": "--restarts -1: must not be negative",
    "train G --gcnii-alpha 2 --model gcnii": "--gcnii-alpha 2.0: must be between 0 and 1",
    "train G --task regression": 'Invalid value "regression" for --task. Choose from: "nodes", "link"',
    "train G --task foo": 'Invalid value "foo" for --task. Choose from: "nodes", "link"',
    "train G --task link --held-out 2": "--held-out 2.0: must be above 0 and below 0.5",
    "train G --task link --negatives 0": "--negatives 0: must be at least 1",
    "train G --negatives 3": "--negatives 3 is of --task link; add it, or leave it out",
}


@pytest.fixture(scope="module")
def endings() -> dict[str, dict[str, Any]]:
    lines = [[GRAPH if word == "G" else word for word in line.split()] for line in MISTAKES]
    cases = [{"args": words, "env": {}, "missing": []} for words in lines]
    return dict(zip(MISTAKES, endings_of(cases), strict=True))


@pytest.mark.parametrize("line", MISTAKES)
def test_it_is_answered_in_one_line(line: str, endings: dict[str, dict[str, Any]]) -> None:
    answer = endings[line]
    assert answer["code"] == EXIT_USER, answer
    assert answer["err"].startswith(f"sancus: {MISTAKES[line]}".replace("G'", f"{GRAPH}'")), answer
    assert answer["err"].count("\n") == 1, answer
