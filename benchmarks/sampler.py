"""Windows per second: our sampler against a DataLoader over a data set of single windows."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from common import interleaved, record
from sageplan import Trajectories
from sageplan.data.windows import Windows

ROWS, STATE, ACTION, LENGTH, BATCH, BATCHES = 1_000_000, 17, 6, 21, 512, 20


class PerItem(Dataset):
    """What one would write first: an index of valid starts, and a slice per item."""

    def __init__(self, data: Trajectories) -> None:
        self.states, self.actions = torch.from_numpy(data.states), torch.from_numpy(data.actions)
        self.starts = np.concatenate(
            [np.arange(a, b - LENGTH + 1) for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)]
        )

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, item: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = self.starts[item]
        return self.states[start : start + LENGTH], self.actions[start : start + LENGTH - 1]


def main() -> None:
    rng = np.random.default_rng(0)
    ends = np.zeros(ROWS, bool)
    ends[999::1000] = True
    data = Trajectories.from_arrays(
        rng.standard_normal((ROWS, STATE), np.float32), rng.standard_normal((ROWS, ACTION), np.float32), ends=ends
    )
    windows, generator = Windows(data, LENGTH), torch.Generator().manual_seed(0)
    items = PerItem(data)

    def ours() -> None:
        for _ in range(BATCHES):
            windows.sample(BATCH, generator)

    def loader(workers: int) -> None:
        sampler = RandomSampler(items, replacement=True, num_samples=BATCH * BATCHES)
        for _ in DataLoader(items, BATCH, sampler=sampler, num_workers=workers):
            pass

    seconds = interleaved(
        {"sampler": ours, "DataLoader": lambda: loader(0), "DataLoader, 2 workers": lambda: loader(2)}, rounds=5
    )
    rate = {name: round(BATCH * BATCHES / value) for name, value in seconds.items()}
    best = max(rate["DataLoader"], rate["DataLoader, 2 workers"])
    record("sampler", {"windows per second": rate, "ratio to the better DataLoader": round(rate["sampler"] / best, 1)})


if __name__ == "__main__":
    main()
