"""One random stream per image, whatever its neighbours."""

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rattle.randomness import GOLDEN, MIX_1, MIX_2, ImageStreams, derive_seed, mix, signed, streams

WORD = 2**64 - 1


def splitmix(z: int) -> int:
    """SplitMix64's finaliser in Python's own whole numbers."""
    z = ((z ^ (z >> 30)) * MIX_1) & WORD
    z = ((z ^ (z >> 27)) * MIX_2) & WORD
    return z ^ (z >> 31)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, WORD))
def test_mix_is_splitmix64(z: int) -> None:
    assert int(mix(torch.tensor(signed(z)))) == signed(splitmix(z))


def test_the_published_splitmix64_sequence_comes_out() -> None:
    # the first outputs for seed 1234567 in the reference implementation
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    states = [signed(1234567 + (i + 1) * GOLDEN) for i in range(3)]
    assert [int(v) & WORD for v in mix(torch.tensor(states))] == wanted


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**60), st.lists(st.integers(0, 2**40), min_size=1, max_size=6, unique=True), st.data())
def test_what_an_image_draws_depends_on_seed_and_index_alone(seed: int, index: list[int], data: st.DataObject) -> None:
    chosen = data.draw(st.integers(0, len(index) - 1))
    whole, alone = ImageStreams(seed, torch.tensor(index)), ImageStreams(seed, torch.tensor([index[chosen]]))
    for draw in ("uniform", "normal", "signs", "bits"):
        assert torch.equal(getattr(whole, draw)(2, 3)[chosen], getattr(alone, draw)(2, 3)[0])
    assert torch.equal(whole.integers(7, 4)[chosen], alone.integers(7, 4)[0])


def test_images_seeds_and_calls_draw_differently() -> None:
    draws = ImageStreams(0, torch.arange(2))
    first, second = draws.uniform(50), draws.uniform(50)
    other = ImageStreams(1, torch.arange(2)).uniform(50)
    for a, b in [(first[0], first[1]), (first, second), (first, other)]:
        assert (a == b).float().mean() < 0.05


def test_the_draws_have_the_distributions_they_claim() -> None:
    draws = ImageStreams(0, torch.arange(200))
    for values, name in ((draws.uniform(100), "uniform"), (draws.normal(100), "norm")):
        assert scipy.stats.kstest(values.flatten().numpy(), name).pvalue > 0.001
        assert abs(float(torch.corrcoef(values[:2])[0, 1])) < 0.3
    k, s = draws.integers(5, 100), draws.signs(100)
    assert torch.bincount(k.flatten(), minlength=5).float().div(k.numel()).sub(0.2).abs().max() < 0.02
    assert sorted(s.unique().tolist()) == [-1, 1]
    assert abs(float(s.mean())) < 0.03


def test_a_torch_generator_or_torchs_own_state_seeds_fresh_streams() -> None:
    for generator in (torch.Generator(), None):
        seed = torch.manual_seed if generator is None else generator.manual_seed
        seed(5)
        first, second = streams(generator, 3).uniform(4), streams(generator, 3).uniform(4)
        seed(5)
        assert torch.equal(streams(generator, 3).uniform(4), first)
        assert not torch.equal(first, second)


def test_streams_of_another_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="2 random streams for 3 images"):
        streams(ImageStreams(0, torch.arange(2)), 3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 300), st.integers(0, 300)), min_size=2, unique=True))
def test_fork_keeps_seeds_epochs_and_ranks_apart(paths: list[tuple[int, int, int]]) -> None:
    forked = [derive_seed(seed, *rest) for seed, *rest in paths]
    assert len(set(forked)) == len(paths)
    assert all(0 <= seed < 2**62 for seed in forked)
