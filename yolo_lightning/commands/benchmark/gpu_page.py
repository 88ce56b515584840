"""The page of `benchmark gpu`: Markdown from the records of its stages, in the order of five questions. No torch."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from yolo_lightning.commands.benchmark.findings import table
from yolo_lightning.commands.benchmark.stages import Stage, StageRecord, StageState

QUESTIONS = {
    "Does it compute right?": (Stage.CORRECTNESS,),
    "Is it faster than native, and by how much per layer?": (Stage.LAYERS, Stage.NETWORK, Stage.STEP),
    "Does training run?": (Stage.TRAINING, Stage.MEMORY),
    "Does kill and resume hold?": (Stage.RESUME,),
}
READING_AID = """\
How to read this page: `gemm` is this package with the algorithms of its table, in channels_last. `gemm-kernels` adds
its CUDA/HIP kernels, `gemm-autotune` measures the fastest algorithm of each layer, `gemm-checkpointing` recomputes
activations. `native` is PyTorch (cuDNN, MIOpen or oneDNN), also in channels_last (`native-nhwc`) and with the vendor
library disabled (`slow`); on NVIDIA cards its float32 convolutions use TF32, PyTorch's default. Times are medians over
rounds in which all variants take turns; the range is the fastest and the slowest round. A ratio below 1 means: faster
than the reference. `-` means: not measured."""
BACKEND, ALGORITHM = "model.convolution.backend", "model.convolution.algorithm"
FORMAT = "model.convolution.memory_format"
SETTINGS_OF = {
    "gemm": {BACKEND: "gemm", ALGORITHM: "table"},
    "gemm-kernels": {BACKEND: "gemm", ALGORITHM: "auto"},
    "gemm-autotune": {BACKEND: "gemm", ALGORITHM: "autotune"},
    "native-nhwc": {BACKEND: "native", FORMAT: "channels_last"},
    "native": {BACKEND: "native", FORMAT: "contiguous"},
}
"""Settings of each variant that a training can use."""


def page(records: Sequence[StageRecord], environment: Mapping[str, Any]) -> str:
    """Return the page. `environment` contains the date, the command, the device and whether it was a rehearsal."""
    known = {one.stage: one for one in records}
    facts = known[Stage.MACHINE].findings.measured.get("device", {}) if Stage.MACHINE in known else {}
    lines = [f"# GPU benchmark: {facts.get('device', environment['device'])}", ""]
    if environment["quick"]:
        lines += ["**Rehearsal** (`--quick`): small shapes and few repetitions. Its times say nothing about speed.", ""]
    lines += [f"{environment['date']}, `{environment['command']}`", "", READING_AID, ""]
    for number, (question, stages) in enumerate(QUESTIONS.items(), 1):
        lines += [f"## {number}. {question}", "", *(f"- {answer(known.get(stage), stage)}" for stage in stages), ""]
        for one in filter(None, map(known.get, stages)):
            lines += [f"### {one.stage}", "", *details(one)]
    lines += [f"## {len(QUESTIONS) + 1}. Which settings to use?", "", *settings(known), ""]
    if Stage.MACHINE in known:
        lines += ["## Machine", "", *details(known[Stage.MACHINE])]
    return "\n".join(lines).rstrip() + "\n"


def answer(record: StageRecord | None, stage: Stage) -> str:
    """Return the answer of a stage in one line."""
    if record is None:
        return f"{stage}: not measured"
    verdict = "NO" if record.state is StageState.FAILED else "unknown"
    if record.state is StageState.PASSED:
        verdict = record.findings.verdict or "yes"
    found = record.findings.answer if record.state is StageState.PASSED else f"{record.state}: {record.reason}"
    return f"**{verdict}** ({stage}, {record.seconds:.1f} s): {found}"


def details(record: StageRecord) -> list[str]:
    """Return the lines below the title of a stage."""
    lines = []
    if record.state is not StageState.PASSED:
        lines += [f"**{record.state}**" + (f": {record.reason}" if record.reason else ""), ""]
    if record.last_lines:
        lines += ["Last lines of its output:", "", "```", *record.last_lines, "```", ""]
    return [*lines, *record.findings.lines]


def settings(known: Mapping[Stage, StageRecord]) -> list[str]:
    """Return the recommended settings as YAML with reasons: doctor's, and the fastest correct convolutions."""
    found = {stage: record.findings.measured for stage, record in known.items()}
    options = [
        (one["key"], one["value"], one["reason"])
        for one in found.get(Stage.MACHINE, {}).get("doctor", {}).get("recommended", {}).get("options", ())
        if one["value"] is not None
    ]
    times_s = {row["variant"]: median(row["samples_s"]) for row in found.get(Stage.STEP, {}).get("results", ())
               if row["samples_s"]}  # fmt: skip
    is_wrong = Stage.CORRECTNESS in known and known[Stage.CORRECTNESS].state is StageState.FAILED
    usable = [name for name in times_s if name in SETTINGS_OF and not (is_wrong and "gemm" in name)]
    if usable:
        best = min(usable, key=lambda name: times_s[name])
        reason = f"`{best}` has the fastest training step" + (" of the correct variants" if is_wrong else "")
        options = [one for one in options if one[0] != BACKEND]
        options += [
            (key, value, f"{reason}, {times_s[best] * 1000:.1f} ms") for key, value in SETTINGS_OF[best].items()
        ]
    rows = [[f"`{key}`", f"`{value}`", reason] for key, value, reason in options]
    return table(["setting", "value", "reason"], rows) if rows else ["Not measured."]
