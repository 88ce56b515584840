"""The benchmark of the convolutions, the same as `python -m yolo_lightning benchmark`.

python scripts/benchmark_conv2d.py --device cuda --json benchmark.json --chart benchmark.png
"""

from jsonargparse import auto_cli

from yolo_lightning.commands.benchmark.command import benchmark

if __name__ == "__main__":
    auto_cli(benchmark)
