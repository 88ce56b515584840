"""The children of the doctor: `python -m yolo_lightning.commands.doctor probe|arm ...`; not meant to be typed."""

import sys

from yolo_lightning.commands.doctor.probes import Probe


def main(words: list[str]) -> None:
    """Run a child's work."""
    kind, *rest = words
    if kind == "probe":
        from yolo_lightning.commands.doctor.probe_work import main as run_probe

        name, device, timeout_s = rest
        run_probe(Probe(name), device, float(timeout_s))
        return
    assert kind == "arm", kind
    from yolo_lightning.commands.doctor.study_arm import main as run_arm

    run_arm(*rest)


if __name__ == "__main__":
    main(sys.argv[1:])
