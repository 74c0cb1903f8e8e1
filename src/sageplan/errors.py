"""Errors that say what was wrong, where, and what to do. The CLI prints them as one line."""


class SageplanError(Exception):
    """Base of every error that sageplan raises on purpose."""


class DataError(SageplanError, ValueError):
    """Trajectories or plans that cannot be used as given."""


class ConfigError(SageplanError, ValueError):
    """Settings that contradict each other, the data, or the run folder."""


class FormatError(SageplanError, ValueError):
    """A saved gate, checkpoint or data file that is corrupt, foreign, or newer than this version."""


class TrainingError(SageplanError, RuntimeError):
    """Training that cannot go on: collapse, divergence, a full disk."""


class EvaluationError(SageplanError, RuntimeError):
    """An evaluation that cannot go on: an environment that returns NaN, a planner that breaks down, a full disk."""


class MissingExtraError(SageplanError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}: pip install 'sageplan[{extra}]'")
