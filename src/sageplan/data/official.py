"""What is known of D4RL's official files without having them: how long they are, and where to get them."""

from __future__ import annotations

from dataclasses import dataclass

from sageplan.tasks.catalogue import ADDRESS, Task

# {source} is the path on D4RL's server, {file} the bare name; an address with neither is a folder of such files.
ADDRESSES = (
    ADDRESS + "{source}",
    ADDRESS.replace("http:", "https:") + "{source}",
    # A copy that others keep. Minari is not here: its data sets of the same names are other data.
    "https://huggingface.co/datasets/imone/D4RL/resolve/main/{file}",
)


@dataclass(frozen=True)
class Facts:
    """Counts of an official file; None where they are not known.

    episodes  as cut by terminals and timeouts; catalogues differ by one about an unfinished last one
    flagged   rows that are terminal or a timeout

    Sources: the TensorFlow Datasets catalogue for locomotion; for kitchen a published inspection of files with the
    SHA-256 that the tasks' catalogue states; for antmaze and maze2d what others have published of the files.
    """

    rows: int | None = None
    episodes: int | None = None
    flagged: int | None = None


FACTS: dict[str, Facts] = {
    "halfcheetah-medium-expert-v2": Facts(2_000_000, 2000),
    "halfcheetah-medium-v2": Facts(1_000_000, 1000),
    "halfcheetah-medium-replay-v2": Facts(202_000, 202),
    "hopper-medium-expert-v2": Facts(1_999_906, 3214),
    "hopper-medium-v2": Facts(1_000_000, 2187),
    "hopper-medium-replay-v2": Facts(402_000, 2041),
    "walker2d-medium-expert-v2": Facts(None, 2191),
    "walker2d-medium-v2": Facts(1_000_000, 1191),
    "walker2d-medium-replay-v2": Facts(302_000, 1093),
    "kitchen-mixed-v0": Facts(136_950, 613),
    "kitchen-partial-v0": Facts(136_950, 613),
    "antmaze-large-diverse-v2": Facts(1_000_000, flagged=7_189),
    "antmaze-large-play-v2": Facts(1_000_000, flagged=13_517),
    "antmaze-medium-diverse-v2": Facts(1_000_000, flagged=2_959),
    "antmaze-medium-play-v2": Facts(1_000_000, flagged=10_768),
    "maze2d-large-v1": Facts(4_000_000),
    "maze2d-medium-v1": Facts(2_000_000),
    "maze2d-umaze-v1": Facts(1_000_000),
}


def address(pattern: str, task: Task) -> str:
    """Where `pattern`, one of ADDRESSES or the like, has a task's file."""
    if "{source}" in pattern or "{file}" in pattern:
        return pattern.replace("{source}", task.source).replace("{file}", task.file_name)
    return f"{pattern.rstrip('/')}/{task.file_name}"
