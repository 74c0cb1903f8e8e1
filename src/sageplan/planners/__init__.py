"""What proposes plans: Diffusion Veteran, and anything that is wrapped."""

from sageplan.planners.config import VeteranConfig
from sageplan.planners.presets import preset
from sageplan.planners.protocol import Planner, Scorer
from sageplan.planners.veteran import Veteran
from sageplan.planners.wrap import Wrapped

__all__ = ["Planner", "Scorer", "Veteran", "VeteranConfig", "Wrapped", "preset"]
