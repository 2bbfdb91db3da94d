"""How many damaged files are found: python benchmarks/flipped_bytes.py --count 1000

A network is trained for one epoch in 8 bits and exported. Then copies of its files are damaged: a single byte
replaced by another one at a random place, 4 kB set to zero, the end cut off. Opening such a file must be an
error of one line (LowbitError); anything else, a traceback included, counts as not found.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from lowbit.api.deploy import export_run
from lowbit.config import validate
from lowbit.deploy import OnnxRuntimeEngine, PaddleEngine, read_inference_yml
from lowbit.errors import LowbitError
from lowbit.models import read_pickle, read_weights
from lowbit.training.checkpoint import read_checkpoint
from lowbit.training.loop import train

ROOT = Path(__file__).parents[1]
BLOCK = 4096


def flip(content: bytes, dice: random.Random) -> bytes:
    """One byte becomes another one."""
    at = dice.randrange(len(content))
    return content[:at] + bytes([content[at] ^ dice.randint(1, 255)]) + content[at + 1 :]


def zero(content: bytes, dice: random.Random) -> bytes:
    """A block of a disk is lost."""
    at = dice.randrange(0, len(content), BLOCK)
    return content[:at] + bytes(len(content[at : at + BLOCK])) + content[at + BLOCK :]


def cut(content: bytes, dice: random.Random) -> bytes:
    """The end is missing."""
    return content[: dice.randrange(len(content))]


DAMAGES = {"bytes flipped": flip, "4 kB zeroed": zero, "cut short": cut}


def open_paddle(path: Path) -> None:
    PaddleEngine(path.parent)


READERS: dict[str, Callable[[Path], object]] = {
    "checkpoints/latest.lowbit": read_checkpoint,
    "checkpoints/latest.pdparams": read_weights,
    "checkpoints/latest.pdopt": read_pickle,
    "export/inference.onnx": OnnxRuntimeEngine,
    "export/inference.json": open_paddle,
    "export/inference.pdiparams": open_paddle,
    "export/inference.yml": read_inference_yml,
}


def make_run(folder: Path) -> Path:
    values = yaml.safe_load((ROOT / "configs/digits.yaml").read_text())
    values["Global"] |= {"output_dir": str(folder), "epochs": 1, "use_visualdl": False}
    values["Recipe"] = str(ROOT / "recipes/qat_w8a8.yaml")
    run = train(validate(values, {}, "flipped_bytes"))
    export_run(run)
    return run


def is_found(path: Path, read: Callable[[Path], object]) -> bool:
    try:
        read(path)
    except LowbitError:
        return True
    except Exception as error:
        print(f"{path.name}: {type(error).__name__}: {error}")
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="damaged copies of each file and kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.getLogger("lowbit").setLevel(logging.ERROR)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="lowbit-flip-") as folder:
        run, dice = make_run(Path(folder, "run")), random.Random(options.seed)
        for name, read in READERS.items():
            path = run / name
            content = path.read_bytes()
            if is_found(path, read):
                sys.exit(f"{name} cannot be read as it was written")
            for kind, damage in DAMAGES.items():
                found = tried = 0
                while tried < options.count:
                    damaged = damage(content, dice)
                    if damaged == content:  # zeros that were zeros
                        continue
                    path.write_bytes(damaged)
                    tried += 1
                    found += is_found(path, read)
                missed += tried - found
                print(f"{name} ({len(content)} bytes), {kind}: {found} of {tried} found", flush=True)
            path.write_bytes(content)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
