from __future__ import annotations

PARTS = ("training", "evaluation", "export", "released", "inference")


def test_every_value_is_read_from_its_line(change):
    config = change("generic")
    fields = [
        field
        for part in (config, *(getattr(config, name) for name in PARTS))
        for field in vars(part).values()
        if hasattr(field, "number")
    ]
    fields += [field for one in config.training.trainers for field in (one.train, one.export)]
    for field in fields:
        assert config.file.line(field.number).text == f"{field.key}:{field.value}"
    titles_separators_and_log = {1, 14, 22, 23, 26, 27, 49}
    assert {field.number for field in fields} == set(range(1, 52)) - titles_separators_and_log
    names = [one.name for one in config.training.trainers]
    assert names == ["norm_train", "pact_train", "fpgm_train", "distill_train", "null", "null"]
    assert [one.quantized for one in config.training.trainers] == [False, True, False, False, False, False]
