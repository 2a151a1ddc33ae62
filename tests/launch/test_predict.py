"""`sancus predict` and `sancus evaluate`: what a finished run says, on any ranks, in the user's order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sancus.cli.runs import evaluate, predict
from sancus.errors import UserError
from tests.helpers.command import read_run, run

DATA = "synthetic:nodes=200"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    flags = (
        "--model",
        "gat",
        "--hidden",
        "8",
        "--heads",
        "2",
        "--epochs",
        "4",
        "--dtype",
        "float64",
        "--quiet",
    )
    result = run("train", DATA, *flags, "--out", folder, launcher="local", ranks=2)
    assert result.code == 0, result
    return folder


def test_predictions_do_not_depend_on_the_ranks(finished: Path, tmp_path: Path) -> None:
    result = run("predict", finished, "--out", tmp_path / "3.npz", launcher="local", ranks=3)
    assert result.code == 0, result
    assert "200 nodes: embeddings, logits, predictions" in result.out
    predict(finished, out=tmp_path / "1.npz", ranks=1)
    with np.load(tmp_path / "1.npz") as alone, np.load(tmp_path / "3.npz") as together:
        assert alone["embeddings"].shape == (200, 8)
        for name in ("embeddings", "logits", "predictions"):
            np.testing.assert_allclose(alone[name], together[name], rtol=1e-9, atol=1e-12)
        with np.load(finished / "predictions.npz") as arrays:
            np.testing.assert_array_equal(alone["predictions"], arrays["prediction"])


def test_evaluate_repeats_the_score_of_the_run(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(finished, ranks=1)
    best = read_run(finished)["result"]
    assert f"val {best['val']:.4f}  test {best['test']:.4f}" in capsys.readouterr().out


def test_a_mistake_is_one_line(finished: Path) -> None:
    with pytest.raises(UserError, match=r"--out x.txt: predictions are written as .npz"):
        predict(finished, out=Path("x.txt"))
    with pytest.raises(UserError, match="nowhere holds no finished run; give the --out directory of one"):
        evaluate(Path("nowhere"))
    with pytest.raises(UserError, match=r"do not fit this graph: layers.0.* features and classes must be"):
        evaluate(finished, data=f"{DATA},features=9", ranks=1)
