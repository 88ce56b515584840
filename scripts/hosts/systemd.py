"""torchrun as a service of systemd, by the unit in docs/scaling.md, in a process namespace of its own."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/scaling.md"
UNIT = "torchrun.service"
MANAGER = """
mount -t tmpfs none /run/systemd && mkdir /run/systemd/system
export XDG_RUNTIME_DIR="$1" XDG_CONFIG_HOME="$1"
systemd=$(command -v systemd || echo /usr/lib/systemd/systemd)
"$systemd" --user --log-target=null &
until systemctl --user start torchrun.service 2>/dev/null; do sleep 0.2; done
while systemctl --user is-active torchrun.service | grep -q ^activ; do
  restarts=$(systemctl --user show --property NRestarts torchrun.service)  # 0 after the end
  sleep 0.2
done
echo "$restarts"
systemctl --user show --property Result torchrun.service | grep -qx Result=success
"""
"""Shell program: starts a manager of user services, and the service; ends with the service, with 0 after a success."""


def with_systemd(words: Sequence[str], variables: Mapping[str, str], folder: Path, log: Path) -> list[str]:
    """Return the command line that runs `words` as the service, which appends its output to the file `log`."""
    home = log.with_suffix(".systemd")
    unit = home / "systemd/user" / UNIT
    unit.parent.mkdir(parents=True)
    home.chmod(0o700)
    unit.write_text(unit_of_page(words, variables, folder, log))
    return ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", MANAGER, "sh", str(home)]


def unit_of_page(words: Sequence[str], variables: Mapping[str, str], folder: Path, log: Path) -> str:
    """Return the unit of the page with another command line, environment and folder; the output goes to `log`."""
    match = re.search(r"```ini\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert match is not None
    environment = " ".join(shlex.quote(f"{name}={value}") for name, value in variables.items())
    lines = {
        "ExecStart": " ".join(f'"{word}"' for word in words),
        "WorkingDirectory": str(folder),
        "Environment": f"{environment}\nStandardOutput=append:{log}\nStandardError=inherit",
    }
    unit = match[1].replace("\\\n", "")
    for name, value in lines.items():
        unit, count = re.subn(rf"^{name}=.*$", lambda _, line=f"{name}={value}": line, unit, flags=re.MULTILINE)
        assert count == 1, name
    return unit


def restarts(log: str) -> int:
    """Return how often systemd has started the service again."""
    return int(re.findall(r"^NRestarts=(\d+)$", log, re.MULTILINE)[-1])
