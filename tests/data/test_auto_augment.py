from __future__ import annotations

import numpy as np
import pytest

from lowbit.config.transform_ops import AutoAugment
from lowbit.data.auto_augment import POLICIES, apply, auto_augment

IMAGE = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)


def test_policies_are_complete():
    assert set(POLICIES) == {"imagenet", "cifar10", "svhn"}
    for policy in POLICIES.values():
        assert len(policy) == 25
        for pair in policy:
            for name, probability, magnitude in pair:
                assert 0 <= probability <= 1 and 0 <= magnitude <= 9
                assert apply(name, IMAGE, magnitude).shape == IMAGE.shape
    # From the paper's tables, one line each.
    assert POLICIES["imagenet"][0] == (("Posterize", 0.4, 8), ("Rotate", 0.6, 9))
    assert POLICIES["cifar10"][3] == (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9))
    assert POLICIES["svhn"][24] == (("ShearX", 0.7, 2), ("Invert", 0.1, 5))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_policy_depends_on_the_generator_alone(policy):
    step = auto_augment(AutoAugment(policy=policy))
    before = IMAGE.copy()
    results = [step(IMAGE, np.random.default_rng(seed)) for seed in range(60)]
    again = [step(IMAGE, np.random.default_rng(seed)) for seed in range(60)]
    assert all(np.array_equal(left, right) for left, right in zip(results, again, strict=True))
    assert np.array_equal(IMAGE, before)
    assert all(result.shape == IMAGE.shape and result.dtype == np.uint8 for result in results)
    assert len({result.tobytes() for result in results}) > 15
