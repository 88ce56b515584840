"""What the child of a probe does. May hang or crash; prints one line of JSON if it does neither."""

import copy
import faulthandler
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from yolo_lightning.commands.doctor.probes import PHASE, Outcome, Probe

SPARE_S = 10.0
"""A probe of a probe leaves itself this much time to report."""
MATRICES = (4, 64, 576, 6400)
"""Batch, rows, inner size and columns: a 3x3 convolution of YOLOv8n at 640 pixels as a product."""
TOLERANCE = {Probe.MATMUL_FLOAT32: 1e-3, Probe.MATMUL_FLOAT16: 1e-2, Probe.MATMUL_BFLOAT16: 5e-2}
"""Largest error as a share of the largest value; TF32 is within the first, kernels for another card far outside."""
LAYER_TOLERANCE = 0.01
LOADER_WORKERS, LOADER_BATCHES, LOADER_BATCH = 2, 4, 8


@dataclass(frozen=True, slots=True)
class Answer:
    """What the child prints.

    Attributes:
        outcome: How it went.
        detail: The evidence, in a few words.
        facts: What else was found.
    """

    outcome: Outcome
    detail: str
    facts: dict[str, Any] = field(default_factory=dict)


def main(probe: Probe, device: str, timeout_s: float) -> None:
    """Do the work of a probe in this process, and print an `Answer` as one line of JSON."""
    # Should the parent be gone, nobody else ends a hang. The watchdog is a thread that needs no interpreter.
    faulthandler.dump_traceback_later(timeout_s + SPARE_S, exit=True)
    try:
        answer = WORK[probe](probe, device, timeout_s)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        answer = Answer(Outcome.FAILS, f"{type(error).__name__}: {first}"[:300])
    print(json.dumps({"outcome": answer.outcome, "detail": answer.detail, "facts": answer.facts}), flush=True)
    faulthandler.cancel_dump_traceback_later()


def say(what: str) -> None:
    """Tell the parent what is done next."""
    print(f"{PHASE}{what}", file=sys.stderr, flush=True)


def packages(probe: Probe, device: str, timeout_s: float) -> Answer:
    """Import what a training needs, and use the parts that are compiled: they break when builds do not fit."""
    say("import numpy")
    import numpy

    say("import torch")
    import torch

    say("torchvision's NMS")
    from torchvision.ops import nms

    kept = nms(torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 2.1]]), torch.tensor([0.5, 0.9]), 0.5)
    say("OpenCV's JPEG codec")
    import cv2

    frame = numpy.full((32, 32), 128, numpy.uint8)
    decoded = cv2.imdecode(cv2.imencode(".jpg", frame)[1], cv2.IMREAD_GRAYSCALE)
    if kept.tolist() != [1] or decoded is None or abs(int(decoded.mean()) - 128) > 2:
        return Answer(Outcome.WRONG, f"NMS kept {kept.tolist()} instead of [1], or JPEG came back changed")
    return Answer(Outcome.WORKS, f"torch, torchvision, OpenCV {cv2.__version__}")


def device_seen(probe: Probe, device: str, timeout_s: float) -> Answer:
    """What torch sees, and one small computation on it."""
    say("import torch")
    import torch

    say("ask for the device")
    sees = torch.cuda.is_available()
    name = device if device != "auto" else "cuda" if sees else "cpu"
    facts: dict[str, Any] = {"device": name, "name": "", "architectures": [], "capability": None}
    say(f"compute on {name}")
    total = torch.arange(1000.0, device=name).sum().item()
    if name.startswith("cuda"):
        properties = torch.cuda.get_device_properties(name)
        facts["name"] = (
            f"{properties.name} {getattr(properties, 'gcnArchName', '') if torch.version.hip else ''}".strip()
        )
        facts["architectures"] = torch.cuda.get_arch_list()
        facts["capability"] = None if torch.version.hip else [properties.major, properties.minor]
    if total != 499_500.0:
        return Answer(Outcome.WRONG, f"the sum of 0 to 999 is {total} on {name}", facts)
    return Answer(Outcome.WORKS, f"{name} {facts['name']}".strip(), facts)


def matmul(probe: Probe, device: str, timeout_s: float) -> Answer:
    """A batch of products of the size of a convolution, against float64 on the CPU."""
    import torch

    dtype = getattr(torch, probe.removeprefix("matmul_"))
    batch, rows, inner, columns = MATRICES
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(rows, inner, generator=generator).to(dtype)
    right = torch.randn(batch, inner, columns, generator=generator).to(dtype)
    say(f"{dtype} product on {device}")
    found = torch.matmul(left.to(device), right.to(device)).double().cpu()
    expected = torch.matmul(left.double(), right.double())
    return compare({"product": (found, expected)}, TOLERANCE[probe])


def layer(probe: Probe, device: str, timeout_s: float) -> Answer:
    """Normalisation alone, or our convolution with it: forward and backward, against float64 on the CPU."""
    import torch
    from torch import nn

    from yolo_lightning.conv import swap_convs

    torch.manual_seed(0)
    answer = Answer(Outcome.WORKS, "")
    for channels, outputs, kernel, stride, size in ((32, 32, 3, 1, 80), (64, 128, 3, 2, 40), (128, 64, 1, 1, 40)):
        normalisation = nn.BatchNorm2d(outputs)
        reference: nn.Module = normalisation
        input = torch.randn(4, outputs if probe is Probe.BATCH_NORM else channels, size, size)
        if probe is Probe.OWN_CONVOLUTION:
            convolution = nn.Conv2d(channels, outputs, kernel, stride, kernel // 2, bias=False)
            reference = nn.Sequential(convolution, normalisation)
        tried = copy.deepcopy(reference).to(device)
        if probe is Probe.OWN_CONVOLUTION:
            swap_convs(tried)
        say(f"{tuple(input.shape)} to {outputs} channels, {kernel}x{kernel}, stride {stride} on {device}")
        found = gradients(tried, input.to(device))
        expected = gradients(copy.deepcopy(reference).double(), input.double())
        answer = compare({name: (found[name].double().cpu(), expected[name]) for name in expected}, LAYER_TOLERANCE)
        if answer.outcome is not Outcome.WORKS:
            return answer
    return answer


def gradients(module: Any, input: Any) -> dict[str, Any]:
    """Output, gradients of input and parameters, by name."""
    import torch

    leaf = input.clone().requires_grad_()
    output = module(leaf)
    names = ["gradient of the input", *(f"gradient of {name}" for name, _ in module.named_parameters())]
    # Not the plain sum: normalisation makes its gradients vanish.
    weight = torch.linspace(-1, 1, output.numel()).reshape(output.shape).to(output)
    found = torch.autograd.grad((output.square() * weight).sum(), [leaf, *module.parameters()])
    return {"output": output.detach(), **dict(zip(names, found, strict=True))}


def compare(pairs: dict[str, tuple[Any, Any]], tolerance: float) -> Answer:
    """Whether all are as expected, within a share of the largest value."""
    errors = {name: ((found - right).abs().max() / right.abs().max()).item() for name, (found, right) in pairs.items()}
    for name, error in errors.items():
        if not error <= tolerance:  # written this way round, a NaN counts
            return Answer(Outcome.WRONG, f"{name} is off by {error:.2g} of its largest value")
    return Answer(Outcome.WORKS, f"error {max(errors.values()):.1g} of the largest value")


def convolution(probe: Probe, device: str, timeout_s: float) -> Answer:
    """What `model.conv: auto` finds: forward and backward pass, right, and not slower than ours."""
    import torch

    from yolo_lightning.conv.probe import probe_native

    say(f"PyTorch's own convolutions on {device}")
    result = probe_native(torch.device(device), max(timeout_s - SPARE_S, timeout_s / 2))
    outcomes = {"crashed": Outcome.CRASHES, "hung": Outcome.HANGS, "wrong": Outcome.WRONG, "slower": Outcome.SLOWER}
    return Answer(outcomes.get(result.outcome, Outcome.WORKS), result.detail)


class Frames:
    """Gray frames whose every pixel is their index: what a worker hands over can be checked."""

    def __len__(self) -> int:
        return LOADER_BATCHES * LOADER_BATCH

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.full((1, 640, 640), index, dtype=torch.uint8)


def loader(probe: Probe, device: str, timeout_s: float) -> Answer:
    """Workers as a training has them, twice, so that they are ended and started again."""
    import torch
    from torch.utils.data import DataLoader

    from yolo_lightning.data.loader import LoaderSettings

    settings = LoaderSettings(workers=LOADER_WORKERS, persistent_workers=False)
    arguments = settings.arguments(on_gpu=not device.startswith("cpu"), persistent=False)
    frames: Any = Frames()
    batches: Any = DataLoader(frames, batch_size=LOADER_BATCH, **arguments)
    sums = []
    for epoch in range(2):
        say(f"epoch {epoch}, workers by spawn")
        sums.append(sum(float(batch.to(device).float().mean()) for batch in batches))
    expected = LOADER_BATCHES * (LOADER_BATCHES * LOADER_BATCH - 1) / 2
    if not torch.allclose(torch.tensor(sums), torch.tensor(expected)):
        return Answer(Outcome.WRONG, f"frames came back changed: {sums} instead of {expected}")
    return Answer(Outcome.WORKS, f"{2 * LOADER_BATCHES} batches, pinned" if arguments["pin_memory"] else "8 batches")


WORK: dict[Probe, Callable[[Probe, str, float], Answer]] = {
    Probe.PACKAGES: packages,
    Probe.DEVICE: device_seen,
    Probe.LOADER: loader,
    Probe.MATMUL_FLOAT32: matmul,
    Probe.MATMUL_FLOAT16: matmul,
    Probe.MATMUL_BFLOAT16: matmul,
    Probe.OWN_CONVOLUTION: layer,
    Probe.BATCH_NORM: layer,
    Probe.CONVOLUTION: convolution,
}
