"""The paper's own scores of DV and SAGE, on D4RL's official data: mean and standard error, 500 episodes."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    dv: float
    dv_se: float
    sage: float
    sage_se: float


PUBLISHED: dict[str, Published] = {
    "halfcheetah-medium-expert-v2": Published(92.7, 0.3, 95.4, 0.1),
    "hopper-medium-expert-v2": Published(108.8, 0.5, 111.3, 0.5),
    "walker2d-medium-expert-v2": Published(108.6, 0.0, 109.4, 0.1),
    "halfcheetah-medium-v2": Published(50.4, 0.0, 51.6, 0.0),
    "hopper-medium-v2": Published(80.9, 1.2, 83.9, 1.2),
    "walker2d-medium-v2": Published(82.8, 0.1, 84.8, 0.1),
    "halfcheetah-medium-replay-v2": Published(45.8, 0.1, 46.5, 0.2),
    "hopper-medium-replay-v2": Published(91.6, 0.0, 91.8, 0.0),
    "walker2d-medium-replay-v2": Published(84.1, 0.5, 85.3, 0.3),
    "kitchen-mixed-v0": Published(73.6, 0.1, 74.5, 0.3),
    "kitchen-partial-v0": Published(90.0, 0.4, 96.6, 0.2),
    "antmaze-large-diverse-v2": Published(76.0, 1.8, 77.0, 1.7),
    "antmaze-large-play-v2": Published(76.4, 2.0, 82.1, 1.9),
    "antmaze-medium-diverse-v2": Published(85.1, 1.3, 88.0, 1.7),
    "antmaze-medium-play-v2": Published(89.0, 1.6, 91.0, 2.0),
    "maze2d-large-v1": Published(197.4, 1.6, 200.6, 1.4),
    "maze2d-medium-v1": Published(150.7, 1.1, 150.8, 1.0),
    "maze2d-umaze-v1": Published(136.8, 1.3, 137.9, 1.0),
}
