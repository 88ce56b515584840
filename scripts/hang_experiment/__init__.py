"""Parts of `scripts/hang_study.py`: an arm and its watch, each in its own process, and the result table."""
