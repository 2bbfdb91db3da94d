"""The 51-line layout of PaddleOCR's and PaddleClas's kind: what stands on which line, and its order."""

from __future__ import annotations

from lowbit.tipc.config import ChainConfig, Evaluation, Export, Inference, Released, Trainer, Training
from lowbit.tipc.lines import ConfigFile

# Titles are written with a leading "=". Only these words are the same in every repository's configs.
LANDMARKS = {
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
_ORDER = ("use_gpu", "output_dir", "epochs", "pretrained", "autocast", "batch_size", "extra")
_ORDER_ON_MACHINES = ("use_gpu", "output_dir", "pretrained", "epochs", "autocast", "batch_size", "extra")
_TRAINERS = ((16, 30), (17, 31), (18, 32), (19, 33), (20, 34), (21, 35))  # lines of training and of export
_PACT = 17


def read_51(file: ConfigFile) -> ChainConfig:
    """The parts of a config whose landmarks are those of this layout."""
    field = file.field
    return ChainConfig(
        file=file,
        layout=51,
        model_name=field(2),
        python=field(3),
        training=Training(
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
            trainers=tuple(
                Trainer(field(train).key, field(train), field(export), quantized=train == _PACT)
                for train, export in _TRAINERS
            ),
            order=_ORDER,
            order_on_machines=_ORDER_ON_MACHINES,
        ),
        evaluation=Evaluation(command=field(24), extra=field(25)),
        export=Export(save=field(28), weights=field(29), subfolder=field(36)),
        released=Released(weights=field(37), export=field(38), folder=None, quantized=field(39)),
        inference=Inference(
            script=field(40),
            use_gpu=field(41),
            mkldnn=field(42),
            threads=field(43),
            batch_size=field(44),
            tensorrt=field(45),
            precision=field(46),
            model_dir=field(47),
            image=field(48),
            train_image=field(12),
            benchmark=field(50),
            extra=field(51),
        ),
    )
