"""The latent consistency energy (Eq. energy): how badly each step of a plan follows from the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

Context = Literal["plan", "step"]
Predict = Callable[[Tensor, Tensor], Tensor]


def step_energy(
    predict: Predict,
    latents: Tensor,
    actions: Tensor,
    *,
    window: int,
    reduction: str = "mean",
    context: Context = "plan",
) -> Tensor:
    """‖f(z_k, a_k) − z_{k+1}‖₁ of every step: latents [N, T+1, d] and actions [N, T, A] to [N, T].

    f is run on the plan's own latents, never on its own predictions. With context="plan" step k is predicted
    from steps 0..k; with "step" from step k alone. Plans longer than the window f was trained with are scored
    in windows that overlap by half, so that every later step still has at least half a window of context.
    """
    if context == "step":
        target = latents[:, 1:]
        predicted = predict(latents[:, :-1].flatten(0, 1).unsqueeze(1), actions.flatten(0, 1).unsqueeze(1))
        return distance(predicted.view(target.shape), target, reduction)
    parts = []
    for begin, fresh, end in spans(actions.shape[1], window):
        predicted = predict(latents[:, begin:end], actions[:, begin:end])[:, fresh - begin :]
        parts.append(distance(predicted, latents[:, fresh + 1 : end + 1], reduction))
    return torch.cat(parts, dim=1)


def distance(predicted: Tensor, target: Tensor, reduction: str) -> Tensor:
    """[..., d] and [..., d] to [...]: ‖predicted − target‖₁, summed or averaged over latent dimensions."""
    error = (predicted - target).abs()
    return error.mean(-1) if reduction == "mean" else error.sum(-1)


def spans(length: int, window: int) -> Iterator[tuple[int, int, int]]:
    """(begin, fresh, end) of windows that cover 0..length: steps fresh..end are scored, begin..fresh are context."""
    hop = max(1, window // 2)
    begin = fresh = 0
    while fresh < length:
        end = min(begin + window, length)
        yield begin, fresh, end
        begin, fresh = begin + hop, end
