"""`python -m yolo_lightning doctor`: inspects this machine and recommends settings."""

import json as json_format
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from yolo_lightning.commands.command_line import wide_console
from yolo_lightning.commands.doctor.inspect_machine import SHARED_MEMORY, MachineFacts, inspect_machine
from yolo_lightning.commands.doctor.machine_findings import (
    OVERRIDE,
    RDNA1,
    TINY_SHARED_BYTES,
    Finding,
    Severity,
    machine_findings,
    own_architectures,
    own_build,
    worst,
)
from yolo_lightning.commands.doctor.probes import Outcome, Probe, ProbeOutcome, probe_findings, run_probes
from yolo_lightning.commands.doctor.read_hardware import Vendor
from yolo_lightning.errors import UserError
from yolo_lightning.utils.exit_codes import INTERRUPTED
from yolo_lightning.utils.files import CONVOLUTION_VERDICTS, cache_folder
from yolo_lightning.utils.host import MOST_AUTO_WORKERS
from yolo_lightning.utils.paths import user_path

STYLES = {Severity.OK: "green", Severity.NOTE: "cyan", Severity.WARNING: "yellow", Severity.BAD: "bold red"}

WORKER_BYTES = 600 << 20
"""Memory of a spawned worker: about 300 MB for a CUDA or ROCm build of torch, and its batches."""

BFLOAT16_CAPABILITY = 8
"""Major compute capability of the first NVIDIA GPUs with bfloat16 units."""

Value = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Option:
    """A recommended configuration key, as `data.loader.num_workers`, and its value."""

    key: str
    value: Value
    reason: str


@dataclass(frozen=True, slots=True)
class Command:
    """A recommended shell command: an environment variable or a system setting."""

    text: str
    reason: str


def doctor(
    *,
    device: str = "auto",
    run: str = "runs",
    probes: bool = True,
    probe_timeout_s: float = 180.0,
    json: bool = False,
    retry: bool = False,
) -> None:
    """Inspect this machine, test what can hang or crash in child processes, and recommend settings.

    Exit code 0 if no finding is bad, 1 if one is, 2 for an invalid option. docs/doctor.md explains the checks.

    Args:
        device: auto, cpu, cuda, cuda:1, xpu or mps; auto selects the GPU that torch finds, else the CPU.
        run: Parent folder of run folders; its free disk space is checked.
        probes: Also run tests on the device, which takes half a minute, or longer if one hangs.
        probe_timeout_s: Time limit of each test in seconds; vendor libraries compile kernels at first use.
        json: Print one JSON object instead of tables.
        retry: Delete the stored results of native convolutions, also failures in a training, so that
            `model.convolution.backend: auto` tests them again.

    Raises:
        UserError: If an option is invalid.
        SystemExit: With code 1 if a finding is bad.
    """
    if not re.fullmatch(r"auto|cpu|mps|(cuda|xpu)(:[0-9]+)?", device):
        raise UserError(
            f"--device must be auto, cpu, mps, cuda, xpu, or cuda:N or xpu:N with a number N, got {device!r}."
        )
    if not probe_timeout_s > 0:
        raise UserError(f"--probe_timeout_s must be > 0, got {probe_timeout_s}.")
    if retry:
        verdicts = cache_folder() / CONVOLUTION_VERDICTS
        try:
            verdicts.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"--retry cannot delete {verdicts} ({error.strerror}).") from error
    if user_path(run).is_file():
        raise UserError(f"--run must be the parent folder of run folders, got the file {run}.")
    machine = inspect_machine(user_path(run))
    try:
        results = run_probes(device, probe_timeout_s) if probes else []
    except KeyboardInterrupt:
        print("interrupted: the running test was ended", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    findings = [*machine_findings(machine), *probe_findings(results)]
    options = recommended_options(machine, results)
    commands = recommended_commands(machine, results)
    if json:
        content = {
            "verdict": worst(findings),
            "findings": list(map(asdict, findings)),
            "recommended": {"options": list(map(asdict, options)), "commands": list(map(asdict, commands))},
            "machine": asdict(machine),
            "probes": list(map(asdict, results)),
        }
        print(json_format.dumps(content, indent=2))
    else:
        show(wide_console(), machine, findings, options, commands)
    if worst(findings) is Severity.BAD:
        raise SystemExit(1)


def recommended_options(machine: MachineFacts, results: Sequence[ProbeOutcome]) -> list[Option]:
    """Return the recommended configuration of a machine; without probe results, the safest settings."""
    by_probe = {result.probe: result for result in results}
    gpu = by_probe.get(Probe.DEVICE)
    if gpu is not None and (not gpu.works or str(gpu.facts.get("device", "cpu")).startswith("cpu")):
        gpu = None
    options = [
        Option("trainer.precision", *_precision(machine, gpu, by_probe.get(Probe.MATMUL_BFLOAT16))),
        Option("model.convolution.backend", *_convolution(gpu, by_probe)),
        Option("data.loader.num_workers", *_workers(machine, by_probe.get(Probe.LOADER))),
    ]
    if options[-1].value:
        reason = "forked workers inherit locks and stop ROCm queues"
        options.append(Option("data.loader.multiprocessing_context", "spawn", reason))
    if machine.has(Vendor.AMD) and gpu is not None:
        options.append(Option("data.loader.pin_memory", True, "unmapping pageable batches stops the GPU's queues"))
    else:
        options.append(Option("data.loader.pin_memory", None, "pinned when training on a GPU"))
    return options


def _precision(machine: MachineFacts, gpu: ProbeOutcome | None, bfloat16: ProbeOutcome | None) -> tuple[Value, str]:
    if gpu is None:
        if bfloat16 is not None and bfloat16.works and bfloat16.facts.get("pays"):
            share = bfloat16.facts["bfloat16_share"]
            return "bf16-mixed", f"this CPU's bfloat16 convolutions take {share:.2f} times as long as float32"
        return "32-true", "works on every device"
    capability = gpu.facts.get("capability")
    if capability and capability[0] >= BFLOAT16_CAPABILITY and bfloat16 is not None and bfloat16.works:
        return "bf16-mixed", "this card has bfloat16 units; 32-true is as accurate, but slower"
    if any(card.architecture in RDNA1 for card in machine.cards):
        return "32-true", "gfx101x has no bfloat16 units; try 16-mixed if the float16 products work"
    return "32-true", "the precision of the training recipe"


def _convolution(gpu: ProbeOutcome | None, by_probe: dict[Probe, ProbeOutcome]) -> tuple[Value, str]:
    vendor = by_probe.get(Probe.CONVOLUTION)
    package = by_probe.get(Probe.OWN_CONVOLUTION)
    if gpu is None:
        return "auto", "native on a CPU; on a GPU it tests them first"
    if package is not None and package.failed:
        return "native", f"the own convolution {package.outcome} here"
    if vendor is None or vendor.outcome is Outcome.NOT_TRIED:
        return "gemm", "the vendor convolution could not be tested"
    if vendor.outcome is Outcome.WORKS:
        return "auto", "the vendor convolution works here, auto will select it"
    return "gemm", f"the vendor convolution {vendor.outcome} here"


def _workers(machine: MachineFacts, loader: ProbeOutcome | None) -> tuple[int, str]:
    if loader is not None and loader.failed:
        return 0, f"the loader with workers {loader.outcome} here"
    shared = machine.disks.get(SHARED_MEMORY)
    if shared is None or shared.free_bytes < TINY_SHARED_BYTES:
        return 0, "/dev/shm is too small for the batches of workers"
    by_cores = min(MOST_AUTO_WORKERS, machine.cores)
    by_memory = max(1, machine.memory.free_bytes // 4 // WORKER_BYTES)
    if by_memory < by_cores:
        return by_memory, "each needs about 600 MB of memory"
    if by_cores < MOST_AUTO_WORKERS:
        return by_cores, "as auto: one per available core"
    return by_cores, "as auto; use more only if the GPU waits for batches"


def recommended_commands(machine: MachineFacts, results: Sequence[ProbeOutcome]) -> list[Command]:
    """Return the recommended shell commands; only AMD GPUs need any."""
    if not machine.has(Vendor.AMD):
        return []
    supported = {name for result in results for name in result.facts.get("architectures", ())}
    cards = own_architectures(machine)
    lacking = (cards - supported) & RDNA1
    commands = []
    if supported and lacking:
        extras = ",".join(f"device-{name}" for name in sorted(lacking))
        words = f"pip install 'torch[{extras}]' 'torchvision[{extras}]'"
        commands.append(Command(words, f"this torch build lacks the card; {own_build(machine)}"))
    if supported and cards and OVERRIDE in machine.environment:
        commands.append(Command(f"unset {OVERRIDE}", "a torch build for the card itself needs no override"))
    reason = "fewer pages move under registered buffers"
    if machine.kernel.huge_pages == "always":
        commands.append(Command("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled", reason))
    if machine.kernel.numa_balancing:
        commands.append(Command("sudo sysctl kernel.numa_balancing=0", reason))
    return commands


def show(
    console: Console,
    machine: MachineFacts,
    findings: Sequence[Finding],
    options: Sequence[Option],
    commands: Sequence[Command],
) -> None:
    """Print the table of findings, the number of findings per severity and the recommended settings."""
    console.print(f"{machine.system}, {machine.processor}", highlight=False, markup=False)
    show_findings(console, findings)
    _show_block(console, "save as a configuration file, give it with a further --config", yaml_text(options))
    if commands:
        lines = "\n".join(f"# {command.reason}\n{command.text}" for command in commands)
        _show_block(console, "run in the shell before training", lines)


def _show_block(console: Console, title: str, lines: str) -> None:
    console.print(f"\n# {title}", style="dim", highlight=False)
    console.print(lines, highlight=False, markup=False, soft_wrap=True)  # unchanged, to be copied


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print the table of findings and the number of findings per severity."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("check")
    table.add_column("finding", ratio=1)
    table.add_column("severity", no_wrap=True)
    for finding in findings:
        lines = escape(finding.result)
        if finding.advice:
            lines += f"\n[dim]> {escape(finding.advice)}[/dim]"
        style = STYLES[finding.verdict]
        table.add_row(escape(finding.check), lines, f"[{style}]{finding.verdict}[/{style}]")
    counts = Counter(finding.verdict for finding in findings)
    summary = ", ".join(f"{severity}: {counts[severity]}" for severity in reversed(Severity) if counts[severity])
    console.print(table)
    console.print(summary, style=STYLES[worst(findings)], highlight=False)


def yaml_text(options: Sequence[Option]) -> str:
    """Return nested YAML; the reason of a value is a comment above it."""
    lines: list[str] = []
    before: list[str] = []
    for option in options:
        *parents, name = option.key.split(".")
        for depth, parent in enumerate(parents):
            if before[: depth + 1] != parents[: depth + 1]:
                lines.append(f"{'  ' * depth}{parent}:")
        before = parents
        indent = "  " * len(parents)
        lines += [f"{indent}# {option.reason}", f"{indent}{name}: {json_format.dumps(option.value)}"]
    return "\n".join(lines)
