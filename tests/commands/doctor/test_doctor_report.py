"""The table of findings and the recommended settings."""

import io
from dataclasses import replace

import pytest
import yaml
from rich.console import Console

from tests.commands.doctor.machines import NAVI, PLAIN, ROCM, results
from yolo_lightning.commands.doctor.command import Option, recommended_commands, recommended_options, show, yaml_text
from yolo_lightning.commands.doctor.inspect_machine import MachineFacts
from yolo_lightning.commands.doctor.machine_findings import Finding, Severity, machine_findings
from yolo_lightning.commands.doctor.probes import Outcome, probe_findings

AMD = replace(PLAIN, gpus=(NAVI,), torch=ROCM, kfd_opens=True, environment={"HSA_OVERRIDE_GFX_VERSION": "10.3.0"})


def printed(machine: MachineFacts, columns: int) -> str:
    tried = results(convolution=Outcome.HANGS)
    console = Console(file=io.StringIO(), width=columns, force_terminal=False)
    found = [*machine_findings(machine), *probe_findings(tried)]
    show(console, machine, found, recommended_options(machine, tried), recommended_commands(machine, tried))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("columns", [80, 120])
def test_report_fits_the_terminal(columns: int) -> None:
    text = printed(AMD, columns)
    assert max(map(len, text.splitlines())) <= columns
    for word in (
        "[Radeon RX 5600 XT]",
        "vendor convolution",
        "hangs",
        'backend: "gemm"',
        "unset HSA_OVERRIDE_GFX_VERSION",
    ):
        assert word in text


def test_options_are_yaml_with_reasons_as_comments() -> None:
    options = (
        Option("trainer.precision", "32-true", "safe"),
        Option("data.loader.num_workers", 0, "hangs"),
        Option("data.loader.multiprocessing_context", "forkserver", "a line without room before the comment"),
        Option("data.loader.pin_memory", None, "as the device wants"),
        Option("data.batch_size", 4, "small"),
    )
    text = yaml_text(options)
    assert yaml.safe_load(text) == {
        "trainer": {"precision": "32-true"},
        "data": {
            "loader": {"num_workers": 0, "multiprocessing_context": "forkserver", "pin_memory": None},
            "batch_size": 4,
        },
    }
    assert all(f"# {option.reason}" in text for option in options)


def test_brackets_are_printed_literally() -> None:
    text = shown([Finding("[bold]check", "[red]found[/red]", Severity.OK, "[dim]do")])
    assert all(word in text for word in ("[bold]check", "[red]found[/red]", "[dim]do"))


def test_summary_lists_the_highest_severity_first() -> None:
    verdicts = [Severity.OK, Severity.BAD, Severity.OK, Severity.NOTE]
    assert "bad: 1, note: 1, ok: 2" in shown([Finding("a", "b", verdict) for verdict in verdicts])


def shown(found: list[Finding]) -> str:
    console = Console(file=io.StringIO(), width=80)
    show(console, PLAIN, found, (), ())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
