from __future__ import annotations

import pytest

PARTS = ("training", "evaluation", "export", "released", "inference")


def test_every_value_is_read_from_its_line(change):
    config = change("pact")
    found = {
        field.number: (field.key, field.value)
        for part in (config, *(getattr(config, name) for name in PARTS))
        for field in vars(part).values()
        if hasattr(field, "number")
    }
    [trainer] = config.training.trainers
    for field in (trainer.train, trainer.export):
        found[field.number] = (field.key, field.value)
    assert found.pop(5) == ("--device", "gpu|gpu")
    for number, (key, value) in found.items():
        assert config.file.line(number).text == f"{key}:{value}"
    places = {2, 3, 4, 6, 7, 8, 9, 10, 11, 13, 14, 17, 20, 21, 22, 24, 25, 27, 28, 29, 30, 31, 32}
    assert set(found) == places
    assert (trainer.name, trainer.quantized) == ("pact_train", True)


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("use-gpu:True|False", "--device", "gpu|cpu"),
        ("use_gpu:null", "--device", "null"),
        ("--use-gpu:True|True", "--use-gpu", "True|True"),
        ("--device:gpu|cpu", "--device", "gpu|cpu"),
    ],
)
def test_line_5_becomes_an_option(change, line, key, value):
    field = change("norm", {5: line}).training.use_gpu
    assert (field.key, field.value, field.number) == (key, value, 5)
