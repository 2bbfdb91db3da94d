"""What a config asks of training: which trainers, on which device, for how many epochs."""

from __future__ import annotations

from lowbit.errors import did_you_mean
from lowbit.tipc.builder import Builder
from lowbit.tipc.config import ChainConfig, Trainer
from lowbit.tipc.lines import Field, is_absent, shorten
from lowbit.tipc.values import DeviceChoice, alternatives, is_gpu_word, per_mode
from lowbit.tipc.words import Words, option


def chosen_trainers(build: Builder, config: ChainConfig) -> tuple[Trainer, ...]:
    """The trainers that the config asks for, without those whose command is null."""
    training, found = config.training, []
    chosen = training.chosen
    chosen.require("a trainer, as in trainer:norm_train")
    known = {trainer.name: trainer for trainer in reversed(training.trainers) if not is_absent(trainer.name)}
    names = alternatives(chosen.value)
    for name in names:
        if name in known:
            trainer = known[name]
        elif config.layout == 32 and known and known.keys() & set(names):
            [only] = training.trainers
            build.note(chosen, f"{name} runs the command of {only.name}, the only one that there is")
            trainer = Trainer(name, only.train, only.export, only.quantized)
        else:
            lines = ", ".join(str(one.train.number) for one in training.trainers)
            raise chosen.error(
                f'expected a trainer that has a command on line {lines}, found "{shorten(name)}"; '
                + (did_you_mean(name, known) if known else "there is none")
            )
        if trainer.train.is_absent:
            build.note(trainer.train, f"{name} has no command and is left out")
        else:
            found.append(trainer)
    return tuple(found)


def autocasts(field: Field | None) -> tuple[str | None, ...]:
    """The alternatives of layout 51; layout 32 has none, and says in the folder's name whether it is AMP."""
    return (None,) if field is None else alternatives(field.value) or ("null",)


def use_gpu_words(field: Field, devices: tuple[DeviceChoice, ...]) -> tuple[str, ...]:
    """The word of line 5 for each device; one word holds for all of them."""
    if field.is_absent:
        return ("",) * len(devices)
    words = alternatives(field.value)
    if len(words) == 1:
        words = words * len(devices)
    if len(words) < len(devices):
        raise field.error(
            f"expected an alternative for each of the {len(devices)} of gpu_list, found {len(words)}"
        )
    for word in words:
        if not is_absent(word):
            is_gpu_word(field, word)
    return words[: len(devices)]


def epochs(field: Field, mode: str) -> Words:
    entries = per_mode(field)
    if is_absent(field.key) or not entries:
        return ()
    if mode in entries:
        return option(field, entries[mode])
    nearby, value = next(iter(entries.items()))
    for other, candidate in entries.items():  # a mode that trains on as much data has as many epochs
        if other.split("_")[0] == mode.split("_")[0]:
            nearby, value = other, candidate
    raise field.error(
        f"expected an entry for mode {mode}, found {', '.join(map(shorten, entries))}; without one the "
        f"script's own number of epochs would be trained. Add |{mode}={value} (as for {nearby}), or choose "
        "another mode"
    )


def batch_size(build: Builder, field: Field, mode: str) -> Words:
    entries = per_mode(field)
    if entries and mode not in entries:
        build.note(field, f"{field.key} has no entry for {mode}; the script's own default holds")
    return option(field, entries.get(mode, ""))
