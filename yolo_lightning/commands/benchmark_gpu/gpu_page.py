"""The page of the GPU benchmark: Markdown from the records of its stages. No torch."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from yolo_lightning.commands.benchmark_gpu.stage_records import Stage, StageRecord, StageState

MIB, GIB = 2**20, 2**30
TITLES = {
    Stage.MACHINE: "Machine",
    Stage.CORRECTNESS: "Correctness of the convolutions",
    Stage.PRODUCTS: "Matrix products",
    Stage.SPEED: "Speed",
    Stage.WAITS: "Waits for the device",
    Stage.MEMORY: "Memory",
    Stage.STABILITY: "Stability",
    Stage.RESUME: "Kill and resume",
    Stage.INDUCTOR: "Inductor's Triton convolutions",
}
MOST_PRODUCTS = 25
NOT_MEASURED = "-"
READING_AID = """\
How to read this page: `gemm` variants are the convolutions of this package, all others are baselines. `nhwc` is
PyTorch's `channels_last` layout. Times are medians over rounds in which all variants take turns; the range is the
fastest and the slowest round. A ratio below 1 means: faster than the reference. TF32 is off except in the variants with
`tf32` in their name."""


def page(records: Sequence[StageRecord], environment: dict[str, Any]) -> str:
    """Return the page of all stages. `environment` contains the date, the command and whether it was a rehearsal."""
    device = next((one.result.get("device") for one in records if one.stage is Stage.MACHINE), None) or {}
    lines = [f"# GPU benchmark: {device.get('device', environment['device'])}", ""]
    if environment["quick"]:
        lines += ["**Rehearsal** (`--quick`): small shapes and few repetitions. Its times say nothing about speed.", ""]
    lines += [f"{environment['date']}, `{environment['command']}`", "", READING_AID, "", "## Summary", ""]
    lines += table(
        ["stage", "result", "seconds", "key figure or reason"],
        [[TITLES[one.stage], one.state, f"{one.seconds:.1f}" if one.seconds else NOT_MEASURED, key_figure(one)]
         for one in records],
    )  # fmt: skip
    for record in records:
        lines += ["", f"## {TITLES[record.stage]}", "", *section(record)]
    return "\n".join(lines).rstrip() + "\n"


def section(record: StageRecord) -> list[str]:
    """Return the lines below the title of a stage."""
    lines: list[str] = []
    if record.state is not StageState.PASSED:
        lines += [f"**{record.state}**" + (f": {record.reason}" if record.reason else ""), ""]
    if record.last_lines:
        lines += ["Last lines of its output:", "", "```", *record.last_lines, "```", ""]
    if record.result:
        try:
            lines += SECTIONS[record.stage](record.result)
        except (KeyError, TypeError, IndexError) as error:  # a part of a result, or one of another version
            lines += [
                f"The result is incomplete ({type(error).__name__}: {error}); gpu.json contains what was measured."
            ]
    return lines or ["Not measured."]


def key_figure(record: StageRecord) -> str:
    """Return the most important figure of a stage, or why there is none."""
    if record.state is not StageState.PASSED:
        return record.reason or record.state
    try:
        return KEY_FIGURES[record.stage](record.result)
    except (KeyError, TypeError, IndexError, ValueError):
        return NOT_MEASURED


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return a Markdown table; columns after the first that contain numbers only are aligned to the right."""
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    numeric = [
        bool(cells) and at > 0 and all(row[at] == NOT_MEASURED or row[at][:1].isdigit() for row in cells)
        for at in range(len(headings))
    ]
    rule = ["---:" if right else "---" for right in numeric]
    return [f"| {' | '.join(row)} |" for row in (list(headings), rule, *cells)]


def _machine(result: dict[str, Any]) -> list[str]:
    system, device, doctor = result.get("system", {}), result.get("device", {}), result.get("doctor", {})
    memory = device.get("memory_bytes")
    rows = [
        ("device", f"{device.get('device', NOT_MEASURED)} (`{device.get('chosen', NOT_MEASURED)}`)"),
        ("memory of the device", NOT_MEASURED if memory is None else f"{memory / GIB:.1f} GiB"),
        ("driver and runtime", device.get("driver", NOT_MEASURED)),
        ("torch", device.get("torch", NOT_MEASURED)),
        ("Python, system", f"{system.get('python')}, {system.get('platform')}"),
        ("processor", f"{system.get('processor', NOT_MEASURED)}, {system.get('cores', NOT_MEASURED)} cores"),
        ("TF32 by PyTorch's default", _switches(device.get("tf32", {}))),
        ("doctor", doctor.get("failure") or doctor.get("verdict", NOT_MEASURED)),
    ]
    lines = table(["", "value"], rows)
    findings = [one for one in doctor.get("findings", ()) if one["verdict"] != "ok"]
    if findings:
        lines += ["", "Findings of `doctor` that are not ok:", ""]
        lines += table(
            ["check", "severity", "finding", "advice"],
            [[one["check"], one["verdict"], one["found"], one["advice"] or NOT_MEASURED] for one in findings],
        )
    return lines


def _switches(switches: dict[str, bool]) -> str:
    return ", ".join(f"{name}: {'on' if value else 'off'}" for name, value in switches.items()) or NOT_MEASURED


def _correctness(result: dict[str, Any]) -> list[str]:
    dtypes = list(result["tolerances"])
    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for one in result["algorithms"]:
        by_name.setdefault(one["algorithm"], {})[one["dtype"]] = one
    limits = ", ".join(f"{name} {limit:g}" for name, limit in result["tolerances"].items())
    lines = [
        f"{result['shapes']} of {result['shapes_of_network']} distinct convolutions of YOLOv8n, {result['batch']}"
        " images, NCHW and NHWC: forward, input gradient, weight gradient, and both gradients at once. The error is the"
        f" largest difference from float64, relative to the largest value. Tolerances: {limits}. An algorithm without a"
        " value does not support the dtype.",
        "",
    ]
    rows = []
    for name, found in by_name.items():
        cells = [_error(found.get(dtype), result["tolerances"][dtype]) for dtype in dtypes]
        refusals = sum(one["refusals"] for one in found.values())
        rows.append([name, *cells, sum(one["cases"] for one in found.values()), refusals])
    lines += table(["algorithm", *(f"{dtype} error" for dtype in dtypes), "products", "refused"], rows)
    if result["messages"]:
        lines += ["", "Warnings:", "", *(f"- {message}" for message in result["messages"])]
    return lines


def _error(one: dict[str, Any] | None, tolerance: float) -> str:
    if one is None or not one["cases"]:
        return NOT_MEASURED
    error = f"{one['largest_error']:.1e}"
    return error if one["largest_error"] <= tolerance else f"**{error} WRONG** ({one['worst']})"


def _products(result: dict[str, Any]) -> list[str]:
    squares = [[name, _tflops(row), _ms(row.get("median_s"))] for name, row in result["square"].items()]
    side = next(iter(result["square"].values()))["product"]
    lines = [f"One square product, {side}, as the yardstick:", "", *table(["dtype", "TFLOP/s", "ms"], squares)]
    rows = result["rows"]
    known = [row for row in rows if "median_s" in row]
    if not known:
        return lines
    total_s = sum(row["median_s"] * row["count"] for row in known)
    operations = sum(row["operations"] * row["count"] for row in known)
    best = result["square"]["float32"].get("operations_per_s")
    lines += [
        "",
        f"Products of one forward and backward pass of the network in float32, {result['batch']} images of"
        f" {result['image_size']} px: {result.get('products', len(rows))} products of"
        f" {result.get('shapes', len(rows))} shapes, {operations / 1e9:.1f} GFLOP, {total_s * 1000:.2f} ms if each runs"
        f" alone, {operations / total_s / 1e12:.3g} TFLOP/s. The {min(MOST_PRODUCTS, len(known))} shapes that take the"
        " most time:",
        "",
    ]
    slowest = sorted(known, key=lambda row: -row["median_s"] * row["count"])[:MOST_PRODUCTS]
    lines += table(
        ["product", "operator", "count", "ms each", "ms in all", "share", "TFLOP/s", "of the square's rate"],
        [
            [
                f"`{row['product']}`",
                row["operator"],
                row["count"],
                _ms(row["median_s"]),
                _ms(row["median_s"] * row["count"]),
                f"{row['median_s'] * row['count'] / total_s:.0%}",
                _tflops(row),
                f"{row['operations_per_s'] / best:.0%}" if best else NOT_MEASURED,
            ]
            for row in slowest
        ],
    )
    return lines


def _tflops(row: dict[str, Any]) -> str:
    return f"{row['operations_per_s'] / 1e12:.3g}" if "operations_per_s" in row else NOT_MEASURED


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return NOT_MEASURED
    value = seconds * 1000
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _speed(result: dict[str, Any]) -> list[str]:
    where = f"{result['batch']} images of {result['image_size']} px"
    lines = [f"- `{name}`: {text}" for name, text in result["variants"].items()]
    if result["excluded"]:
        lines += ["", "Not measured:", ""]
        lines += [f"- `{name}`: {reason}" for name, reason in result["excluded"].items()]
    if result.get("step"):
        lines += ["", f"### Training step, float32, {where}", ""]
        lines += [
            "YOLOModule in a Lightning Trainer: transfer from page-locked memory (on a GPU), guarded step, loss,"
            " clipping, optimizer (one update per 64 images), logging. Wall-clock time per step.",
            "",
        ]
        lines += speed_table(result["step"], result["batch"])
    for key, title in (("network", "float32"), ("network_bfloat16", "bfloat16 autocast")):
        if result.get(key):
            lines += ["", f"### Network, forward and backward, {title}, {where}", ""]
            lines += speed_table(result[key], result["batch"])
    return lines


REFERENCES = ("native", "slow")
"""Prefixes of the variants that ratios refer to: the fastest variant of each without TF32."""


def speed_table(rows: Sequence[dict[str, Any]], batch: int) -> list[str]:
    """Return a table of times, ratios, rates and, where measured, memory and launches, and the failures."""
    references = [reference_row(rows, prefix) for prefix in REFERENCES]
    shown = [one for one in references if one is not None]
    has_footprint = any(row.get("footprint") for row in rows)
    headings = ["variant", "median ms", "range ms", "images/s", *(f"ratio to {one['variant']}" for one in shown)]
    headings += ["stored MiB", "peak MiB", "launches"] if has_footprint else []
    cells = []
    for row in rows:
        total = row["total"]
        if total is None:
            cells.append([f"{row['variant']} (failed)", *[NOT_MEASURED] * (len(headings) - 1)])
            continue
        own = [row["variant"], _ms(total["median_s"]), f"{_ms(total['minimum_s'])} to {_ms(total['maximum_s'])}"]
        own += [f"{batch / total['median_s']:.1f}", *(f"{ratio_of(row, one):.2f}" for one in shown)]
        if has_footprint:
            footprint = row.get("footprint") or {}
            own += [_mib(footprint.get("saved_bytes")), _mib(footprint.get("peak_bytes"))]
            own.append(str(footprint.get("launches") or NOT_MEASURED))
        cells.append(own)
    failures = [f"- `{row['variant']}` failed: {row['failure']}" for row in rows if row["failure"]]
    return [*table(headings, cells), *([""] if failures else []), *failures]


def reference_row(rows: Sequence[dict[str, Any]], prefix: str) -> dict[str, Any] | None:
    """Return the fastest row without TF32 whose variant begins with `prefix`, or None."""
    own = [row for row in rows if row["variant"].startswith(prefix) and "tf32" not in row["variant"] and row["total"]]
    own = [row for row in own if "inductor" not in row["variant"]]
    return min(own, key=lambda row: row["total"]["median_s"]) if own else None


def ratio_of(row: dict[str, Any], to: dict[str, Any]) -> float:
    """Return the median over the rounds of the ratio of two times."""
    pairs = zip(row["total"]["samples_s"], to["total"]["samples_s"], strict=False)
    return float(statistics.median(own / other for own, other in pairs))


def _mib(size: float | None) -> str:
    return NOT_MEASURED if size is None else f"{size / MIB:,.0f}"


def _waits(result: dict[str, Any]) -> list[str]:
    lines = [f"Counted by {result['method']}, over {result['steps']} steps of {result['batch']} images."]
    for name, found in result["variants"].items():
        lines += ["", f"`{name}`: {found['per_step']:g} per step", ""]
        rows = [[f"`{one['place']}`", f"{one['per_step']:g}"] for one in found["places"]]
        lines += table(["place", "per step"], rows) if rows else ["No wait."]
    return lines


def _memory(result: dict[str, Any]) -> list[str]:
    lines = [f"Peak of a training step, {result['batch']} images of {result['image_size']} px, float32:", ""]
    rows = [[row["variant"], _mib(row["peak_bytes"]), row["failure"] or NOT_MEASURED] for row in result["peaks"]]
    lines += table(["variant", "peak MiB", "failure"], rows)
    if all(row["peak_bytes"] is None for row in result["peaks"]):
        lines += ["", "This device does not report the peak of its memory."]
    if "within_limit" in result:
        lines += [
            "",
            f"Largest batch (a power of two) within {result['limit_bytes'] / GIB:g} GiB of PyTorch's allocator"
            f" ({result['limit']}), and a step with the next size, which GuardedStep may split:",
            "",
        ]
        lines += table(
            ["variant", "largest batch", "out of memory at", "images at once after the split", "failure"],
            [
                [
                    row["variant"],
                    row["largest"],
                    row["out_of_memory_at"] or NOT_MEASURED,
                    (row["split"] or {}).get("images_at_once") or NOT_MEASURED,
                    row["failure"] or (row["split"] or {}).get("failure") or NOT_MEASURED,
                ]
                for row in result["within_limit"]
            ],
        )
    return lines


def _stability(result: dict[str, Any]) -> list[str]:
    rows = []
    for name, run in result["runs"].items():
        different = f"no, from step {run['first_difference']} on, by up to {run['largest_difference']:.1e} of the loss"
        growth = run["growth_bytes"]
        rows.append(
            [
                name,
                run["failure"] or ("yes" if run["finite"] else "NO"),
                "bit for bit" if run["equal"] else different,
                NOT_MEASURED if growth is None else f"{growth / MIB:+.1f} MiB",
                f"{run['allowed_growth_bytes'] / MIB:.0f} MiB" if run["growth_judged"] else "not judged",
                f"{run['first_loss']:.3f} to {run['last_loss']:.3f}",
            ]
        )
    first = next(iter(result["runs"].values()))
    intro = (
        f"Two trainings of {first['steps']} steps from one seed, {result['batch']} images of {first['image_size']} px."
    )
    headings = ["variant", "losses finite", "losses equal", "memory growth", "allowed growth", "loss per image"]
    return [intro, "", *table(headings, rows)]


def _resume(result: dict[str, Any]) -> list[str]:
    lines = [
        f"`fit` on {result['frames']} generated frames, {result['steps']} steps of {result['batch_size']} images of"
        f" {result['image_size']} px, {result['workers']} loader workers; SIGKILL before step"
        f" {result['killed_before_step']} (from 0), then `--resume`.",
        "",
    ]
    rows = [[name, run["code"], f"{run['seconds']:.1f}", run["steps_saved"]] for name, run in result["runs"].items()]
    lines += table(["fit", "exit code", "seconds", "steps in its newest checkpoint"], rows)
    if result.get("equal") is not None:
        exact = f"no; largest difference {result['largest_difference']:.1e} of the largest value of a tensor"
        equal = "yes, bit for bit" if result["equal"] else exact
        lines += ["", f"Final weights equal to those of the undisturbed fit: {equal}."]
    for name, run in result["runs"].items():
        if run.get("last_lines"):
            lines += ["", f"Last lines of the {name} fit:", "", "```", *run["last_lines"], "```"]
    return lines


def _inductor(result: dict[str, Any]) -> list[str]:
    if "not_measured" in result:
        return [f"Not measured: {result['not_measured']}."]
    options = ", ".join(f"{name}={value}" for name, value in result["options"].items())
    intro = f"Network, forward and backward, float32, {result['batch']} images of {result['image_size']} px; {options}."
    return [intro, "", *speed_table(result["network"], result["batch"])]


SECTIONS: dict[Stage, Callable[[dict[str, Any]], list[str]]] = {
    Stage.MACHINE: _machine,
    Stage.CORRECTNESS: _correctness,
    Stage.PRODUCTS: _products,
    Stage.SPEED: _speed,
    Stage.WAITS: _waits,
    Stage.MEMORY: _memory,
    Stage.STABILITY: _stability,
    Stage.RESUME: _resume,
    Stage.INDUCTOR: _inductor,
}


def _key_speed(result: dict[str, Any]) -> str:
    rows = result["step"]
    ours = reference_row(rows, "gemm")
    if ours is None:
        return NOT_MEASURED
    text = f"fastest of ours: {ours['variant']}, {_ms(ours['total']['median_s'])} ms per training step"
    for prefix in REFERENCES:
        other = reference_row(rows, prefix)
        if other is not None:
            text += f"; {ratio_of(ours, other):.2f} of {other['variant']}"
    return text


def _key_correctness(result: dict[str, Any]) -> str:
    errors = {
        dtype: max((one["largest_error"] for one in result["algorithms"] if one["dtype"] == dtype), default=0.0)
        for dtype in result["tolerances"]
    }
    return "largest error: " + ", ".join(f"{dtype} {error:.1e}" for dtype, error in errors.items())


def _key_memory(result: dict[str, Any]) -> str:
    limits = ", ".join(f"{row['variant']} {row['largest']}" for row in result["within_limit"])
    return f"largest batch within {result['limit_bytes'] / GIB:g} GiB: {limits}"


def _key_resume(result: dict[str, Any]) -> str:
    difference = "weights equal bit for bit" if result["equal"] else f"difference {result['largest_difference']:.1e}"
    return f"resumed after SIGKILL; {difference}"


def _key_stability(result: dict[str, Any]) -> str:
    equal = all(run["equal"] for run in result["runs"].values())
    return f"{len(result['runs'])} variants finite, {'equal bit for bit' if equal else 'not equal'}"


KEY_FIGURES: dict[Stage, Callable[[dict[str, Any]], str]] = {
    Stage.MACHINE: lambda result: f"doctor: {result['doctor']['verdict']}",
    Stage.CORRECTNESS: _key_correctness,
    Stage.PRODUCTS: lambda result: f"float32 square product {_tflops(result['square']['float32'])} TFLOP/s",
    Stage.SPEED: _key_speed,
    Stage.WAITS: lambda result: ", ".join(
        f"{name} {found['per_step']:g} per step" for name, found in result["variants"].items()
    ),
    Stage.MEMORY: _key_memory,
    Stage.STABILITY: _key_stability,
    Stage.RESUME: _key_resume,
    Stage.INDUCTOR: lambda result: result.get("not_measured", "measured"),
}
