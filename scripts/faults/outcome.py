"""The final state of a run, for a comparison bit for bit."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

STATES = ("state_dict", "current_model_state", "optimizer_states", "accumulation")
"""Of `last.ckpt`: averaged weights, weights, optimizer, gradients summed since the last update."""

SHOWN = 3


@dataclass(frozen=True)
class Outcome:
    """What must be equal.

    Attributes:
        tensors: By name.
        rows: Of the metrics file, without their times.
        steps: Trained.
    """

    tensors: dict[str, Tensor]
    rows: list[dict[str, str]]
    steps: int


def read(run_folder: Path) -> Outcome:
    """The outcome in a run folder.

    Raises:
        OSError: If the run has left none.
    """
    checkpoint = torch.load(run_folder / "checkpoints" / "last.ckpt", weights_only=True)
    best = torch.load(run_folder / "checkpoints" / "best.ckpt", weights_only=True)
    found = dict(tensors({name: checkpoint[name] for name in STATES}, "last"))
    found |= dict(tensors(best["state_dict"], "best"))
    with (run_folder / "metrics.csv").open(newline="") as file:
        rows = [{key: value for key, value in row.items() if key != "time_s"} for row in csv.DictReader(file)]
    return Outcome(found, rows, int(checkpoint["steps"]))


def without_best(one: Outcome) -> Outcome:
    """The same without the weights of the best checkpoint."""
    return replace(one, tensors={name: tensor for name, tensor in one.tensors.items() if not name.startswith("best.")})


def tensors(tree: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """All tensors of nested dictionaries and lists, with their places."""
    if isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from tensors(value, f"{name}.{key}")


def differences(found: Outcome, expected: Outcome) -> list[str]:
    """What is not equal; empty where all is. NaN counts as different: two runs that are both broken agree on it."""
    wrong = []
    if found.steps != expected.steps:
        wrong.append(f"{found.steps} steps trained instead of {expected.steps}")
    if found.tensors.keys() != expected.tensors.keys():
        wrong.append(f"other tensors: {sorted(found.tensors.keys() ^ expected.tensors.keys())[:SHOWN]}")
    broken = [name for name, tensor in found.tensors.items() if not tensor.isfinite().all()]
    if broken:
        wrong.append(f"{len(broken)} tensors are not finite, among them {broken[0]}")
    both = found.tensors.keys() & expected.tensors.keys()
    other = sorted(name for name in both if not torch.equal(found.tensors[name], expected.tensors[name]))
    if other:
        wrong.append(f"{len(other)} of {len(both)} tensors differ, among them {', '.join(other[:SHOWN])}")
    steps = [(row["epoch"], row["step"]) for row in found.rows]
    if steps != [(row["epoch"], row["step"]) for row in expected.rows]:
        doubled = sorted({step for step in steps if steps.count(step) > counted(expected, step)})
        missing = sorted({(row["epoch"], row["step"]) for row in expected.rows} - set(steps))
        wrong.append(f"metrics.csv: rows doubled {doubled[:SHOWN]}, missing {missing[:SHOWN]} (epoch, step)")
    elif found.rows != expected.rows:
        changed = [one["step"] for one, two in zip(found.rows, expected.rows, strict=True) if one != two]
        wrong.append(f"metrics.csv: other values at the steps {changed[:SHOWN]}")
    return wrong


def counted(outcome: Outcome, step: tuple[str, str]) -> int:
    """Rows of the metrics file at an epoch and step; a step that ends an epoch has one of the validation too."""
    return sum((row["epoch"], row["step"]) == step for row in outcome.rows)
