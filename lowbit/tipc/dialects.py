"""The dialects of a chain test: what the generic runner and PaddleClas's runner do with the same lines.

Both read the layout of 51 lines. PaddleClas's runner looks for weights in `{run}/{model_name}/latest`, runs
inference in `deploy/`, and adds options of its own to the training command.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from lowbit.errors import LowbitError, did_you_mean
from lowbit.tipc.fields import ConfigFile, Words

# The names that PaddleClas's runner knows to train a `RecModel`, whatever they are called.
_RECOGNITION_MODELS = ("GeneralRecognition", "MetaBIN_ResNet50")
_URL_KEYS = ("pretrained_model_url", "inference_model_url")
_AMP_WORDS = ("-o", "AMP.scale_loss=128", "-o", "AMP.use_dynamic_loss_scaling=True", "-o", "AMP.level=O1")


@dataclass(frozen=True, kw_only=True)
class ChainDialect:
    """The conventions of a runner. Inference runs in `inference_folder`, relative to the root.

    `cards_option` is the launcher's option for cards. `train_words` and `launched_words` are appended to the
    training command; `launched_words` only with several cards.
    """

    name: str
    inference_folder: str = "."
    cards_option: str = "--gpus"
    train_words: Words = ()
    launched_words: Words = ()

    @property
    def is_paddleclas(self) -> bool:
        return self.name == "paddleclas"

    def weights_folder(self, run: str, model_name: str) -> str:
        """The folder in a run's folder in which training writes its checkpoints.

        >>> PADDLECLAS.weights_folder("./out/run", "ResNet50")
        './out/run/ResNet50'
        """
        return f"{run}/{trained_name(model_name)}" if self.is_paddleclas else run

    def from_inference(self, path: str) -> str:
        """A path relative to the root, made relative to the inference folder.

        >>> PADDLECLAS.from_inference("./test_tipc/output")
        '../test_tipc/output'
        """
        if self.inference_folder == "." or posixpath.isabs(path):
            return path
        return posixpath.relpath(path, self.inference_folder)

    def from_root(self, path: str) -> str:
        """A path relative to the inference folder, made relative to the root.

        >>> PADDLECLAS.from_root("../dataset/val")
        'dataset/val'
        """
        if self.inference_folder == "." or posixpath.isabs(path):
            return path
        return posixpath.normpath(posixpath.join(self.inference_folder, path))


GENERIC = ChainDialect(name="generic")
PADDLECLAS = ChainDialect(
    name="paddleclas",
    inference_folder="deploy",
    cards_option="--devices",
    train_words=("-o", "Global.print_mem_info=True"),
    launched_words=("-o", "Global.log_ranks=0,1,2,3,4,5,6,7"),
)
DIALECTS = {dialect.name: dialect for dialect in (GENERIC, PADDLECLAS)}


def find_dialect(name: str | None, file: ConfigFile, layout: int) -> ChainDialect:
    """The dialect of that name; without a name, recognised from the config's keys."""
    if name is not None:
        if name not in DIALECTS:
            raise LowbitError(f'unknown dialect "{name}", {did_you_mean(name, DIALECTS)}')
        return DIALECTS[name]
    output_dir = file.line(8 if layout == 51 else 7)
    url = file.line(36) if layout == 51 else None
    if output_dir is not None and output_dir.key == "-o Global.output_dir":
        return PADDLECLAS
    return PADDLECLAS if url is not None and url.key in _URL_KEYS else GENERIC


def trained_name(model_name: str) -> str:
    """The folder in which PaddleClas's training writes a model's checkpoints.

    >>> trained_name("GeneralRecognition_PPLCNet_x2_5")
    'RecModel'
    """
    return "RecModel" if any(word in model_name for word in _RECOGNITION_MODELS) else model_name


def amp_words(autocast: str) -> Words:
    """PaddleClas's options for a value of `auto_cast`: mixed precision for `amp`, else fp32."""
    if autocast == "amp":
        return ("-o", "AMP.use_amp=True", *_AMP_WORDS)
    return ("-o", "AMP.use_amp=False")
