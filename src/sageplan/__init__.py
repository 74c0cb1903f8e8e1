"""A feasibility gate for planners that generate many plans and pick one."""

from sageplan._version import __version__
from sageplan.errors import (
    ConfigError,
    DataError,
    FormatError,
    MissingExtraError,
    SageplanError,
    TrainingError,
)
from sageplan.gate.calibrate import Calibration, Pools
from sageplan.gate.config import GateConfig, InverseDynamics, Stage1, Stage2
from sageplan.gate.gate import Gate
from sageplan.gate.presets import PRESETS
from sageplan.gate.select import select
from sageplan.training.config import Optimiser
from sageplan.types import Choice, Trajectories

__all__ = [
    "PRESETS",
    "Calibration",
    "Choice",
    "ConfigError",
    "DataError",
    "FormatError",
    "Gate",
    "GateConfig",
    "InverseDynamics",
    "MissingExtraError",
    "Optimiser",
    "Pools",
    "SageplanError",
    "Stage1",
    "Stage2",
    "TrainingError",
    "Trajectories",
    "__version__",
    "select",
]
