"""`python -m yolo_lightning`; also what the console script calls."""

import sys


def main() -> None:
    """Run the command line.

    Imported late: a spawned loader worker imports this file again and needs neither Lightning nor Ultralytics.
    """
    from yolo_lightning.tools import WITHOUT_TORCH

    if len(sys.argv) > 1 and sys.argv[1] in WITHOUT_TORCH:  # also where torch does not load
        from yolo_lightning.tools.command_line import main as run_tool

        run_tool()
        return
    from yolo_lightning.progress import open_from_environment

    open_from_environment()  # a supervisor watches from here on: the next import takes seconds and may hang
    from yolo_lightning.cli import main as run

    run()


if __name__ == "__main__":
    main()
