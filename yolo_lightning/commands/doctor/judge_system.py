"""What there is to say about processor, memory, disks and the kernel's settings. Pure."""

from collections.abc import Iterator

from yolo_lightning.commands.doctor.finding import Finding, Severity
from yolo_lightning.commands.doctor.machine import FileSystem, MachineFacts, Vendor

MIB, GIB = 1 << 20, 1 << 30

FEW_CORES = 4
SCORING_BYTES = 6 * GIB
"""Memory that scoring the 43,850 validation frames of LTDv2 takes, with 100 detections per frame."""

LITTLE_SHARED_BYTES, TINY_SHARED_BYTES = 256 * MIB, 64 * MIB
"""4 workers with 2 batches ahead of 8 frames of 640 x 640 bytes each hold 40 MiB; Docker gives 64 MiB."""

LITTLE_RUN_BYTES, NO_RUN_BYTES = 5 * GIB, GIB
"""A run folder of YOLOv8n takes some 200 MB of checkpoints, and 6 GB with the predictions of all splits."""

STORE_BYTES = 46_500_000_000
"""LTDv2 in a packed store, which `prepare` makes beside the frames."""

WHY_QUIET = "pages that move can stop the queues of an AMD GPU"


def system_findings(machine: MachineFacts) -> Iterator[Finding]:
    """Cores, memory, swap, /dev/shm, disks, huge pages, NUMA balancing, the kernel's log."""
    yield _cores(machine)
    yield _memory(machine)
    yield _swap(machine)
    yield _shared_memory(machine.shared_memory)
    yield _run_disk(machine.run_disk)
    if machine.data_disk is not None:
        yield _data_disk(machine.data_disk)
    yield _huge_pages(machine)
    yield _numa_balancing(machine)
    yield _kernel_log(machine)


def gib(size_bytes: int) -> str:
    """As `du -h` counts."""
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / MIB:.0f} MiB"


def _cores(machine: MachineFacts) -> Finding:
    found = f"{machine.processor}, {machine.cores} {'core' if machine.cores == 1 else 'cores'} for this process"
    if machine.cores == 1:
        return Finding("processor", f"{found}: workers and training take turns", Severity.WARNING)
    return Finding("processor", found, Severity.NOTE if machine.cores < FEW_CORES else Severity.OK)


def _memory(machine: MachineFacts) -> Finding:
    memory = machine.memory
    found = f"{gib(memory.available_bytes)} of {gib(memory.total_bytes)} free"
    if memory.available_bytes < SCORING_BYTES:
        needed = f"scoring LTDv2's validation frames takes {gib(SCORING_BYTES)}"
        return Finding("memory", f"{found}: {needed}", Severity.WARNING, "lower model.max_detections, or free memory")
    return Finding("memory", found, Severity.OK)


def _swap(machine: MachineFacts) -> Finding:
    if not machine.memory.swap_bytes:
        return Finding("swap", "none", Severity.OK)
    found = gib(machine.memory.swap_bytes)
    if machine.has(Vendor.AMD):
        return Finding("swap", f"{found}: {WHY_QUIET}", Severity.NOTE, "sudo swapoff -a, where memory suffices")
    return Finding("swap", found, Severity.OK)


def _shared_memory(space: FileSystem | None) -> Finding:
    check = "/dev/shm"
    if space is None:
        return Finding(check, "not there: loader workers cannot work", Severity.BAD, "data.loader.workers: 0")
    if space.free_bytes is None or space.total_bytes is None:
        return Finding(check, "does not answer", Severity.BAD, "data.loader.workers: 0")
    found = f"{gib(space.free_bytes)} of {gib(space.total_bytes)} free"
    if space.free_bytes >= LITTLE_SHARED_BYTES:
        return Finding(check, found, Severity.OK)
    advice = "start the container with --shm-size 1g or --ipc host; else data.loader.workers: 0"
    if space.free_bytes >= TINY_SHARED_BYTES:
        return Finding(check, f"{found}: enough for batches of 8, not for many more", Severity.NOTE, advice)
    return Finding(check, f"{found}: workers that fill it die with a bus error", Severity.WARNING, advice)


def _run_disk(space: FileSystem) -> Finding:
    check = "disk for runs"
    if space.free_bytes is None:
        return Finding(check, f"{space.path} does not answer", Severity.BAD, "name another folder with --run")
    found = f"{gib(space.free_bytes)} free at {space.path}"
    if space.free_bytes < NO_RUN_BYTES:
        return Finding(check, found, Severity.BAD, "a run with its predictions takes up to 6 GB")
    if space.free_bytes < LITTLE_RUN_BYTES:
        return Finding(check, found, Severity.WARNING, "a run with its predictions takes up to 6 GB")
    return Finding(check, found, Severity.OK)


def _data_disk(space: FileSystem) -> Finding:
    check = "disk for data"
    if space.free_bytes is None:
        return Finding(check, f"{space.path} does not answer", Severity.BAD, "is its file system mounted and alive?")
    found = f"{gib(space.free_bytes)} free at {space.path}"
    if space.free_bytes < STORE_BYTES:
        return Finding(check, f"{found}: `prepare` needs {gib(STORE_BYTES)} for LTDv2", Severity.NOTE)
    return Finding(check, found, Severity.OK)


def _huge_pages(machine: MachineFacts) -> Finding:
    check, mode = "huge pages", machine.kernel.huge_pages
    if mode == "always" and machine.has(Vendor.AMD):
        return Finding(check, f"always: {WHY_QUIET}", Severity.NOTE, "set them to madvise, see below")
    return Finding(check, mode or "unknown to this kernel", Severity.OK)


def _numa_balancing(machine: MachineFacts) -> Finding:
    check, on = "NUMA balancing", machine.kernel.numa_balancing
    if on and machine.has(Vendor.AMD):
        return Finding(check, f"on: {WHY_QUIET}", Severity.NOTE, "switch it off, see below")
    return Finding(check, "unknown to this kernel" if on is None else "on" if on else "off", Severity.OK)


def _kernel_log(machine: MachineFacts) -> Finding:
    if machine.kernel.log_restricted and not machine.is_root:
        advice = "sudo sysctl kernel.dmesg_restrict=0, where incident reports and the hang study should hold its lines"
        return Finding("kernel log", "read by root only", Severity.NOTE, advice)
    return Finding("kernel log", "may be read", Severity.OK)
