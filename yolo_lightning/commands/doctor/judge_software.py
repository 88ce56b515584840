"""What there is to say about Python and installed packages. Pure."""

from collections.abc import Iterator

from yolo_lightning.commands.doctor.finding import Finding, Severity
from yolo_lightning.commands.doctor.machine import MachineFacts
from yolo_lightning.commands.doctor.software import OPENCV

OLDEST_PYTHON = (3, 11)
SHOWN_CHARACTERS = 60
MALICIOUS_LIGHTNING = frozenset({"2.6.2", "2.6.3"})
"""Releases of 2026-04-30 that stole credentials when they were imported; advisory GHSA-w37p-236h-pfx3."""


def software_findings(machine: MachineFacts) -> Iterator[Finding]:
    """Python, lightning, torchvision, OpenCV, py-spy, environment variables."""
    yield _python(machine)
    yield _lightning(machine)
    yield _torchvision(machine)
    yield _opencv(machine)
    yield _py_spy(machine)
    if machine.environment:
        yield _environment(machine)


def _python(machine: MachineFacts) -> Finding:
    found = ".".join(map(str, machine.python))
    if machine.python[:2] < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return Finding("Python", f"{found}, too old", Severity.BAD, f"{oldest} or newer is needed")
    return Finding("Python", f"{found}, starts processes by {machine.start_method} unless told otherwise", Severity.OK)


def _lightning(machine: MachineFacts) -> Finding:
    names = ("lightning", "pytorch-lightning")
    versions = {name: machine.packages[name] for name in names if name in machine.packages}
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    if MALICIOUS_LIGHTNING & set(versions.values()):
        return Finding(
            "lightning",
            f"{found}: a malicious release, it steals credentials when imported (GHSA-w37p-236h-pfx3)",
            Severity.BAD,
            "do not start Python with it: uninstall it, and change every password and token that was on this machine",
        )
    if "lightning" not in versions:
        return Finding("lightning", found or "not installed", Severity.BAD, "pip install 'lightning>=2.6.4'")
    if len(set(versions.values())) > 1:
        return Finding("lightning", f"{found}: two versions of the same code", Severity.WARNING, "install equal ones")
    return Finding("lightning", found, Severity.OK)


def _torchvision(machine: MachineFacts) -> Finding:
    version = machine.packages.get("torchvision")
    if version is None:
        return Finding("torchvision", "not installed", Severity.BAD, "install the build that belongs to torch")
    local = version.partition("+")[2]
    torch_local = "" if machine.torch is None else machine.torch.version.partition("+")[2]
    if local and torch_local and local != torch_local:
        return Finding(
            "torchvision",
            f"{version} does not belong to torch {'' if machine.torch is None else machine.torch.version}",
            Severity.BAD,
            "install both together, from the same place",
        )
    return Finding("torchvision", version, Severity.OK)


def _opencv(machine: MachineFacts) -> Finding:
    versions = {name: machine.packages[name] for name in OPENCV if name in machine.packages}
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    if not versions:
        return Finding("OpenCV", "no package of it is installed", Severity.NOTE, "a system package will do")
    if len(versions) == 1:
        return Finding("OpenCV", found, Severity.OK)
    if len(set(versions.values())) == 1:
        return Finding(
            "OpenCV",
            f"{found}: both write the same folder",
            Severity.NOTE,
            "harmless as long as neither is removed; after removing one, install the other again",
        )
    return Finding(
        "OpenCV",
        f"{found}: both write the same folder, which holds whichever came last",
        Severity.WARNING,
        f"pip uninstall {' '.join(versions)}, then install one of them",
    )


def _py_spy(machine: MachineFacts) -> Finding:
    version, scope = machine.packages.get("py-spy"), machine.kernel.ptrace_scope
    if version is None:
        advice = "pip install py-spy: without it a stuck worker cannot be told from an idle one"
        return Finding("py-spy", "not installed", Severity.WARNING, advice)
    found = f"{version}" + ("" if scope is None else f", ptrace_scope {scope}")
    if scope in (None, 0) or (scope in (1, 2) and machine.is_root):
        return Finding("py-spy", f"{found}: the supervisor may look into stuck processes", Severity.OK)
    if scope == 1:
        return Finding("py-spy", f"{found}: a process may look into its own descendants, as fit's do", Severity.OK)
    how = "no process may look into another until a reboot" if scope == 3 else "only root may look into processes"
    advice = "sudo sysctl kernel.yama.ptrace_scope=1, for stacks of stuck workers in incident reports"
    return Finding("py-spy", f"{found}: {how}", Severity.WARNING, advice if scope == 2 else "")


def _environment(machine: MachineFacts) -> Finding:
    found = ", ".join(f"{name}={value[:SHOWN_CHARACTERS]}" for name, value in machine.environment.items())
    hiding = [name for name, value in machine.environment.items() if name.endswith("_VISIBLE_DEVICES")]
    hiding = [name for name in hiding if machine.environment[name].strip() in ("", "-1")]
    if hiding:
        return Finding("environment", f"{found}: hides every GPU", Severity.WARNING, f"unset {' '.join(hiding)}")
    return Finding("environment", found, Severity.OK)
