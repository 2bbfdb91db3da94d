from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowbit.data.sampler import MultiScaleSampler, Sampler, epoch_order, sample_generator
from lowbit.errors import LowbitError

sizes = st.integers(1, 60)
ranks = st.integers(1, 5)


@given(sizes, st.integers(0, 2**63), st.integers(0, 500))
def test_an_epoch_is_a_permutation_of_seed_and_epoch(length, seed, epoch):
    order = epoch_order(length, seed, epoch)
    assert sorted(order) == list(range(length))
    assert np.array_equal(order, epoch_order(length, seed, epoch))


def test_seeds_and_epochs_differ():
    orders = {epoch_order(50, seed, epoch).tobytes() for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    draws = {
        sample_generator(*key).random()
        for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 0, 0), (-2, 0, 0)]
    }
    assert len(draws) == 6
    assert sample_generator(3, 4, 5).random() == sample_generator(3, 4, 5).random()


@given(sizes, st.integers(1, 8), ranks, st.booleans(), st.booleans())
def test_the_processes_share_every_global_batch(length, batch_size, world, shuffle, drop_last):
    if drop_last and length < batch_size * world:
        return
    options = {"length": length, "shuffle": shuffle, "drop_last": drop_last, "seed": 7}
    one = Sampler(batch_size=batch_size * world, **options)
    many = [Sampler(batch_size=batch_size, rank=rank, world=world, **options) for rank in range(world)]
    assert {len(sampler) for sampler in many} == {len(one)}
    for number in range(len(one)):
        whole = one.share(3, number)
        assert whole.weight == 1
        shares = [sampler.share(3, number) for sampler in many]
        counted = [share.indices for share in shares if share.weight > 0]
        assert np.array_equal(np.concatenate(counted), whole.indices)
        assert all(1 <= len(share.indices) <= batch_size for share in shares)
        assert all(share.weight > 0 or len(share.indices) == 1 for share in shares)
        # The mean over processes of weighted local means is the mean over the global batch.
        value = np.sin(np.arange(length))
        mean = sum(share.weight * value[share.indices].mean() for share in shares) / world
        assert mean == pytest.approx(value[whole.indices].mean())
    if not drop_last:
        seen = np.concatenate([one.share(3, number).indices for number in range(len(one))])
        assert sorted(seen) == list(range(length))


def test_two_processes_on_three_images():
    shares = [
        Sampler(length=5, batch_size=2, shuffle=False, rank=rank, world=2).share(0, 1) for rank in (0, 1)
    ]
    assert [share.indices.tolist() for share in shares] == [[4], [4]]
    assert [share.weight for share in shares] == [2.0, 0.0]


def test_a_batch_larger_than_the_data():
    small = Sampler(length=3, batch_size=8, shuffle=False)
    assert len(small) == 1 and small.share(0, 0).indices.tolist() == [0, 1, 2]
    with pytest.raises(
        LowbitError, match=r"a batch of 8 is larger than the data set \(3 images\).*drop_last: False"
    ):
        Sampler(length=3, batch_size=4, world=2, shuffle=False, drop_last=True)


def test_impossible_values():
    with pytest.raises(LowbitError, match="batch size 0"):
        Sampler(length=3, batch_size=0, shuffle=False)
    with pytest.raises(LowbitError, match=r"rank 2 is outside 0\.\.1"):
        Sampler(length=3, batch_size=1, shuffle=False, rank=2, world=2)


def test_repeated_images_have_keys_of_their_own():
    sampler = Sampler(length=10, batch_size=3, shuffle=True, repeats=3)
    shares = [sampler.share(1, batch) for batch in range(len(sampler))]
    indices, keys = (
        np.concatenate([getattr(share, name) for share in shares]) for name in ("indices", "keys")
    )
    assert len(sampler) == 4 and len(keys) == 10 == len(set(keys))
    assert sorted(np.bincount(indices, minlength=10)) == [0] * 6 + [1, 3, 3, 3]
    once = Sampler(length=10, batch_size=3, shuffle=True).share(1, 0)
    np.testing.assert_array_equal(once.indices, once.keys)


@given(st.integers(0, 2**20), st.sampled_from([1, 2]), st.booleans())
def test_batches_of_several_sizes_have_about_as_many_pixels(seed, world, drop_last):
    scales = ((64, 64), (32, 32), (96, 64))
    samplers = [
        MultiScaleSampler(
            length=100, batch_size=4, shuffle=True, seed=seed, drop_last=drop_last, rank=rank, world=world,
            scales=scales,
        )
        for rank in range(world)
    ]  # fmt: skip
    seen = []
    for batch in range(len(samplers[0])):
        shares = [sampler.share(3, batch) for sampler in samplers]
        (size,) = {share.size for share in shares}
        together = np.concatenate([share.indices for share in shares if share.weight])
        seen += together.tolist()
        if batch + 1 < len(samplers[0]) or drop_last:
            assert len(together) == 4 * 64 * 64 // (size[0] * size[1]) * world
    assert len(seen) == len(set(seen)) and (drop_last or len(seen) == 100)
    assert [sampler.share(0, 1).size for sampler in samplers] == [samplers[0].share(5, 1).size] * world
