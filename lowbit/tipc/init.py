"""Writes a `test_tipc` folder: configs, pages, scripts, and the table of all models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from lowbit.errors import LowbitError, did_you_mean
from lowbit.tipc.fields import Words

_CARDS = "0|0,1"
_MACHINES = "192.168.0.1,192.168.0.2;0,1"


@dataclass(frozen=True, kw_only=True)
class Scripts:
    """A repository's commands and files."""

    model: str
    python: str = "python"
    train: str
    evaluate: str
    export: str
    infer: str
    data: str = "./lite_data"
    image: str = "./images/demo.jpg"
    checkpoint: str = "latest.pdparams"


@dataclass(frozen=True, kw_only=True)
class Chain:
    """One test. `extra` is appended to the training command, `evaluation` to the evaluation command; the rest
    is for its page and the table of models."""

    config: str
    page: str
    trainer: str
    short: str
    title: str
    about: str
    exported: str = "`inference.json`, `inference.pdiparams`, `inference.yml` (Paddle Inference)"
    change: str
    extra: str = ""
    evaluation: str = ""
    replaces_training: str | None = None
    gpus: str = _CARDS


_EPOCHS = (
    "Line 6 has the epochs and line 8 the batch size of each mode. Line 14 is the training command; its "
    "learning rate is for the small batches of lite data."
)
CHAINS = {
    "norm": Chain(
        config="train_infer_python.txt",
        page="test_train_inference_python.md",
        trainer="norm_train",
        short="training",
        title="Training and inference",
        about="Trains in fp32, evaluates, exports, and runs the exported model.",
        change=_EPOCHS,
    ),
    "pact": Chain(
        config="train_pact_infer_python.txt",
        page="test_train_pact_inference_python.md",
        trainer="pact_train",
        short="PACT",
        title="Quantization-aware training with PACT, and inference",
        about="Trains with 8-bit weights and inputs, whose clipping bounds are learned (PACT), and exports "
        "the quantized model. The original exported it as if it were fp32, with random weights, and did not "
        "notice: here the exported model must be quantized, and must answer as the trained one.",
        exported="`inference.*` with the weights' integers; training also leaves `qat_inference.*`",
        change=f"{_EPOCHS} `--pact_quant` on line 14 switches PACT on.",
        extra="--pact_quant",
    ),
    "amp": Chain(
        config="train_amp_infer_python.txt",
        page="test_train_amp_inference_python.md",
        trainer="amp_train",
        short="mixed precision",
        title="Training in mixed precision, and inference",
        about="Trains in fp16 at level O2. On a CPU, which has no fp16 kernels, the precision is emulated: "
        "the numbers are those of fp16, the speed is not.",
        change=f"{_EPOCHS} `--amp_level=O1` there is the other level, `--amp_dtype=bf16` the other format.",
        extra="--amp_level=O2",
    ),
    "qt": Chain(
        config="train_qt_infer_python.txt",
        page="test_train_qt_inference_python.md",
        trainer="qt_train",
        short="W4A4G4",
        title="Low-precision training (W4A4G4), and inference",
        about="Trains with 4-bit weights, inputs and gradients, and exports the model with its 4-bit weights "
        "and inputs.",
        exported="`inference.*`, quantized as in training",
        change=f"{_EPOCHS} `--recipe` there names the recipe. Others are in `recipes/`; those with `mse` "
        "search their scales for every image, also in the exported model, which is large and slow to open. "
        "`-c` names the config, whose images have 64 pixels a side, as on line 17; for whole data give your "
        "model's.",
        extra="-c configs/lite.yaml --recipe recipes/qt_W4_minmax_det__A4_minmax_det__G4_minmax_sto.yaml",
        evaluation="--resize-size=72 --crop-size=64",
        replaces_training="tools/train_qt.py",
    ),
    "fleet": Chain(
        config="train_fleet_infer_python.txt",
        page="test_train_fleet_inference_python.md",
        trainer="fleet_train",
        short="several machines",
        title="Training on several machines, and inference",
        about="Trains on two machines with two cards each: start it on both. Without cards it is 2 processes "
        "on this machine's CPU.",
        change=f"{_EPOCHS} Line 4 has the machines' addresses and the cards.",
        gpus=_MACHINES,
    ),
    "ptq": Chain(
        config="train_ptq_infer_python.txt",
        page="test_train_ptq_inference_python.md",
        trainer="ptq_train",
        short="post-training quantization",
        title="Post-training quantization, and inference",
        about="Trains in fp32, then quantizes to 8 bits without training: scales are chosen from some "
        "images. Line 22, which in other configs only exports, does both.",
        exported="`inference.*` with the weights' integers, `inference.onnx`; the calibrated run in `ptq/`",
        change=f"{_EPOCHS} Line 22 has the images to calibrate on, and may have `--algo=KL`, `mse` or "
        "`abs_max`.",
    ),
    "onnx": Chain(
        config="paddle2onnx_infer_python.txt",
        page="test_paddle2onnx.md",
        trainer="onnx_train",
        short="ONNX",
        title="Training, and inference with ONNX Runtime",
        about="Trains in fp32, exports an ONNX file, and runs it in ONNX Runtime.",
        exported="`inference.onnx`, `inference.yml`",
        change=f"{_EPOCHS} Line 22 exports to ONNX with lowbit's own exporter.",
    ),
}


def training_command(scripts: Scripts, chain: Chain) -> str:
    """The command of line 14: the repository's, with the chain's options."""
    command = scripts.train
    if chain.replaces_training:
        options = command.split(" ")[1:]
        command = " ".join((chain.replaces_training, *options))
    return f"{command} {chain.extra}".strip()


def config_text(scripts: Scripts, name: str) -> str:
    """A chain's config.

    >>> scripts = Scripts(model="resnet18", train="train.py", evaluate="e.py", export="x.py", infer="i.py")
    >>> config_text(scripts, "pact").splitlines()[13]
    'pact_train:train.py --pact_quant'
    """
    chain = CHAINS[name]
    folder = f"./output/{scripts.model}_infer/"
    words: Words = (
        _title("train_params"),
        f"model_name:{scripts.model}",
        f"python:{scripts.python}",
        f"gpu_list:{chain.gpus}",
        f"use-gpu:{'|'.join(['True'] * len(chain.gpus.split('|')))}",
        "--epochs:lite_train_lite_infer=5|lite_train_whole_infer=5|whole_train_whole_infer=90",
        "--output-dir:./output/",
        "--batch-size:lite_train_lite_infer=4|lite_train_whole_infer=4|whole_train_whole_infer=128",
        "--pretrained:null",
        f"train_model_name:{scripts.checkpoint}",
        f"--data-path:{scripts.data}",
        "##",
        f"trainer:{chain.trainer}",
        f"{chain.trainer}:{training_command(scripts, chain)}",
        "##",
        _title("eval_params"),
        f"eval:{scripts.evaluate} {chain.evaluation}".strip(),
        "##",
        _title("infer_params"),
        *_export_lines(scripts, name, folder),
        "##",
        *_infer_lines(scripts, name, folder),
    )
    return "\n".join(words) + "\n"


def _title(word: str) -> str:
    return f"{'=' * 27}{word}{'=' * 27}"


def _export_lines(scripts: Scripts, name: str, folder: str) -> Words:
    """Lines 20 to 25."""
    keys, export = ("--save-inference-dir", "--pretrained"), scripts.export
    if name == "ptq":
        keys = ("--output_dir", "--model_path")
        export = f"deploy/ptq_python/post_quant.py --data={scripts.data} --batch_num=2 --batch_size=4"
    elif name == "onnx":
        export = f"{scripts.export} --format=onnx"
    return (
        f"{keys[0]}:{folder}",
        f"{keys[1]}:",
        f"norm_export:{export}",
        "##",
        f"train_model:./pretrain_models/{scripts.model}_pretrained.pdparams",
        f"infer_export:{export}",
    )


def _infer_lines(scripts: Scripts, name: str, folder: str) -> Words:
    """Lines 27 to 32."""
    if name == "onnx":
        return (
            "inference:deploy/onnx_python/infer.py",
            "--use-gpu:null",
            "--batch_size:1",
            f"--onnx_file:{folder}",
            f"--img_path:{scripts.image}",
            "--benchmark:null",
        )
    return (
        f"inference:{scripts.infer}",
        f"--use-gpu:{'False' if name == 'fleet' else 'True|False'}",
        "--batch-size:1",
        f"--model-dir:{folder}",
        f"--img-path:{scripts.image}",
        "--benchmark:True",
    )


SCRIPT_NAMES = ("prepare.sh", "test_train_inference_python.sh", "common_func.sh")
_README = "README.md"
_OURS = "<!-- Written by lowbit tipc init"


def parse_chains(text: str) -> list[str]:
    """Parse a comma-separated list of chains, or `all`.

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

    A file with other content is an error, unless `force`. Existing pages and scripts are not changed; the
    README is rewritten if lowbit wrote it.
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
