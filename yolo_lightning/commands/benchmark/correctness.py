"""Stage `correctness`: trainings whose self-check compares every convolution with PyTorch's plain operators."""

from dataclasses import replace

from torch import nn

from yolo_lightning.commands.benchmark.conv_variants import Variant, settings_of
from yolo_lightning.commands.benchmark.result_texts import first_line, table
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.commands.benchmark.training_step import Precision, TrainerSteps, make_module
from yolo_lightning.utils.announced_operations import announce

BATCH = 2
VARIANTS = (Variant.GEMM, Variant.GEMM_KERNELS, Variant.GEMM_AUTOTUNE)


def correctness(section: Section) -> None:
    """Train with each variant and precision until all convolutions were checked: output, gradients of input and weight.

    A variant fails if a layer is wrong twice, or if the GPU kernels of this package disable themselves.
    """
    precisions: tuple[Precision, ...] = ("32-true", "bf16-mixed")
    if section.device.type == "cuda":
        precisions = ("32-true", "bf16-mixed", "16-mixed")
    small_batch = replace(section, batch_size=BATCH)
    layers = sum(isinstance(layer, nn.Conv2d) for layer in make_module().graph.modules())
    rows = []
    failures = []
    for variant in section.variants(VARIANTS):
        for precision in precisions:
            if section.remaining_s() < 0:
                continue
            announce(f"self-checks of a training, {variant}, {precision}, {small_batch.images}")
            problem = ""
            try:
                with settings_of(variant):
                    TrainerSteps(small_batch, variant, precision, self_check_share=1.0).time(layers)
            except Exception as error:  # any error is a result
                problem = first_line(error)
                failures.append(f"{variant}, {precision}: {problem}")
            rows.append([variant, precision, problem or "correct"])
            section.save(trainings=rows)
    section.record.fail(failures)
    section.record.add(
        f"{layers} convolutions of YOLOv8n in a training, {small_batch.images}: output and gradients of input and"
        " weight are compared with PyTorch's plain operators, one layer in each step (the self-check of a training)."
    )
    section.record.add(*table(["variant", "precision", "result"], rows))
    section.record.answer = f"all convolutions are correct in {len(rows)} trainings"
