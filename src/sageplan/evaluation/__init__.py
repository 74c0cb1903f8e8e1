"""How well a planner does, with and without the gate: paired episodes, their records, and honest statistics."""

from sageplan.evaluation.config import RolloutConfig
from sageplan.evaluation.rollout import evaluate

__all__ = ["RolloutConfig", "evaluate"]
