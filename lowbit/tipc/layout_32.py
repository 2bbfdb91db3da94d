"""The 32-line layout: what stands on which line, and in which order the original passes it on."""

from __future__ import annotations

from lowbit.tipc.config import ChainConfig, Evaluation, Export, Inference, Released, Trainer, Training
from lowbit.tipc.lines import ConfigFile, Field

# Titles are written with a leading "=". Only these words are the same in every repository's configs.
LANDMARKS = {
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
_ORDER = ("output_dir", "epochs", "pretrained", "batch_size", "extra", "use_gpu")


def read_32(file: ConfigFile) -> ChainConfig:
    """The parts of a config whose landmarks are those of this layout."""
    field = file.field
    return ChainConfig(
        file=file,
        layout=32,
        model_name=field(2),
        python=field(3),
        training=Training(
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
            order=_ORDER,
            order_on_machines=_ORDER,
        ),
        evaluation=Evaluation(command=field(17), extra=field(11)),
        export=Export(save=field(20), weights=field(21), subfolder=None),
        released=Released(
            weights=field(24), export=field(25), folder=field(20), quantized=_quantizes(field(14))
        ),
        inference=Inference(
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
    """Post-training quantization also makes a quantized model of released weights."""
    found = trainer.key == "ptq_train"
    return Field(trainer.source, trainer.number, trainer.key, "True") if found else None


def _as_option(field: Field) -> Field:
    """Line 5 as something that can be passed on: `use-gpu` is no option, `--device` of train.py is."""
    if field.key.replace("_", "-") != "use-gpu":
        return field
    words = {"True": "gpu", "False": "cpu"}
    parts = (words.get(part.strip(), part.strip()) for part in field.value.split("|"))
    return Field(field.source, field.number, "--device", "|".join(parts))
