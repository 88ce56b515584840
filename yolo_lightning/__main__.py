"""`python -m yolo_lightning`; also what the console script calls."""

import atexit
import gc
import signal
import sys

from yolo_lightning.utils.stop_signals import STOPPABLE, Stopped, request, say


def main() -> None:
    """Run the command line.

    Imported late: a spawned loader worker imports this file again and needs neither Lightning nor Ultralytics.
    """
    from yolo_lightning import __version__
    from yolo_lightning.commands import WITHOUT_TORCH

    if sys.argv[1:] == ["--version"]:
        print(f"yolo_lightning {__version__}")
        return
    from yolo_lightning.commands.quick_answers import FULL_HELP, answer

    answer(sys.argv[1:])
    sys.argv = [sys.argv[0], *("--help" if word == FULL_HELP else word for word in sys.argv[1:])]
    if len(sys.argv) > 1 and sys.argv[1] in WITHOUT_TORCH:  # also where torch does not load
        from yolo_lightning.commands.command_line import main as run_tool

        run_tool()
        return
    if len(sys.argv) > 1 and sys.argv[1] in STOPPABLE:
        request.install()
    try:
        run_with_torch()
    except Stopped as stopped:
        nothing = " before a step was trained: nothing to save" if sys.argv[1] == "fit" else ""
        say(f"stopped by {signal.Signals(stopped.number).name}{nothing}")
        raise


def run_with_torch() -> None:
    """Import the command line, which takes seconds, and run it.

    The import makes 800,000 objects, which stay. Without garbage collection it takes a fifth less processor time, and
    later collections, of which the first ones would take 0.3 s each, leave frozen objects out.
    """
    from yolo_lightning.commands.command_line import user_errors
    from yolo_lightning.commands.early_workers import start_early
    from yolo_lightning.commands.start_supervisor import supervise_early
    from yolo_lightning.supervision.heartbeat import open_from_environment

    with user_errors():
        supervise_early(sys.argv[1:])
    open_from_environment()  # a supervisor watches from here on: the next import takes seconds and may hang
    start_early(sys.argv[1:])
    gc.disable()
    try:
        from yolo_lightning.cli import main as run
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # frozen objects would not be freed at the end, which nanobind reports as leaks
        gc.enable()
    run()


if __name__ == "__main__":
    main()
