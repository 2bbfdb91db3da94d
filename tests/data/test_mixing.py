from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowbit.config.batch_ops import CutmixOperator, FmixOperator, MixupCutmixHybrid, MixupOperator, OpSampler
from lowbit.config.transform_ops import NormalizeImage
from lowbit.data import ArrayDataset, Loader, compose
from lowbit.data.mixing import build_mixer


def numbered(count: int = 6, side: int = 16) -> np.ndarray:
    """Images that hold their number in every pixel, so that a mixture shows what it is made of."""
    return np.broadcast_to(
        np.arange(count, dtype=np.float32)[:, None, None, None], (count, 3, side, side)
    ).copy()


@given(st.integers(0, 2**32), st.floats(0.05, 2))
def test_mixup_is_a_weighted_sum(seed, alpha):
    images = numbered()
    partners, share = build_mixer([MixupOperator(alpha=alpha)])(images, np.random.default_rng(seed))
    assert sorted(partners) == list(range(6)) and 0 <= share <= 1
    own = np.arange(6)
    np.testing.assert_allclose(images[:, 0, 0, 0], share * own + (1 - share) * partners, atol=1e-5)
    assert (images == images[:, :1, :1, :1]).all()


@given(st.integers(0, 2**32), st.sampled_from([CutmixOperator(alpha=1.0), FmixOperator()]))
def test_a_cut_has_its_share_of_the_pixels(seed, op):
    images = numbered()
    partners, share = build_mixer([op])(images, np.random.default_rng(seed))
    for own, (image, partner) in enumerate(zip(images, partners, strict=True)):
        assert set(np.unique(image)) <= {own, partner}
        if own != partner:
            assert (image[0] == own).mean() == pytest.approx(share)
            assert (image == image[:1]).all()


def test_cutmix_cuts_a_box():
    images = numbered()
    partners, _ = build_mixer([CutmixOperator(alpha=1.0)])(images, np.random.default_rng(3))
    one = next(index for index, partner in enumerate(partners) if partner != index)
    gone = images[one, 0] == partners[one]
    rows, columns = np.flatnonzero(gone.any(axis=1)), np.flatnonzero(gone.any(axis=0))
    assert gone[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
    assert gone.sum() == len(rows) * len(columns)


def kinds_of(op) -> list[str]:
    mixer, kinds = build_mixer([op]), []
    for seed in range(400):
        images = numbered()
        found = mixer(images, np.random.default_rng(seed))
        whole = (images == images[:, :1, :1, :1]).all()
        kinds.append("none" if found is None else "mixup" if whole else "cutmix")
    return kinds


def test_a_sampler_chooses_by_probability_and_sometimes_nothing():
    op = OpSampler(ops=[({"MixupOperator": {"alpha": 0.2}}, 0.25), ({"CutmixOperator": {}}, 0.5)])
    kinds = kinds_of(op)
    assert 70 < kinds.count("mixup") < 200 and 130 < kinds.count("cutmix") < 260
    assert 60 < kinds.count("none") < 140


def test_mixup_or_cutmix_by_the_switch():
    both = kinds_of(MixupCutmixHybrid(mixup_alpha=0.8, cutmix_alpha=1.0, prob=0.8, switch_prob=0.25))
    assert 180 < both.count("mixup") < 310 and 40 < both.count("cutmix") < 110
    assert 50 < both.count("none") < 120
    assert "cutmix" not in kinds_of(MixupCutmixHybrid(mixup_alpha=0.8))


def test_nothing_listed_mixes_nothing():
    assert build_mixer([]) is None


def loader(**options) -> Loader:
    images = np.random.default_rng(0).integers(0, 255, (23, 8, 8, 3)).astype(np.uint8)
    dataset = ArrayDataset(images, np.arange(23) % 5, list("abcde"), "numbers")
    settings = {
        "batch_size": 4,
        "shuffle": True,
        "drop_last": False,
        "workers": 2,
        "seed": 1,
        "training": True,
    }
    return Loader(dataset, compose([NormalizeImage()]), **settings | options)


def test_a_mixed_epoch_is_the_same_for_any_threads_and_from_any_batch():
    mixer = build_mixer([MixupOperator(alpha=0.4)])
    whole = list(loader(mixer=mixer).epoch(2))
    assert any((batch.shares < 1).any() for batch in whole)
    for batches in (
        list(loader(mixer=mixer, workers=5).epoch(2)),
        [None, None, *loader(mixer=mixer).epoch(2, 2)],
    ):
        for expected, batch in zip(whole[2:], batches[2:], strict=True):
            np.testing.assert_array_equal(expected.images, batch.images)
            np.testing.assert_array_equal(expected.other_labels, batch.other_labels)
            np.testing.assert_array_equal(expected.shares, batch.shares)


def test_other_labels_are_those_of_the_images_that_were_mixed_in():
    plain, mixed = loader(), loader(mixer=build_mixer([MixupOperator(alpha=1.0)]))
    for before, after in zip(plain.epoch(0), mixed.epoch(0), strict=True):
        np.testing.assert_array_equal(before.labels, after.labels)
        shares = after.shares[:, None, None, None]
        others = (after.images - shares * before.images) / np.maximum(1 - shares, 1e-3)
        for image, label in zip(others, after.other_labels, strict=True):
            nearest = np.abs(before.images - image).mean(axis=(1, 2, 3)).argmin()
            assert (after.shares > 0.99).all() or before.labels[nearest] == label


def test_pieces_are_mixed_by_themselves_and_cover_the_batch():
    for batch in loader(parts=2, mixer=build_mixer([MixupOperator()])).epoch(0):
        pieces = list(batch.split())
        assert len(pieces) == batch.parts
        np.testing.assert_array_equal(np.concatenate([piece.labels for piece in pieces]), batch.labels)
        assert sum(piece.weight for piece in pieces) == pytest.approx(batch.weight)
        for piece in pieces:
            assert sorted(piece.labels) == sorted(piece.other_labels)
            assert len(set(piece.shares.tolist())) == 1


@pytest.mark.parametrize(("world", "parts"), [(2, 2), (3, 4), (2, 5)])
def test_every_process_has_as_many_pieces(world, parts):
    """Each waits for the others after every backward pass."""
    ranks = [loader(parts=parts, rank=rank, world=world, batch_size=1) for rank in range(world)]
    for batches in zip(*(rank.epoch(0) for rank in ranks), strict=True):
        assert len({len(list(batch.split())) for batch in batches}) == 1
        assert all(len(piece.labels) for batch in batches for piece in batch.split())
