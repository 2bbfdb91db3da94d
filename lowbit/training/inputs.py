"""Loaders for training and evaluation out of the config's DataLoader section."""

from __future__ import annotations

from lowbit.config.data import AutoDataset, DataSplit, Digits, SamplerSection
from lowbit.config.data import Dataset as DatasetSection
from lowbit.data import Dataset, ListFileDataset, Loader, build_mixer, compose, open_dataset, open_digits
from lowbit.errors import LowbitError
from lowbit.training.process import Ranks


def open_section(
    section: DatasetSection, num_classes: int | None = None, *, classes: list[str] | None = None
) -> Dataset:
    """The dataset that a config's `dataset` section describes; its labels must be below `num_classes`.

    `classes` are those of a trained model; where they have names, class folders are matched by name. Their
    number is the model's, whatever the highest label of a list is.
    """
    if isinstance(section, AutoDataset):
        if classes is None:
            return open_dataset(section.path, section.split)
        named = classes != [str(index) for index in range(len(classes))]
        counted = None if named else len(classes)
        return open_dataset(
            section.path, section.split, num_classes=counted, classes=classes if named else None
        )
    if isinstance(section, Digits):
        return open_digits(section.split)
    return ListFileDataset(section.cls_label_path, section.image_root, num_classes=num_classes)


def build_loader(
    split: DataSplit,
    dataset: Dataset,
    *,
    training: bool,
    seed: int = 0,
    ranks: Ranks | None = None,
    max_bad_images: int = 0,
    update_freq: int = 1,
) -> Loader:
    """Batches of a dataset as its section asks for them, in training of `update_freq` pieces.

    Evaluation counts each sample once, whatever the section says: it never shuffles, drops, repeats or mixes.
    """
    ranks, sampler = ranks or Ranks(), split.sampler
    in_training = {}
    if training:
        in_training = {
            "parts": update_freq,
            "repeats": sampler.num_repeats if sampler.name == "RASampler" else 1,
            "scales": _scales(sampler),
            "mixer": build_mixer(split.dataset.batch_transform_ops),
        }
    return Loader(
        dataset,
        compose(split.dataset.transform_ops),
        batch_size=split.sampler.batch_size,
        shuffle=split.sampler.shuffle and training,
        drop_last=split.sampler.drop_last and training,
        workers=split.loader.num_workers,
        seed=seed,
        rank=ranks.rank,
        world=ranks.world,
        training=training,
        max_bad_images=max_bad_images,
        **in_training,
    )


def _scales(sampler: SamplerSection) -> list[tuple[int, int]]:
    """Width and height of the sizes of a MultiScaleSampler, rounded down to its multiples."""
    factor = sampler.divided_factor
    sizes = [(size, size) if isinstance(size, int) else size for size in sampler.scales or []]
    return [(width // factor * factor, height // factor * factor) for width, height in sizes]


def check_class_count(dataset: Dataset, num_classes: int, where: str) -> None:
    """Stops before the first batch where labels would not fit the model's outputs."""
    if (found := len(dataset.classes)) > num_classes:
        advice = f"set Arch.class_num={found}" if where == "training" else "it was made for other classes"
        raise LowbitError(
            f"the {where} data has {found} classes, the model only {num_classes} outputs; {advice}"
        )


def class_names(dataset: Dataset, num_classes: int) -> list[str]:
    """A name for every output of the model; outputs beyond the data's classes are called by their number."""
    return [*dataset.classes, *(str(index) for index in range(len(dataset.classes), num_classes))]
