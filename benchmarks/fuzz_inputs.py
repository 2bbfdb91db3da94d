"""Damaged recipes, configs, chain-test configs and checkpoints: python benchmarks/fuzz_inputs.py --count 2500

Each case is a real file with one to four mutations (flipped bytes, cuts, other types in its tree, deletions,
duplicates, huge values, odd characters), read by the functions that the commands call. It is taken or refused
with a LowbitError; anything else that is raised, and what takes longer than 60 s, is counted and shown with
the seed that repeats it: --kind recipe --first 17 --count 1.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from lowbit.errors import LowbitError

ROOT = Path(__file__).parents[1]
KINDS = ("recipe", "config", "chain", "checkpoint")
SECONDS = 60
HUGE = [
    "9" * 5000,
    "1e999",
    "-1e999",
    "0x" + "f" * 400,
    str(2**63),
    str(10**20),
    "-1",
    "0",
    "1e-320",
    ".nan",
    ".inf",
]
ODD = ["\0", '"\\0"', '"\\ud800"', "\ufeff", "\u2028", "\U0001f600", "é", "\x1b[31m", "\udcff", "\t", "\r\n"]
SYNTAX = [
    "&a [*a]",
    "*a",
    "<<: *a",
    "!!python/object:os.system x",
    "!!binary x",
    "!!int ''",
    "!!set {a}",
    "{",
    "]",
]
SYNTAX += [
    "[" * 2000,
    "- - - -",
    ": :",
    "null",
    "|",
    "=",
    "#",
    "%",
    "2024-13-45",
    "yes",
    "'",
    '"',
    "a" * 5000,
]
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2.5,
    2**63,
    10**30,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
]
VALUES += [
    "null",
    "int4",
    "full",
    "a" * 5000,
    "\0",
    "\ud800",
    "é\u2028",
    "../..",
    [],
    [[]],
    [None],
    {},
    {"a": 1},
]
VALUES += [{"name": None}, [1, "a", {}], {1: 2}, "1/0", "-", "int99", "tests:x"]


@dataclass(frozen=True)
class Failure:
    """A case that raised something else than a LowbitError."""

    kind: str
    seed: int
    error: str


def fuzz(kind: str, seeds: range, folder: Path) -> tuple[int, list[Failure]]:
    """How many of the cases were refused, and those that failed."""
    samples, read = _SETUPS[kind](folder)
    refused, failures = 0, []
    for seed in seeds:
        file = folder / f"case{samples[0].suffix}"
        file.write_bytes(case(kind, seed, samples))
        before = signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(file)
        except LowbitError as error:
            str(error).encode()
            refused += 1
        except Exception:
            failures.append(Failure(kind, seed, traceback.format_exc()))
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
    return refused, failures


def _too_long(*_: object) -> None:
    raise TimeoutError(f"longer than {SECONDS} s")


def case(kind: str, seed: int, samples: list[Path]) -> bytes:
    """The content of a case: the same for the same kind, seed and samples."""
    rng = random.Random(f"{kind} {seed}")
    content = rng.choice(samples).read_bytes()
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        content = rng.choice(_MUTATIONS[kind])(content, rng)
    return content


def _flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _remove(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + content[start + rng.choice([1, 4, 20, 200]) :]


def _insert(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + _token(rng) + content[at:]


def _replace_word(content: bytes, rng: random.Random) -> bytes:
    """A value, the word after a colon, a blank, `=` or `|`, becomes something else."""
    places = [at + 1 for at, byte in enumerate(content) if byte in b": =|"]
    if not places:
        return content
    start = rng.choice(places)
    end = start
    while end < len(content) and content[end] not in b": =|\n":
        end += 1
    return content[:start] + _token(rng) + content[end:]


def _lines(content: bytes, rng: random.Random) -> bytes:
    """A line is left out, doubled, moved or indented."""
    lines = content.split(b"\n")
    at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
    line = lines[at]
    change = rng.choice(["leave out", "double", "move", "indent"])
    if change in ("leave out", "move"):
        del lines[at]
    if change in ("double", "move"):
        lines.insert(to, line)
    if change == "indent":
        lines[at] = rng.choice([b"  ", b"\t", b" "]) + line
    return b"\n".join(lines)


def _token(rng: random.Random) -> bytes:
    return rng.choice(rng.choice([HUGE, ODD, SYNTAX])).encode("utf-8", "surrogateescape")


def _yaml_tree(content: bytes, rng: random.Random) -> bytes:
    try:
        value = yaml.safe_load(content)
        text = yaml.safe_dump(_change_tree(value, rng), allow_unicode=rng.random() < 0.5, sort_keys=False)
        return text.encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return _replace_word(content, rng)  # an earlier mutation left no YAML


def _change_tree(value: Any, rng: random.Random) -> Any:
    """A part of a tree is replaced, left out, or takes the place of another part."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places:
        return rng.choice(VALUES)
    container, key = rng.choice(places)
    change = rng.choice(["replace", "replace", "leave out", "swap", "add"])
    if change == "replace":
        container[key] = copy.deepcopy(rng.choice(VALUES))
    elif change == "leave out":
        del container[key]
    elif change == "swap":
        other, at = rng.choice(places)
        container[key] = copy.deepcopy(other[at])
    elif isinstance(container, list):
        container.insert(key, copy.deepcopy(rng.choice(VALUES)))
    else:
        container[rng.choice(["a", str(key) + "s", 1, None, True, ""])] = copy.deepcopy(rng.choice(VALUES))
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)


def _checkpoint_tree(content: bytes, rng: random.Random) -> bytes:
    """The JSON of a checkpoint's header or of the metadata in it; its length is put right again."""
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        header["__metadata__"].pop("digest", None)  # it would tell, and nothing behind it be tested
        if rng.random() < 0.8:
            described = json.loads(header["__metadata__"]["lowbit"])
            header["__metadata__"]["lowbit"] = json.dumps(_change_tree(described, rng))
        else:
            header = _change_tree(header, rng)
        text = json.dumps(header).encode()
    except (ValueError, LookupError, TypeError, RecursionError):
        return _flip(content, rng)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def _flip_header(content: bytes, rng: random.Random) -> bytes:
    return _flip(content[:2000], rng) + content[2000:]


_TEXT = [_flip, _truncate, _remove, _insert, _replace_word, _replace_word, _lines]
_MUTATIONS: dict[str, list[Callable[[bytes, random.Random], bytes]]] = {
    "recipe": [*_TEXT, *4 * [_yaml_tree]],
    "config": [*_TEXT, *4 * [_yaml_tree]],
    "chain": _TEXT,
    "checkpoint": [_flip, _flip_header, _truncate, _remove, *4 * [_checkpoint_tree]],
}
Setup = tuple[list[Path], Callable[[Path], None]]


def _recipes(folder: Path) -> Setup:
    from lowbit.models import build_model
    from lowbit.recipe import describe_layers, dump_recipe, load_recipe

    network = build_model("resnet20", 10)

    def read(file: Path) -> None:
        recipe = load_recipe(file)
        describe_layers(recipe.assign(network))
        dump_recipe(recipe)

    return sorted((ROOT / "recipes").glob("*.yaml")), read


def _configs(folder: Path) -> Setup:
    from lowbit.config import dump_config, load_config, override_config
    from lowbit.data import compose
    from lowbit.recipe import make_recipe

    def read(file: Path) -> None:
        config = load_config(file)
        dump_config(override_config(config, ["Global.epochs=2"]))
        for split in (config.DataLoader.Train, config.DataLoader.Eval):
            if split is not None:
                compose(split.dataset.transform_ops)
        if isinstance(config.recipe_source, dict):
            make_recipe(config.recipe_source)

    return sorted((ROOT / "configs").glob("*.yaml")), read


def _chains(folder: Path) -> Setup:
    from lowbit.tipc import MODES, Machine, make_plan, original_commands, plan_values, read_config

    def read(file: Path) -> None:
        errors = []
        for mode in MODES:
            for function in (original_commands, _planned):
                try:
                    function(read_config(file), mode)
                except LowbitError as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    def _planned(config: Any, mode: str) -> None:
        for on_cpu in (True, False):
            json.dumps(plan_values(make_plan(config, mode, machine=Machine(cards=0, on_cpu=on_cpu))))

    ours = sorted((ROOT / "test_tipc" / "configs").rglob("*.txt"))
    return [*ours, *sorted((ROOT / "tests" / "tipc" / "configs").glob("*.txt"))], read


def _checkpoints(folder: Path) -> Setup:
    from lowbit.config import validate
    from lowbit.data import write_lite_data
    from lowbit.training.loop import train
    from lowbit.training.trained_model import open_checkpoint

    data = write_lite_data(folder / "lite", tar=False)
    samples = []
    for name, recipe in (("fp32", None), ("w4a4", {"weight_bits": 4, "activation_bits": 4})):
        ops = [{"ResizeImage": {"size": 32}}, {"NormalizeImage": None}]
        dataset = {"name": "AutoDataset", "path": str(data), "split": "train", "transform_ops": ops}
        values = {
            "Global": {"epochs": 1, "output_dir": str(folder / name), "image_shape": [3, 32, 32]},
            "Arch": {"name": "resnet20"},
            "DataLoader": {"Train": {"dataset": dataset, "sampler": {"batch_size": 8}}},
            "Recipe": recipe,
        }
        values["Global"]["use_visualdl"] = False
        values["DataLoader"]["Eval"] = {"dataset": dataset | {"split": "val"}}
        with open(os.devnull, "w") as nowhere:
            stdout, sys.stdout = sys.stdout, nowhere
            try:
                train(validate(values, {}, "fuzz"))
            finally:
                sys.stdout = stdout
        samples.append(folder / name / "checkpoints" / "latest.lowbit")

    def read(file: Path) -> None:
        _ = open_checkpoint(file).preprocessing

    return samples, read


_SETUPS: dict[str, Callable[[Path], Setup]] = {
    "recipe": _recipes,
    "config": _configs,
    "chain": _chains,
    "checkpoint": _checkpoints,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=[*KINDS, "all"], default="all")
    parser.add_argument("--count", type=int, default=2500, help="cases of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.count)
    total = 0
    for kind in KINDS if options.kind == "all" else [options.kind]:
        with tempfile.TemporaryDirectory(prefix="lowbit-fuzz-") as folder:
            start = time.perf_counter()
            refused, failures = fuzz(kind, seeds, Path(folder))
        total += len(failures)
        print(
            f"{kind}: seeds {seeds.start} to {seeds.stop - 1}: {len(seeds)} cases, {refused} refused, "
            f"{len(failures)} other exceptions, {time.perf_counter() - start:.0f} s",
            flush=True,
        )
        for failure in failures[:20]:
            print(f"--- {kind}, seed {failure.seed}\n{failure.error}", file=sys.stderr)
    print(f"exceptions other than LowbitError: {total}")
    raise SystemExit(bool(total))


if __name__ == "__main__":
    main()
