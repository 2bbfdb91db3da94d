"""The files of an exported model: which they are, where they are, and whether they are what was written."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from lowbit.config.yaml_file import read_yaml
from lowbit.deploy.inference_yml import read_inference_yml
from lowbit.deploy.params_file import is_complete
from lowbit.digest import TEXT, DamagedFile, add_digest
from lowbit.errors import LowbitError

# Paddle 3's format first; .pdmodel is what Paddle 2 wrote and Paddle 3 still runs.
MODEL_SUFFIXES = (".json", ".pdmodel")
PARAMS_SUFFIX = ".pdiparams"


@dataclass(frozen=True)
class ModelFiles:
    """The program, its parameters, and the description beside them (None where another tool wrote them)."""

    model: Path
    params: Path
    yml: Path | None


def find_model_files(directory: str | Path, file_name: str = "inference") -> ModelFiles:
    """The exported model called `file_name` in a folder; an error says what is missing and what is there."""
    directory = Path(directory)
    if not directory.is_dir():
        what = "is a file, not a folder" if directory.exists() else "does not exist"
        raise LowbitError(f"the model folder {directory} {what}; give the folder that holds {file_name}.json")
    models = [directory / (file_name + suffix) for suffix in MODEL_SUFFIXES]
    model = next((path for path in models if path.is_file()), None)
    if model is None:
        others = sorted(
            p.stem for s in MODEL_SUFFIXES for p in directory.glob(f"*{s}") if _params_of(p).is_file()
        )
        hint = f"; it has other exported models: {', '.join(others)}" if others else "; export a model first"
        if any((directory / "export" / path.name).is_file() for path in models):
            hint = f"; the exported model of this run is in {directory / 'export'}"
        raise LowbitError(f"no {file_name}.json in {directory}{hint}")
    params = _params_of(model)
    if not params.is_file():  # Paddle would run the model with whatever is in memory
        raise LowbitError(
            f"{model} has no {params.name} beside it: the parameters are missing; export it again"
        )
    yml = directory / f"{file_name}.yml"
    return ModelFiles(model, params, yml if yml.is_file() else None)


def _params_of(model: Path) -> Path:
    return model.with_name(model.stem + PARAMS_SUFFIX)


def sha256(path: Path) -> str:
    """The digest of a file, read in blocks: parameters may be larger than memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_files(files: ModelFiles, digests: dict[str, str]) -> None:
    """Stop when a file is not what was exported: cut short, damaged, or from another export."""
    for path in (files.model, files.params):
        if path.name in digests and sha256(path) != digests[path.name]:
            raise _not_as_exported(path, files.yml)
    if files.params.name not in digests and not is_complete(files.params):
        raise LowbitError(f"{files.params} is damaged: tensors in it are cut short; export the model again")


def check_exported(yml: Path) -> None:
    """Stop when a file whose digest an inference.yml records is missing or is not what was exported."""
    for name, recorded in read_inference_yml(yml).Global.sha256.items():
        path = yml.with_name(name)
        if not path.is_file() or sha256(path) != recorded:
            raise _not_as_exported(path, yml)


def accept_exported(yml: Path) -> bytes:
    """The content of an inference.yml with the present digests of the files beside it and of itself."""
    values, _ = read_yaml(yml)
    lines = [line for line in yml.read_bytes().splitlines(keepends=True) if not line.startswith(TEXT.before)]
    content = b"".join(lines)
    try:
        recorded = dict(values["Global"].get("sha256") or {})
        for name, old in recorded.items():
            content = content.replace(old.encode(), sha256(yml.with_name(name)).encode())
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise LowbitError(f"{yml}: the files that it describes cannot be read ({error})") from None
    return add_digest(content, TEXT)


def _not_as_exported(path: Path, yml: Path | None) -> DamagedFile:
    return DamagedFile(
        f"{path} is damaged or belongs to another export: its digest is not the one that {yml} recorded; "
        f"export the model again, or, if you replaced it on purpose, accept it with: "
        f"lowbit digest --accept {yml}"
    )
