"""Train on two hosts, built as network namespaces on this machine, under faults; print a table of what happens.

    sudo python scripts/two_hosts.py --work /tmp/two-hosts                    all faults
    sudo python scripts/two_hosts.py --work /tmp/two-hosts --faults none cut    some of them

Each host has one torchrun agent with one rank on the CPU. An agent that ends with an error is started again after a
second, as systemd does with the unit in docs/scaling.md. Where namespaces cannot be made, the script prints the reason
and ends with exit code 0.
"""

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

import torch  # noqa: E402
from common import markdown_table  # noqa: E402
from hosts.fit import LONGEST_S, POLL_S, HostedFit  # noqa: E402
from hosts.network import TwoNamespaces, reason_against  # noqa: E402
from hosts.record import are_equal, are_validated_networks_equal, is_each_image_once, read_weights  # noqa: E402
from hosts.systemd import restarts  # noqa: E402
from synthetic import draw_dataset  # noqa: E402

FRAMES = 24
EPOCH_STEPS = FRAMES // 4
LONG_EPOCHS = 50  # of a fit that still trains when a lost host returns
FAULT_STEP = 7
LINK_DOWN_S = 300.0
SHORT_LINK_DOWN_S = 20.0
LATE_S = 60.0
ERROR = "error: "
WARNING = "warning: "
FINISHED = "To start a new run"

Disturb = Callable[[HostedFit], None]


def main() -> None:
    """Run the faults one after the other."""
    options = parse()
    reason = reason_against()
    if reason:
        print(f"two hosts cannot be built here: {reason}")
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    work: Path = options.work.resolve()
    data = draw_dataset(work / "data", train_frames=FRAMES, valid_frames=8, test_frames=4, width=96, height=64)
    rows = []
    for name in options.faults:
        folder = work / name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        with TwoNamespaces() as network:
            rows.append([FAULTS[name][0], run(name, network, folder, data)])
        print(" | ".join(rows[-1]), flush=True)
    print(markdown_table(["fault", "result"], rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for data and runs")
    parser.add_argument(
        "--faults", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="FAULT", help=", ".join(FAULTS)
    )
    return parser.parse_args()


def run(name: str, network: TwoNamespaces, folder: Path, data: Path) -> str:
    """Return what happened under a fault."""
    _, prepare, disturb = FAULTS[name]
    fit = prepare(network, folder, data)
    began_s = time.monotonic()
    sent = network.sent_bytes(1)
    fit.start()
    is_disturbed = False
    try:
        while fit.serve():
            if not is_disturbed and fit.has_reached(FAULT_STEP):
                is_disturbed = True
                disturb(fit)
            if time.monotonic() > began_s + LONGEST_S:
                return f"no end within {LONGEST_S:.0f} s"
            time.sleep(POLL_S)
    finally:
        fit.end()
    sent = network.sent_bytes(1) - sent
    steps = fit.epochs * EPOCH_STEPS
    return f"{describe(fit)}; {time.monotonic() - began_s:.0f} s, {sent / steps / 1e6:.3f} MB sent per step by host1"


def describe(fit: HostedFit) -> str:
    """Return the end of a fit: the errors, or run folders, weights and images."""
    output = [line for host in range(2) for line in fit.log(host).splitlines()]
    messages = [
        line for line in output if ERROR in line or FINISHED in line or ("[rank 1, host1]" in line and WARNING in line)
    ]
    if not fit.is_finished():
        return f"ended with exit codes {fit.codes()}: {messages[0] if messages else 'no line'}"
    weights = read_weights(fit.folder)
    is_equal = len(weights) == 2 and are_equal(weights[0], weights[1])
    is_complete = is_each_image_once(fit.folder, fit.epochs, FRAMES)
    parts = [f"finished, {fit.starts} starts of the agents, runs {', '.join(fit.runs())}"]
    if fit.uses_systemd:
        parts[0] += f", {[restarts(fit.log(host)) for host in range(2)]} restarts by systemd"
    parts.append("equal weights" if is_equal else "DIFFERENT WEIGHTS")
    are_networks_equal = are_validated_networks_equal(fit.folder)
    parts.append("equal networks validated" if are_networks_equal else "OTHER NETWORKS VALIDATED")
    reference = fit.folder.parent / "none/weights-0.pt"
    if reference.is_file() and fit.machines == "2" and not fit.options:
        expected = torch.load(reference, weights_only=True)
        is_same = are_equal(weights[0], expected)
        parts.append("equal to the undisturbed fit" if is_same else "other weights than the undisturbed fit")
    if fit.machines == "2":
        parts.append("each image once per epoch" if is_complete else "IMAGES REPEATED OR MISSING")
    return "; ".join([*parts, *messages[:1]])


def plain(network: TwoNamespaces, folder: Path, data: Path) -> HostedFit:
    return HostedFit(network, folder, (data, data))


def elastic(network: TwoNamespaces, folder: Path, data: Path) -> HostedFit:
    return HostedFit(network, folder, (data, data), machines="1:2", epochs=LONG_EPOCHS)


def unshared(network: TwoNamespaces, folder: Path, data: Path) -> HostedFit:
    """The second host has an empty file system in place of the folder of the run."""
    mount = f"mount -t tmpfs none {folder}"
    return HostedFit(network, folder, (data, data), setups=("true", mount), most_starts=1)


def full_index(network: TwoNamespaces, folder: Path, data: Path) -> HostedFit:
    """The disk for the index of the second host is full."""
    index = folder.parent / "index-1"
    shutil.rmtree(index, ignore_errors=True)
    index.mkdir(parents=True)
    mount = f"mount -t tmpfs -o size=4k none {index}"
    return HostedFit(network, folder, (data, data), setups=("true", mount), most_starts=1)


def other_annotations(name: str) -> "Prepare":
    """The annotations of the second host have one box less."""

    def prepare(network: TwoNamespaces, folder: Path, data: Path) -> HostedFit:
        copy = copied(data, folder)
        annotations = json.loads((copy / name).read_text())
        annotations["annotations"].pop()
        (copy / name).write_text(json.dumps(annotations))
        return HostedFit(network, folder, (data, copy), most_starts=1)

    return prepare


def missing_frames(network: TwoNamespaces, folder: Path, data: Path) -> HostedFit:
    copy = copied(data, folder)
    images = json.loads((copy / "Train.json").read_text())["images"]
    (copy / images[0]["file_name"]).unlink()
    return HostedFit(network, folder, (data, copy), most_starts=1)


def skewed(seconds: float) -> Callable[[TwoNamespaces, Path, Path], HostedFit]:
    return lambda network, folder, data: HostedFit(network, folder, (data, data), clock_s=(0.0, seconds), most_starts=1)


def without_statistics(network: TwoNamespaces, folder: Path, data: Path) -> HostedFit:
    return HostedFit(network, folder, (data, data), options=("--model.recipe.statistics_batches", "0"))


def systemd(network: TwoNamespaces, folder: Path, data: Path) -> HostedFit:
    return HostedFit(network, folder, (data, data), uses_systemd=True, most_starts=1)


def finished(network: TwoNamespaces, folder: Path, data: Path) -> HostedFit:
    """The fit has been trained to its end by a launch with the same id."""
    fit = plain(network, folder, data)
    fit.start()
    while fit.serve():
        time.sleep(POLL_S)
    return HostedFit(network, folder, (data, data), most_starts=1)


def copied(data: Path, folder: Path) -> Path:
    copy = folder.with_name(f"{folder.name}-data")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(data, copy)
    return copy


def nothing(fit: HostedFit) -> None:
    pass


def kill_agent(host: int) -> Disturb:
    return lambda fit: fit.agents[host].kill()


def kill_rank(rank: int) -> Disturb:
    return lambda fit: fit.kill_rank(rank)


def lose_host(fit: HostedFit) -> None:
    """Kill the second agent and start it again after `LATE_S`; the first host trains alone meanwhile."""
    fit.absent.add(1)
    fit.agents[1].kill()
    fit.agents[1].wait()
    fit.serve_for(LATE_S)
    fit.absent.clear()


def cut_link(seconds: float) -> Disturb:
    def disturb(fit: HostedFit) -> None:
        fit.network.set_link("down")
        fit.serve_for(seconds)
        fit.network.set_link("up")

    return disturb


Prepare = Callable[[TwoNamespaces, Path, Path], HostedFit]
FAULTS: dict[str, tuple[str, Prepare, Disturb]] = {
    "none": ("none", plain, nothing),
    "rank 0": ("SIGKILL of rank 0", plain, kill_rank(0)),
    "rank 1": ("SIGKILL of rank 1", plain, kill_rank(1)),
    "agent 0": ("SIGKILL of the agent of host0, started again", plain, kill_agent(0)),
    "agent 1": ("SIGKILL of the agent of host1, started again", plain, kill_agent(1)),
    "lost host": (f"host1 is lost, and returns after {LATE_S:.0f} s (`--nnodes 1:2`)", elastic, lose_host),
    "short cut": (f"no link for {SHORT_LINK_DOWN_S:.0f} s", plain, cut_link(SHORT_LINK_DOWN_S)),
    "cut": (f"no link for {LINK_DOWN_S:.0f} s", plain, cut_link(LINK_DOWN_S)),
    "systemd": (f"no link for {LINK_DOWN_S:.0f} s, torchrun is a service of systemd", systemd, cut_link(LINK_DOWN_S)),
    "id": ("a finished run is started again with its id", finished, nothing),
    "statistics": ("`model.recipe.statistics_batches 0`", without_statistics, nothing),
    "annotations": ("annotations of host1 differ by one box", other_annotations("Train.json"), nothing),
    "validation": (
        "annotations of host1 for the validation differ by one box",
        other_annotations("Valid.json"),
        nothing,
    ),
    "unshared": ("the run folder is not shared", unshared, nothing),
    "full index": ("the disk for the index of host1 is full", full_index, nothing),
    "frames": ("a frame is missing on host1", missing_frames, nothing),
    "clock 10 s": ("clock of host1 10 s ahead", skewed(10.0), nothing),
    "clock 1 h": ("clock of host1 1 h ahead", skewed(3600.0), nothing),
}


if __name__ == "__main__":
    main()
