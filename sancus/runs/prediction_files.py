"""Predictions as files: `.npz` with all arrays, or a table with one row a node, as `.csv` or `.parquet`."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sancus.errors import UserError
from sancus.runs.directory import write_arrays

Arrays = Mapping[str, "np.ndarray[Any, Any]"]
SUFFIXES = (".npz", ".csv", ".parquet")


def check_target(out: Path) -> None:
    """Refuse a file that predictions cannot be written as."""
    if out.suffix not in SUFFIXES:
        raise UserError(
            f"--out {out}: predictions are written as {', '.join(SUFFIXES)}; choose a name that ends so"
        )
    if out.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UserError(f"--out {out}: Parquet needs pyarrow; pip install 'sancus[tables]', or write .csv")


def write_predictions(arrays: Arrays, out: Path) -> None:
    """Write one row a node; no reader sees a part of it."""
    partial = out.with_name(f".{out.name}.partial")
    try:
        if out.suffix == ".npz":
            write_arrays(out, arrays)
            return
        table = columns_of(arrays)
        if out.suffix == ".csv":
            with partial.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(table)
                writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))
        else:
            import pyarrow
            from pyarrow import parquet

            parquet.write_table(pyarrow.table(table), partial)
        os.replace(partial, out)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror}); choose another file") from error


def columns_of(arrays: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    """The table: id or node, prediction (with several labels a node, one column a class), and the logits."""
    logits, predictions = arrays["logits"], arrays["predictions"]
    words = [str(word) for word in arrays.get("classes", np.arange(logits.shape[1]))]
    table = {"id": arrays["ids"]} if "ids" in arrays else {"node": np.arange(len(logits))}
    if predictions.dtype.kind == "f":
        return table | {f"value_{place}": column for place, column in enumerate(predictions.T)}
    if predictions.ndim == 1:
        table["prediction"] = arrays.get("names", predictions)
    else:
        table |= {f"label_{word}": predictions[:, place] for place, word in enumerate(words)}
    return table | {f"logit_{word}": logits[:, place] for place, word in enumerate(words[: logits.shape[1]])}
