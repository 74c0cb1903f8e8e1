import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import sageplan
from sageplan.errors import ConfigError
from sageplan.evaluation.selectors import KINDS, GivenPool, LowestEnergy, Mcss, Oracle, Random, Sage, arms, parse

ODD = st.sampled_from([np.nan, np.inf, -np.inf])


def pool(values, energies, **more):
    return GivenPool(torch.tensor(values), torch.tensor(energies), **more)


@given(
    values=arrays(np.float32, (3, 6), elements=st.one_of(st.floats(-5, 5, width=32), ODD)),
    energies=arrays(np.float32, (3, 6, 4), elements=st.one_of(st.floats(0, 2, width=32), st.just(np.inf))),
    prefix=st.integers(0, 5),
    keep=st.floats(0.05, 1),
    penalty=st.sampled_from([0.0, 0.1, 3.0]),
    units=st.sampled_from(["raw", "pool"]),
)
def test_sage_is_the_papers_rule_and_tells_what_changed_the_winner(values, energies, prefix, keep, penalty, units):
    decision = Sage(prefix, keep, penalty, units).pick(pool(values, energies))
    mean = torch.tensor(energies)[..., :prefix].mean(-1) if prefix else torch.zeros(3, 6)
    keep = keep if prefix else 1.0
    rule = {"penalty_units": units}
    full = sageplan.select(torch.tensor(values), mean, keep=keep, penalty=penalty, **rule).index
    filtered = sageplan.select(torch.tensor(values), mean, keep=keep, penalty=0.0, **rule).index
    best = torch.where(torch.tensor(values).isnan(), -torch.inf, torch.tensor(values)).argmax(-1)
    assert torch.equal(decision.winner, full)
    assert torch.equal(decision.by_filter, filtered != best)
    assert torch.equal(decision.by_penalty, full != filtered)
    assert torch.equal(decision.changed, full != best)
    assert torch.equal(Mcss().pick(pool(values, energies)).winner, best)


@given(arrays(np.float32, (4, 7), elements=st.one_of(st.floats(-5, 5, width=32), ODD)))
def test_without_filter_and_penalty_sage_is_mcss(values):
    energies = np.random.default_rng(0).random((4, 7, 3), np.float32)
    for sage in (Sage(keep=1.0, penalty=0.0), Sage(prefix=0)):
        ours, plain = sage.pick(pool(values, energies)), Mcss().pick(pool(values, energies))
        for mine, other in zip(ours, plain, strict=True):
            assert torch.equal(mine, other)
        assert not ours.changed.any()


def test_one_decision_by_hand():
    """Energies over two steps: 3, .5, .6, .1; the filter drops the best, the penalty then prefers the last."""
    given = pool([[9.0, 5.0, 6.0, 5.8]], [[[3.0, 3.0, 0], [0.5, 0.5, 9], [0.6, 0.6, 9], [0.1, 0.1, 9]]])
    decision = Sage(prefix=2, keep=0.75, penalty=0.5).pick(given)
    assert (decision.winner, decision.by_filter, decision.by_penalty, decision.changed) == (3, True, True, True)
    decision = Sage(prefix=2, keep=0.75, penalty=0.1).pick(given)
    assert (decision.winner, decision.by_filter, decision.by_penalty, decision.changed) == (2, True, False, True)
    decision = Sage(prefix=2, keep=1.0, penalty=0.5).pick(given)
    assert (decision.winner, decision.by_filter, decision.by_penalty, decision.changed) == (0, False, False, False)
    assert LowestEnergy(prefix=2).pick(given).winner == 3
    assert LowestEnergy(prefix=3).pick(given).winner == 0
    assert LowestEnergy(prefix=3).pick(given).changed == False  # noqa: E712 - a tensor


def test_the_lowest_energy_is_never_one_that_could_not_be_computed():
    inf, nan = np.inf, np.nan
    given = pool([[1.0, 2, 3], [1, 2, 3]], [[[inf], [nan], [7.0]], [[nan], [inf], [nan]]])
    assert LowestEnergy().pick(given).winner.tolist() == [2, 0]


def test_the_oracle_takes_what_turns_out_best():
    given = pool([[3.0, 2.0, 1.0]], [[[0.0]] * 3], realised=torch.tensor([[0.0, np.nan, 0.5]]))
    decision = Oracle().pick(given)
    assert (decision.winner, decision.changed, decision.by_filter) == (2, True, False)
    with pytest.raises(ConfigError, match="was not simulated"):
        Oracle().pick(pool([[1.0]], [[[0.0]]]))


def test_random_takes_everyone_equally_often_and_only_from_its_generator():
    def draw(seed):
        given = pool(np.zeros((4_000, 5)), np.zeros((4_000, 5, 1)), generator=torch.Generator().manual_seed(seed))
        return Random().pick(given).winner

    counts = torch.bincount(draw(0), minlength=5)
    assert ((counts - 800).abs() < 120).all()  # 4.7 standard deviations
    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))


def test_names_say_all_that_is_not_the_default():
    assert [one.name for one in arms([*KINDS])] == ["mcss", "sage", "random", "lowest-energy", "oracle"]
    assert Sage(prefix=20, keep=0.5).name == "sage:prefix=20:keep=0.5"
    assert LowestEnergy(32).name == "lowest-energy:prefix=32"
    assert Sage().settings == {"selector": "sage", "prefix": 10, "keep": 0.8, "penalty": 0.1, "penalty_units": "raw"}
    for prefix, keep, penalty, units in itertools.product(
        (0, 10, 31), (0.123456789, 1.0), (0.1, 1e-7), ("raw", "pool")
    ):
        sage = Sage(prefix, keep, penalty, units)
        assert parse(sage.name) == sage


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sgae", r"no selector 'sgae'; choose of mcss, sage, random, lowest-energy, oracle"),
        ("sage:keeep=1", r"'sage' has no setting 'keeep'; it has prefix, keep, penalty, penalty_units"),
        ("mcss:keep=1", r"'mcss' has no setting 'keep'; it has none"),
        ("sage:prefix=2.5", r"prefix cannot be '2.5'"),
        ("sage:keep", r"keep cannot be ''"),
        ("sage:keep=2", r"keep is a share .* got 2"),
        ("sage:prefix=-1", r"cannot be negative, got -1"),
        ("sage:penalty_units=percent", r'"raw" or "pool"'),
        ("lowest-energy:prefix=0", r"at least one step, got prefix 0"),
    ],
)
def test_names_that_mean_nothing_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse(text)


def test_no_arm_or_one_arm_twice_is_refused():
    with pytest.raises(ConfigError, match="got none"):
        arms([])
    with pytest.raises(ConfigError, match="got sage, mcss, sage"):
        arms(["sage", "mcss", Sage(prefix=10)])
