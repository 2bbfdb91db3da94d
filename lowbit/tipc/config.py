"""Typed sections of a chain test's config. The layout, 32 or 51 lines, is recognised from its content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lowbit.errors import LowbitError, nearest
from lowbit.tipc.dialects import ChainDialect, find_dialect
from lowbit.tipc.fields import ConfigFile, Field, Line, read_lines, shorten


@dataclass(frozen=True)
class Trainer:
    """A training command, and the command that exports its checkpoint."""

    name: str
    train: Field
    export: Field
    quantized: bool


@dataclass(frozen=True, kw_only=True)
class TrainingLines:
    """The train_params section. `order` and `order_on_machines` are the layout's order of arguments."""

    gpu_list: Field
    use_gpu: Field
    autocast: Field | None
    epochs: Field
    output_dir: Field
    batch_size: Field
    pretrained: Field
    weights_name: Field
    extra: Field
    chosen: Field
    trainers: tuple[Trainer, ...]
    order: tuple[str, ...]
    order_on_machines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class EvaluationLines:
    """The eval_params section: the command, and its arguments besides the weights."""

    command: Field
    extra: Field


@dataclass(frozen=True, kw_only=True)
class ExportLines:
    """The keys of the export command; `subfolder` is where in its folder it writes the model."""

    save: Field
    weights: Field
    subfolder: Field | None


@dataclass(frozen=True, kw_only=True)
class Released:
    """The model that `whole_infer` starts from. Without a `folder`, `weights` is the folder.

    `post_quantize` is PaddleClas's command that quantizes an exported model without training.
    """

    weights: Field
    export: Field
    folder: Field | None
    quantized: Field | None
    post_quantize: Field | None = None


@dataclass(frozen=True, kw_only=True)
class InferenceLines:
    """The inference script and its settings, each with alternatives. None: not in this layout."""

    script: Field
    use_gpu: Field
    batch_size: Field
    model_dir: Field
    image: Field
    train_image: Field
    benchmark: Field
    mkldnn: Field | None = None
    threads: Field | None = None
    tensorrt: Field | None = None
    precision: Field | None = None
    extra: Field | None = None


@dataclass(frozen=True, kw_only=True)
class ChainConfig:
    """A config, with the line number of every value. `layout` is 32 or 51."""

    file: ConfigFile
    layout: int
    dialect: ChainDialect
    model_name: Field
    python: Field
    training: TrainingLines
    evaluation: EvaluationLines
    export: ExportLines
    released: Released
    inference: InferenceLines


# Titles are written with a leading "=". Only these words are the same in every repository's configs.
LANDMARKS_32 = {
    1: "=train_params",
    2: "model_name",
    3: "python",
    4: "gpu_list",
    13: "trainer",
    16: "=eval_params",
    17: "eval",
    19: "=infer_params",
    27: "inference",
}
# Whose exported models must be quantized: PACT, training in few bits, post-training quantization.
QUANTIZED_TRAINERS = ("pact_train", "qt_train", "ptq_train")
# The last two are parsed by the original and not passed on.
_ORDER_32 = ("output_dir", "epochs", "pretrained", "batch_size", "extra", "use_gpu")


def read_32(file: ConfigFile, dialect: ChainDialect) -> ChainConfig:
    """Read a config of this layout; its landmarks are checked already."""
    field = file.field
    return ChainConfig(
        file=file,
        layout=32,
        dialect=dialect,
        model_name=field(2),
        python=field(3),
        training=TrainingLines(
            gpu_list=field(4),
            use_gpu=_as_option(field(5)),
            autocast=None,
            epochs=field(6),
            output_dir=field(7),
            batch_size=field(8),
            pretrained=field(9),
            weights_name=field(10),
            extra=field(11),
            chosen=field(13),
            trainers=(
                Trainer(field(14).key, field(14), field(22), quantized=field(14).key in QUANTIZED_TRAINERS),
            ),
            order=_ORDER_32,
            order_on_machines=_ORDER_32,
        ),
        evaluation=EvaluationLines(command=field(17), extra=field(11)),
        export=ExportLines(save=field(20), weights=field(21), subfolder=None),
        released=Released(
            weights=field(24), export=field(25), folder=field(20), quantized=_quantizes(field(14))
        ),
        inference=InferenceLines(
            script=field(27),
            use_gpu=field(28),
            batch_size=field(29),
            model_dir=field(30),
            image=field(31),
            train_image=field(31),
            benchmark=field(32),
        ),
    )


def _quantizes(trainer: Field) -> Field | None:
    """Post-training quantization also quantizes released weights."""
    found = trainer.key == "ptq_train"
    return Field(trainer.source, trainer.number, trainer.key, "True") if found else None


def _as_option(field: Field) -> Field:
    """Line 5 as an option of train.py: `use-gpu:True` becomes `--device=gpu`."""
    if field.key.replace("_", "-") != "use-gpu":
        return field
    words = {"True": "gpu", "False": "cpu"}
    parts = (words.get(part.strip(), part.strip()) for part in field.value.split("|"))
    return Field(field.source, field.number, "--device", "|".join(parts))


LANDMARKS_51 = {
    1: "=train_params",
    2: "model_name",
    3: "python",
    4: "gpu_list",
    15: "trainer",
    23: "=eval_params",
    24: "eval",
    27: "=infer_params",
    40: "inference",
}
_ORDER_51 = ("use_gpu", "output_dir", "epochs", "pretrained", "autocast", "batch_size", "extra")
_ORDER_51_ON_MACHINES = ("use_gpu", "output_dir", "pretrained", "epochs", "autocast", "batch_size", "extra")
_TRAINERS_51 = ((16, 30), (17, 31), (18, 32), (19, 33), (20, 34), (21, 35))  # lines of training and of export
_PACT_51, _TO_STATIC_51 = 17, 20


def read_51(file: ConfigFile, dialect: ChainDialect) -> ChainConfig:
    """Read a config of this layout; its landmarks are checked already."""
    field = file.field
    return ChainConfig(
        file=file,
        layout=51,
        dialect=dialect,
        model_name=field(2),
        python=field(3),
        training=TrainingLines(
            gpu_list=field(4),
            use_gpu=field(5),
            autocast=field(6),
            epochs=field(7),
            output_dir=field(8),
            batch_size=field(9),
            pretrained=field(10),
            weights_name=field(11),
            extra=field(13),
            chosen=field(15),
            trainers=_trainers_51(file, dialect),
            order=_ORDER_51,
            order_on_machines=_ORDER_51_ON_MACHINES,
        ),
        evaluation=EvaluationLines(command=field(24), extra=field(25)),
        export=ExportLines(
            save=field(28), weights=field(29), subfolder=None if dialect.is_paddleclas else field(36)
        ),
        released=_released_51(file, dialect),
        inference=InferenceLines(
            script=field(40),
            use_gpu=field(41),
            mkldnn=field(42),
            threads=field(43),
            batch_size=field(44),
            tensorrt=field(45),
            precision=field(46),
            model_dir=field(47),
            image=field(48),
            train_image=field(48 if dialect.is_paddleclas else 12),
            benchmark=field(50),
            extra=field(51),
        ),
    )


def _trainers_51(file: ConfigFile, dialect: ChainDialect) -> tuple[Trainer, ...]:
    found = []
    for train, export in _TRAINERS_51:
        command = file.field(train)
        if train == _TO_STATIC_51 and dialect.is_paddleclas:  # norm_train with options; line 34 quantizes
            norm, export = file.field(16), 30
            if not command.is_absent and not norm.is_absent:
                text = f"{norm.value} {command.value}"
                command = Field(command.source, command.number, command.key, text)
        found.append(Trainer(command.key, command, file.field(export), quantized=train == _PACT_51))
    return tuple(found)


def _released_51(file: ConfigFile, dialect: ChainDialect) -> Released:
    field = file.field
    if not dialect.is_paddleclas:
        return Released(weights=field(37), export=field(38), folder=None, quantized=field(39))
    export = field(30)
    if not _asks_for_export(field(38)):
        export = Field(export.source, export.number, export.key, "null")
    return Released(
        weights=field(36), export=export, folder=field(37), quantized=field(39), post_quantize=field(34)
    )


def _asks_for_export(flag: Field) -> bool:
    """Line 38 is a command in other repositories, and True or False in PaddleClas's."""
    return not flag.is_absent and flag.value != "False"


_Layout = tuple[dict[int, str], Callable[[ConfigFile, ChainDialect], ChainConfig]]
_LAYOUTS: tuple[_Layout, _Layout] = (
    (LANDMARKS_32, read_32),
    (LANDMARKS_51, read_51),
)
_ALWAYS = ("model_name", "python", "gpu_list", "trainer")


def read_config(path: Path, dialect: str | None = None) -> ChainConfig:
    """Read a chain test's config in either layout.

    `dialect` is `generic` or `paddleclas`; None recognises it from the keys.

    >>> read_config(Path("test_tipc/configs/resnet18/train_infer_python.txt")).layout  # doctest: +SKIP
    32
    """
    file = read_lines(path)
    marks, read = _recognise(file)
    for position, word in marks.items():
        _check(file, position, word)
    return read(file, find_dialect(dialect, file, 32 if marks is LANDMARKS_32 else 51))


def _recognise(file: ConfigFile) -> _Layout:
    """The layout with more matching landmarks; on a tie, the distance between two landmarks decides."""
    scores = [sum(_matches(file.line(place), word) for place, word in marks.items()) for marks, _ in _LAYOUTS]
    if scores[0] != scores[1]:
        return _LAYOUTS[scores.index(max(scores))]
    # A line too few near the top moves all landmarks, but not one against the other.
    trainer, title = _places(file, "trainer"), _places(file, "=eval_params")
    if trainer and title:
        return _LAYOUTS[0 if title[0] - trainer[0] <= 5 else 1]
    raise _unrecognised(file)


def _places(file: ConfigFile, word: str) -> list[int]:
    return [place for place, line in enumerate(file.lines, 1) if _matches(line, word)]


def _matches(line: Line | None, word: str) -> bool:
    if line is None:
        return False
    return line.title == word[1:] if word.startswith("=") else line.key == word and ":" in line.text


def _check(file: ConfigFile, position: int, word: str) -> None:
    line = file.line(position)
    if line is None and word not in _ALWAYS:  # what is cut off at the end is absent
        return
    if _matches(line, word):
        return
    if line is not None and line.is_unused and word[0] != "=" and not _places(file, word):
        return
    expected = f"the title {word[1:]}" if word.startswith("=") else f"{word}:..."
    found = f'"{shorten(line.text)}"' if line else "the end of the file"
    raise file.error(position, f"expected {expected}, found {found}{_hint(file, line, position, word)}")


def _hint(file: ConfigFile, line: Line | None, position: int, word: str) -> str:
    """How to correct it: the word is misspelt here, or is on another line."""
    elsewhere = _places(file, word)
    if elsewhere:
        place = elsewhere[0]
        trouble = "is missing" if place < position else "is too much"
        return f"; it is on line {file.number_of(place)}, so a line above it {trouble}"
    here = "" if line is None else line.title or line.key
    return f'; did you mean "{word.lstrip("=")}"?' if nearest(here, [word.lstrip("=")]) else ""


# Words of a title or a file's name, the test that they stand for, and what lowbit has instead.
_OTHER_TESTS = (
    ("lite_arm", "Paddle Lite on ARM", "lowbit export writes an ONNX file"),
    ("lite", "Paddle Lite", "lowbit export writes an ONNX file"),
    ("serving", "Paddle Serving", "lowbit export writes a model that a server can load"),
    ("cpp", "inference in C++", "lowbit verify runs the exported model in three engines"),
    ("paddle2onnx", "Paddle2ONNX", "lowbit export --format onnx, or lowbit tipc init --chains onnx"),
    ("dy2static", "training in static graphs", "add to_static_train to the trainer line of train_infer"),
    ("to_static", "training in static graphs", "add to_static_train to the trainer line of train_infer"),
)


def _other_test(file: ConfigFile) -> str | None:
    """The message for a config of another test of Paddle's ecosystem."""
    names = (file.lines[0].title or "", Path(file.source).name)
    for name in names:
        for word, test, instead in _OTHER_TESTS:
            if word in name.lower():
                return f"this is a config of the test of {test}, which lowbit does not run; {instead}"
    return None


def _unrecognised(file: ConfigFile) -> LowbitError:
    first, found = file.lines[0], _places(file, "trainer")
    other = None if found else _other_test(file)
    if first.title not in (None, "train_params") and not found:
        other = other or "this is a config of another test; lowbit runs those like train_infer_python.txt"
        return file.error(1, f"expected the title train_params, found {shorten(first.title)}: {other}")
    position = found[0] if found else 13
    return file.error(
        position,
        "expected trainer:... on line 13 (layout of 32 lines) or on line 15 (layout of 51 lines), "
        + (f"found it on line {file.number_of(position)}" if found else "found it nowhere")
        + (f": {other}" if other else ""),
    )
