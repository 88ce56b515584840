"""`python -m yolo_lightning`; also what the console script calls."""


def main() -> None:
    """Run the command line.

    Imported late: a spawned loader worker imports this file again and needs neither Lightning nor Ultralytics.
    """
    from yolo_lightning.progress import open_from_environment

    open_from_environment()  # a supervisor watches from here on: the next import takes seconds and may hang
    from yolo_lightning.cli import main as run

    run()


if __name__ == "__main__":
    main()
