"""The page of `benchmark gpu`: Markdown from the records of its stages, in the order of three questions. No torch."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from yolo_lightning.commands.benchmark.result_texts import table
from yolo_lightning.commands.benchmark.stage_record import Stage, StageRecord, StageState

QUESTIONS = {
    "Does it compute right?": (Stage.CORRECTNESS,),
    "Is it faster than native, and by how much per layer?": (Stage.LAYERS, Stage.STEP),
}
READING_AID = """\
How to read this page: `gemm` is this package with the algorithms of its table, in channels_last. `gemm-kernels` adds
its CUDA/HIP kernels, `gemm-autotune` measures the fastest algorithm of each layer, `gemm-checkpointing` recomputes
activations. `native` is PyTorch (cuDNN, MIOpen or oneDNN), also in channels_last (`native-nhwc`) and recorded as CUDA
graphs (`native-graph`); on NVIDIA cards its float32 convolutions use TF32, PyTorch's default. Times are medians over
rounds in which all variants take turns; the range is the fastest and the slowest round. A ratio below 1 means: faster
than the reference. `-` means: not measured."""
BACKEND = "model.convolution.backend"
ALGORITHM = "model.convolution.algorithm"
FORMAT = "model.convolution.memory_format"
CUDA_GRAPH = "model.convolution.cuda_graph"
SETTINGS_OF = {
    "gemm": {BACKEND: "gemm", ALGORITHM: "table"},
    "gemm-kernels": {BACKEND: "gemm", ALGORITHM: "auto"},
    "gemm-autotune": {BACKEND: "gemm", ALGORITHM: "autotune"},
    "native-nhwc": {BACKEND: "native", FORMAT: "channels_last"},
    "native-graph": {BACKEND: "native", FORMAT: "channels_last", CUDA_GRAPH: "true"},
    "native": {BACKEND: "native", FORMAT: "contiguous"},
}
"""Settings of each variant that a training can use."""


def page(records: Sequence[StageRecord], environment: Mapping[str, Any]) -> str:
    """Return the page. `environment` contains the date, the command, the device and whether it was a rehearsal."""
    by_stage = {record.stage: record for record in records}
    facts = _measured(by_stage, Stage.MACHINE).get("device", {})
    lines = [f"# GPU benchmark: {facts.get('device', environment['device'])}", ""]
    if environment["quick"]:
        lines += ["**Rehearsal** (`--quick`): small shapes and few repetitions. Its times say nothing about speed.", ""]
    lines += [f"{environment['date']}, `{environment['command']}`", "", READING_AID, ""]
    for number, (question, stages) in enumerate(QUESTIONS.items(), 1):
        lines += [f"## {number}. {question}", "", *(f"- {answer(by_stage.get(stage), stage)}" for stage in stages), ""]
        for stage in stages:
            if stage in by_stage:
                lines += [f"### {stage}", "", *details(by_stage[stage])]
    lines += [f"## {len(QUESTIONS) + 1}. Which settings to use?", "", *settings(by_stage), ""]
    if Stage.MACHINE in by_stage:
        lines += ["## Machine", "", *details(by_stage[Stage.MACHINE])]
    return "\n".join(lines).rstrip() + "\n"


def answer(record: StageRecord | None, stage: Stage) -> str:
    """Return the answer of a stage in one line."""
    if record is None:
        return f"{stage}: not measured"
    heading = f"({stage}, {record.seconds:.1f} s)"
    if record.state is StageState.PASSED:
        return f"**{record.verdict or 'yes'}** {heading}: {record.answer}"
    verdict = "NO" if record.state is StageState.FAILED else "unknown"
    return f"**{verdict}** {heading}: {record.outcome}"


def details(record: StageRecord) -> list[str]:
    """Return the lines below the title of a stage."""
    lines = []
    if record.state is not StageState.PASSED:
        lines += [f"**{record.outcome}**", ""]
    if record.last_lines:
        lines += ["Last lines of its output:", "", "```", *record.last_lines, "```", ""]
    return [*lines, *record.lines]


def settings(by_stage: Mapping[Stage, StageRecord]) -> list[str]:
    """Return a table of the settings of the fastest correct training step."""
    is_wrong = Stage.CORRECTNESS in by_stage and by_stage[Stage.CORRECTNESS].state is StageState.FAILED
    times_s = {}
    for result in _measured(by_stage, Stage.STEP).get("results", ()):
        name = result["variant"]
        if result["samples_s"] and name in SETTINGS_OF and not (is_wrong and "gemm" in name):
            times_s[name] = median(result["samples_s"])
    if not times_s:
        return ["Not measured."]
    best = min(times_s, key=times_s.__getitem__)
    fastest = f"`{best}` has the fastest training step"
    if is_wrong:
        fastest += " of the correct variants"
    rows = [[f"`{key}`", f"`{value}`"] for key, value in SETTINGS_OF[best].items()]
    return [f"{fastest}, {times_s[best] * 1000:.1f} ms:", "", *table(["setting", "value"], rows)]


def _measured(by_stage: Mapping[Stage, StageRecord], stage: Stage) -> dict[str, Any]:
    if stage not in by_stage:
        return {}
    return by_stage[stage].measured
