"""Two hosts on one machine: network namespaces with different host names, joined by a virtual cable. Needs root."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

HOSTS = ("host0", "host1")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
INTERFACE = "eth0"  # of each host
SETUP = 'hostname "$1"; eval "$2"; shift 2; exec "$@"'
"""Shell program: host name, further set-up of the host such as a mount, command."""


def reason_against() -> str:
    """Return why two hosts cannot be built on this machine; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found"
    try:
        with TwoNamespaces():
            return ""
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"


class TwoNamespaces:
    """Context with two network namespaces; names contain the process id, so that two programs do not collide."""

    def __init__(self) -> None:
        self._names = [f"{host}-{os.getpid()}" for host in HOSTS]

    def __enter__(self) -> Self:
        try:
            for name in self._names:
                _ip("netns", "add", name)
            first, second = self._names
            _ip("link", "add", INTERFACE, "netns", first, "type", "veth", "peer", "name", INTERFACE, "netns", second)
            for name, address in zip(self._names, ADDRESSES, strict=True):
                _ip("-n", name, "address", "add", f"{address}/24", "dev", INTERFACE)
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "link", "set", INTERFACE, "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._remove()

    def command(self, host: int, words: Sequence[str], setup: str = "true") -> list[str]:
        """Return a command line that runs `words` on a host, after the shell command `setup`, with separate mounts."""
        inside = ["unshare", "--mount", "--uts", "sh", "-c", SETUP, "sh", HOSTS[host], setup, *words]
        # Unlike `ip netns exec`, keeps `/sys` with the control groups, which systemd needs.
        return ["nsenter", f"--net=/run/netns/{self._names[host]}", *inside]

    def set_link(self, state: str) -> None:
        """Connect (`up`) or disconnect (`down`) the cable."""
        _ip("-n", self._names[0], "link", "set", INTERFACE, state)

    def sent_bytes(self, host: int) -> int:
        """Return the bytes that a host has sent."""
        path = Path("/sys/class/net") / INTERFACE / "statistics/tx_bytes"
        return int(_ip("netns", "exec", self._names[host], "cat", str(path)))

    def _remove(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout
