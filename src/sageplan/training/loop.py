"""The training loop of every learner."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from sageplan.errors import TrainingError
from sageplan.training.checkpoint import Checkpoint, claim_folder, read_json, write_json
from sageplan.training.config import Optimiser
from sageplan.training.metrics import Logger, open_sinks
from sageplan.training.progress import Bars

LOG_EVERY = 100  # steps; also the grid on which checkpoints lie, so that a resumed log has no seam
CHECKPOINT_SECONDS = 30.0


class Average(NamedTuple):
    """A module kept as the moving average of another; momentum(progress in [0, 1]) is the weight of the past."""

    source: nn.Module
    target: nn.Module
    momentum: Callable[[float], float]


class Learner(Protocol):
    """An nn.Module that can be trained. Parameters that require gradients are."""

    name: str

    @property
    def average(self) -> Average | None: ...

    def sample(self, batch: int, generator: torch.Generator) -> Any:
        """A NamedTuple of tensors on the CPU; `generator` is the only source of chance."""

    def loss(self, batch: Any, step: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and its named terms, all scalars; `generator` lives on the training device."""

    def evaluate(self, generator: torch.Generator) -> dict[str, float]:
        """Held-out metrics; called with an identically seeded CPU generator each time."""

    def check(self, metrics: dict[str, float]) -> None:
        """Raise TrainingError when the held-out metrics say that going on is pointless."""


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def train(
    learner: Any,
    optimiser: Optimiser,
    folder: Path,
    *,
    device: torch.device,
    seed: int,
    identity: str,
    bars: Bars,
    loggers: Sequence[Logger] = (),
    evaluations: int = 10,
) -> dict[str, Any]:
    """Train to the last step, from wherever `folder` says an earlier run got to. Returns a summary.

    The learner ends with its final weights, on `device`. Interrupted at any moment and called again with the
    same arguments, the result is the same, bit for bit on a CPU with the same number of threads. `identity`
    stands for all else that the result depends on: a checkpoint of another identity is refused.
    """
    learner.to(device)
    parameters = [p for p in learner.parameters() if p.requires_grad]
    claim_folder(folder, needed_bytes=_checkpoint_bytes(learner, parameters))
    update = torch.optim.AdamW(
        parameters, lr=optimiser.rate, betas=optimiser.betas, weight_decay=optimiser.weight_decay, fused=True
    )
    generators = {
        "data": torch.Generator().manual_seed(seed),
        "noise": torch.Generator(device).manual_seed(seed + 1),
    }
    checkpoint, summary = Checkpoint(folder / "checkpoint.safetensors", identity), folder / "summary.json"
    first = checkpoint.restore(learner, update, generators)
    if optimiser.compile:
        for child in learner.children():
            child.compile()
    sinks = open_sinks(loggers, folder, learner.name, first)
    job = bars.job(learner.name, optimiser.steps, first)
    evaluate_every = max(LOG_EVERY, optimiser.steps // evaluations // LOG_EVERY * LOG_EVERY)

    sums: dict[str, list[Tensor]] = {}
    metrics: dict[str, float] = {}
    earlier, last_save = checkpoint.seconds, time.monotonic()
    began = last_save
    learner.train()
    try:
        for step in range(first, optimiser.steps):
            for group in update.param_groups:
                group["lr"] = optimiser.rate_at(step)
            batch = _to_device(learner.sample(optimiser.batch, generators["data"]), device)
            with autocast(device, optimiser.precision):
                loss, terms = learner.loss(batch, step, generators["noise"])
            update.zero_grad(set_to_none=True)
            loss.backward()
            if optimiser.clip is not None:
                terms["gradient_norm"] = nn.utils.clip_grad_norm_(parameters, optimiser.clip)
            update.step()
            if learner.average is not None:
                _move_average(learner.average, (step + 1) / optimiser.steps)
            for name, value in {"loss": loss, **terms}.items():
                sums.setdefault(name, []).append(value.detach())

            done = step + 1
            if done % LOG_EVERY and done != optimiser.steps:
                continue
            metrics = {name: float(torch.stack(values).mean()) for name, values in sums.items()}
            sums = {}
            _refuse_divergence(learner.name, done, metrics)
            if done % evaluate_every == 0 or done == optimiser.steps:
                metrics |= _evaluate(learner, seed)
                learner.check(metrics)
            for sink in sinks:
                sink.write(done, {**metrics, "rate": optimiser.rate_at(step)})
            job.update(done, f"loss {metrics['loss']:.4f}")
            if done == optimiser.steps:  # before the last checkpoint, which is what says that training has ended
                seconds = round(earlier + time.monotonic() - began, 1)
                write_json(summary, {"steps": done, "seconds": seconds, "first_step": first, **metrics})
            if time.monotonic() - last_save > CHECKPOINT_SECONDS or done == optimiser.steps:
                checkpoint.seconds = earlier + time.monotonic() - began
                checkpoint.save(done, learner, update, generators)
                last_save = time.monotonic()
    finally:
        for sink in sinks:
            sink.close()
    learner.eval()
    return read_json(summary, "the summary of a finished training")


def _evaluate(learner: Any, seed: int) -> dict[str, float]:
    learner.eval()
    metrics: dict[str, float] = learner.evaluate(torch.Generator().manual_seed(seed + 2))
    learner.train()
    return metrics


def _to_device(batch: Any, device: torch.device) -> Any:
    if device.type == "cpu":
        return batch
    return type(batch)(*(t.pin_memory().to(device, non_blocking=True) for t in batch))


@torch.no_grad()
def _move_average(average: Average, progress: float) -> None:
    weight = 1 - average.momentum(progress)
    for target, source in zip(average.target.parameters(), average.source.parameters(), strict=True):
        target.lerp_(source, weight)


def _refuse_divergence(name: str, step: int, metrics: dict[str, float]) -> None:
    broken = [key for key, value in metrics.items() if not math.isfinite(value)]
    if broken:
        raise TrainingError(
            f"{name} diverged by step {step}: {', '.join(broken)} not finite. "
            "Lower the learning rate or lengthen the warm-up; the last good checkpoint is kept"
        )


def _checkpoint_bytes(learner: nn.Module, parameters: list[nn.Parameter]) -> int:
    """The old and the new checkpoint side by side, with two moments per trained weight, and room for logs."""
    weights = sum(t.numel() * t.element_size() for t in learner.state_dict().values())
    moments = 2 * sum(p.numel() * p.element_size() for p in parameters)
    total: int = 2 * (weights + moments) + 16 * 2**20
    return total
