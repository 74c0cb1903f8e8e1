import pytest
from test_records import episode

from sageplan.errors import DataError
from sageplan.evaluation.pairs import paired_samples


def test_only_seeds_that_both_arms_have_finished_make_pairs():
    done = [
        episode(3, "sage", score=13.0),
        episode(1, "mcss", score=1.0),
        episode(3, "mcss", score=3.0),
        episode(2, "mcss", score=2.0),
        episode(1, "sage", score=11.0),
        episode(1, "random", score=7.0),
        episode(1, "mcss", score=5.0, task="other"),
    ]
    assert paired_samples(done, "sage", "mcss") == {"maze2d-umaze-v1": ([11.0, 13.0], [1.0, 3.0])}
    assert paired_samples(done, "mcss", "random") == {"maze2d-umaze-v1": ([1.0], [7.0])}
    assert paired_samples(done, "sage", "mcss", "length") == {"maze2d-umaze-v1": ([300.0, 300.0], [300.0, 300.0])}
    with pytest.raises(DataError, match="maze2d-umaze-v1 has no sticky_score"):
        paired_samples(done, "sage", "mcss", "sticky_score")
