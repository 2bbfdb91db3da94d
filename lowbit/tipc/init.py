"""Writes a `test_tipc` folder: a model's configs, their pages, the scripts, and the table of all models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from lowbit.errors import LowbitError, did_you_mean
from lowbit.tipc.chains import CHAINS, Scripts, config_text, training_command

SCRIPT_NAMES = ("prepare.sh", "test_train_inference_python.sh", "common_func.sh")
_README = "README.md"
_OURS = "<!-- Written by lowbit tipc init"


def parse_chains(text: str) -> list[str]:
    """The chains that were asked for, or all of them.

    >>> parse_chains("norm, pact")
    ['norm', 'pact']
    """
    names = list(CHAINS) if text.strip() == "all" else [word.strip() for word in text.split(",")]
    for name in names:
        if name not in CHAINS:
            raise LowbitError(f'no chain "{name}"; {did_you_mean(name, [*CHAINS, "all"])}')
    return list(dict.fromkeys(names))


def write_test_tipc(
    folder: Path, scripts: Scripts, chains: Sequence[str], *, force: bool = False
) -> list[Path]:
    """Write what is not there yet; returns the files written.

    A file that is there with another content is an error, unless `force`. Pages and scripts that another
    model brought are left as they are; the README is renewed, if it is one of ours.
    """
    texts = {
        folder / f"configs/{scripts.model}/{CHAINS[name].config}": config_text(scripts, name)
        for name in chains
    }
    if not force:
        other = [path for path, text in texts.items() if path.is_file() and _read(path) != text]
        if other:
            raise LowbitError(f"{other[0]} is there already, and different; --force overwrites it")
    shared = {folder / name: _template(name) for name in SCRIPT_NAMES}
    shared |= {folder / f"docs/{CHAINS[name].page}": _page(scripts, name) for name in chains}
    texts |= {path: text for path, text in shared.items() if force or not path.exists()}
    written = [path for path, text in texts.items() if not path.is_file() or _read(path) != text]
    try:
        for path in written:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[path], "utf-8")
        return written + _renew_readme(folder)
    except OSError as error:
        raise LowbitError(f"cannot write {error.filename}: {error.strerror}") from None


def _read(path: Path) -> str:
    return path.read_text("utf-8", errors="replace")


def _template(name: str) -> str:
    return (files("lowbit.tipc") / "templates" / name).read_text("utf-8")


def _fill(text: str, values: Mapping[str, str]) -> str:
    for word, value in values.items():
        text = text.replace(f"@{word}@", value)
    return text


def _page(scripts: Scripts, name: str) -> str:
    chain = CHAINS[name]
    infer = "ONNX Runtime on the CPU" if name == "onnx" else "Paddle Inference, on a card and on the CPU"
    where = "two machines with two cards each" if name == "fleet" else "one card, and two cards"
    return _fill(
        _template("chain.md"),
        {
            "TITLE": chain.title,
            "ABOUT": chain.about,
            "MODEL": scripts.model,
            "CONFIG": chain.config,
            "STEM": Path(chain.config).stem,
            "TRAINED": f"{where}; without cards, the CPU (several: 2 processes)",
            "EXPORTED": chain.exported,
            "INFERENCE": "Paddle Inference, on the CPU" if name == "fleet" else infer,
            "DATA": scripts.data,
            "IMAGE": scripts.image,
            "COMMAND": training_command(scripts, chain),
            "TRAINER": chain.trainer,
            "AUTOCAST": str(chain.trainer == "amp_train"),
            "CHANGE": chain.change,
        },
    )


def _renew_readme(folder: Path) -> list[Path]:
    path = folder / _README
    if path.exists() and not _read(path).startswith(_OURS):
        return []
    models = sorted(below.name for below in (folder / "configs").iterdir() if below.is_dir())
    found = {
        name: [model for model in models if (folder / "configs" / model / chain.config).is_file()]
        for name, chain in CHAINS.items()
    }
    used = [name for name in CHAINS if found[name]]
    rows = [
        f"| `{model}` | " + " | ".join("yes" if model in found[name] else "" for name in used) + " |"
        for model in models
    ]
    first = CHAINS[used[0]]
    text = _fill(
        _template(_README),
        {
            "HEADER": " | ".join(CHAINS[name].short for name in used),
            "RULE": "|".join(["---"] * len(used)),
            "ROWS": "\n".join(rows),
            "MODEL": found[used[0]][0],
            "CONFIG": first.config,
            "DOCS": "\n".join(f"- [{CHAINS[name].title}](docs/{CHAINS[name].page})" for name in used),
        },
    )
    if path.exists() and _read(path) == text:
        return []
    path.write_text(text, "utf-8")
    return [path]
