from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowbit.config import Config, dump_config, list_configs, load_config, override_config, validate
from lowbit.config.load import given_options, parse_override, set_value
from lowbit.config.schema import GlobalSection
from lowbit.config.transform_ops import OPS
from lowbit.errors import LowbitError, readable
from tests.support.paddleclas import MOBILENET, RESNET18, SMALL, load_text, mistake

CONFIGS = Path(__file__).parents[2] / "configs"


def test_overrides_of_every_kind(tmp_path):
    config = load_text(
        tmp_path,
        RESNET18,
        "Global.epochs=2",
        "Global.use_visualdl=null",
        "Global.image_shape=[3, 32, 48]",
        "DataLoader.Train.sampler.batch_size=8",
        "DataLoader.Train.dataset.transform_ops.0.RandCropImage.size=[48, 32]",
        "DataLoader.Eval.dataset.transform_ops.1.CropImage.size=[48, 32]",
        "DataLoader.Eval.dataset.transform_ops.2={NormalizeImage: {scale: 1/2}}",
        "Loss.Train.0.CELoss.epsilon=1e-1",
        "Metric.Eval.0.TopkAcc.topk.1=3",
        "AMP.level=O2",
        "Arch.kwargs={width: 8, note: null}",
        " Global.seed = 7",
    )
    assert config.Global.epochs == 2
    assert config.Global.use_visualdl is None
    assert config.Global.image_shape == (3, 32, 48)
    assert config.Global.seed == 7
    assert config.DataLoader.Train.sampler.batch_size == 8
    assert config.DataLoader.Eval.sampler.batch_size == 64
    assert config.DataLoader.Train.dataset.transform_ops[0].size == (48, 32)
    assert config.DataLoader.Eval.dataset.transform_ops[2].scale == 0.5
    assert config.Loss.Train[0].CELoss.epsilon == 0.1
    assert config.Metric.Eval[0].TopkAcc.topk == [1, 3]
    assert config.amp_level == "O2"
    assert config.Arch.kwargs == {"width": 8, "note": None}


def test_the_last_override_wins(tmp_path):
    assert load_text(tmp_path, SMALL, "Global.epochs=3", "Global.epochs=4").Global.epochs == 4


def test_an_option_wins_over_an_override_and_is_named_in_its_mistake(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(SMALL)
    config = load_config(file, ["Global.epochs=3"], {"--epochs": ("Global.epochs", 5)})
    assert config.Global.epochs == 5
    with pytest.raises(LowbitError, match=r"^--epochs: Global\.epochs: must be greater than or equal to 1"):
        load_config(file, [], {"--epochs": ("Global.epochs", 0)})


@pytest.mark.parametrize(
    "code",
    [
        "__import__('os').getcwd()",
        '__import__("os").getcwd()',
        "os.getcwd()",
        "lambda:1",
        "1+1",
        "exec('x=1')",
    ],
)
def test_values_are_never_evaluated(tmp_path, code):
    assert load_text(tmp_path, SMALL, f"Global.output_dir={code}").Global.output_dir == code


def test_python_objects_are_refused(tmp_path):
    folder = tmp_path / "made"
    value = f"!!python/object/apply:os.mkdir ['{folder}']"
    message = mistake(tmp_path, SMALL, f"Global.output_dir={value}")
    assert "the value is not valid YAML" in message
    assert "not valid YAML" in mistake(tmp_path, SMALL.replace("epochs: 2", f"output_dir: {value}"))
    assert not folder.exists()


def test_an_override_does_not_reach_what_an_alias_shared(tmp_path):
    text = SMALL.replace("    sampler: {batch_size: 8}", "    sampler: &s {batch_size: 8}")
    text += "  Eval: {dataset: {name: Digits}, sampler: *s}\n"
    config = load_text(tmp_path, text, "DataLoader.Train.sampler.batch_size=2")
    assert config.DataLoader.Train.sampler.batch_size == 2
    assert config.DataLoader.Eval.sampler.batch_size == 8


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("Global.epochs", "-o Global.epochs: expected Section.key=value, such as -o Global.epochs=2"),
        ("=2", "expected Section.key=value"),
        ("Global..epochs=2", "expected Section.key=value"),
        (".=2", "expected Section.key=value"),
        ("", "expected Section.key=value"),
        ("Global.epochs=[1", "the value is not valid YAML; quote it if it is text"),
        ("Global.output_dir=a: b: c", "the value is not valid YAML"),
        ("Global.epochs={}", "Global.epochs: expected a whole number, got {}"),
        ("Global.epochs=two", "-o Global.epochs=two: Global.epochs: expected a whole number, got 'two'"),
        ("Global.epochs=", "Global.epochs: expected a whole number, got None"),
        ("Globl.epochs=2", 'Globl: unknown key, did you mean "Global"?'),
        ("Global.epohcs=2", 'Global.epohcs: unknown key, did you mean "epochs"?'),
        ("epochs=2", "epochs: unknown key"),
        ("Arch.name.x=1", "Arch.name is a value, it has no key 'x'"),
        (
            "DataLoader.Train.dataset.transform_ops.2.CropImage.size=3",
            "DataLoader.Train.dataset.transform_ops is a list of 2; expected an index from 0 to 1, got '2'",
        ),
        ("DataLoader.Train.dataset.transform_ops.-1=3", "expected an index from 0 to 1, got '-1'"),
        ("DataLoader.Train.dataset.transform_ops.first=3", "expected an index from 0 to 1, got 'first'"),
        ("DataLoader.Train.dataset.transform_ops.²=3", "expected an index from 0 to 1, got '²'"),
    ],
)
def test_mistakes_in_overrides(tmp_path, override, message):
    text = mistake(tmp_path, SMALL, override)
    assert text.startswith(f"-o {override}: ")
    assert message in text


def test_an_index_into_an_empty_list():
    with pytest.raises(LowbitError, match="a is a list of 0; expected no index at all, got '0'"):
        set_value({"a": []}, "a.0", 1, "-o a.0=1")


@pytest.mark.parametrize("text", ["- a\n", "just words\n", "5\n"])
def test_a_file_without_sections(tmp_path, text):
    assert "expected sections such as `Global:` and `Arch:`" in mistake(tmp_path, text)


def test_a_missing_file(tmp_path):
    with pytest.raises(LowbitError, match=r"no config file .*nowhere\.yaml"):
        load_config(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("text", [RESNET18, MOBILENET, SMALL])
def test_dumped_and_loaded_again(tmp_path, text):
    config = load_text(tmp_path, text)
    again = tmp_path / "again.yaml"
    again.write_text(dump_config(config), "utf-8")
    assert load_config(again) == config


def test_override_config_starts_from_a_config(tmp_path):
    config = load_text(tmp_path, RESNET18)
    assert override_config(config, ["Global.epochs=3"]).Global.epochs == 3
    assert override_config(config, []) == config
    assert config.Global.epochs == 120
    with pytest.raises(LowbitError, match=r"Global\.epoch: unknown key"):
        override_config(config, ["Global.epoch=3"])


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_config_we_ship(file):
    config = load_config(file)
    assert config.DataLoader.Train is not None and config.DataLoader.Eval is not None
    first = file.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert f"`lowbit train -c {file.stem}`" in first
    size = config.DataLoader.Eval.dataset.transform_ops[-2:]
    crops = [op.size for op in size if hasattr(op, "size")]
    assert all(crop == config.Global.image_shape[1] for crop in crops)


# From here on: any structure at all.

_WORDS = [
    *Config.model_fields,
    *GlobalSection.model_fields,
    *OPS,
    *("Train", "Eval", "dataset", "sampler", "loader", "name", "path", "split", "transform_ops", "size"),
    *("lr", "values", "decay_epochs", "CELoss", "TopkAcc", "topk", "regularizer", "coeff", "Digits"),
    *("AutoDataset", "Cosine", "Piecewise", "quant", "kwargs", "pretrained"),
]
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(_WORDS)
)
_KEYS = st.sampled_from(_WORDS) | st.text(max_size=5) | st.integers() | st.booleans() | st.none()
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=15,
)
_RELAXED = settings(max_examples=200, suppress_health_check=list(HealthCheck))


@_RELAXED
@given(st.dictionaries(_KEYS, _ANYTHING, max_size=4))
def test_any_structure_is_a_config_or_a_lowbit_error(values):
    try:
        assert isinstance(validate(values, {}, "any"), Config)
    except LowbitError as error:
        assert str(error).startswith("any: ")


def _paths(values, at=()):
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in items:
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from _paths(value, (*at, key))


_FULL = yaml.safe_load(MOBILENET)


@settings(_RELAXED, max_examples=80)
@given(st.sampled_from(list(_paths(_FULL))), _ANYTHING)
def test_anything_at_any_place_is_a_config_or_a_lowbit_error(tmp_path_factory, at, value):
    values = yaml.safe_load(MOBILENET)
    here = values
    for key in at[:-1]:
        here = here[key]
    here[at[-1]] = value
    try:
        text = yaml.safe_dump(values, allow_unicode=True)
        config = load_text(tmp_path_factory.getbasetemp(), text)
    except LowbitError as error:
        assert "c.yaml" in str(error)
        return
    again = load_text(tmp_path_factory.getbasetemp(), dump_config(config))
    assert again == config


@_RELAXED
@given(
    st.text()
    | st.tuples(st.sampled_from(_WORDS), st.sampled_from(_WORDS), st.text()).map(
        "{0[0]}.{0[1]}={0[2]}".format
    )
)
def test_any_override_is_taken_or_refused(tmp_path_factory, override):
    try:
        load_text(tmp_path_factory.getbasetemp(), SMALL, override)
    except LowbitError as error:
        assert readable(f"-o {override}") in str(error) or "c.yaml" in str(error)


@_RELAXED
@given(
    output_dir=st.text(),  # PyYAML writes a few characters that it does not read back
    rate=st.floats(0, 1e6),
    epochs=st.integers(1, 10**12),
    kwargs=st.dictionaries(
        st.text(), _ANYTHING.filter(lambda value: not isinstance(value, dict)), max_size=2
    ),
)
def test_dump_and_load_are_the_identity(tmp_path_factory, output_dir, rate, epochs, kwargs):
    values = yaml.safe_load(SMALL)
    values["Global"] = {"output_dir": output_dir, "epochs": epochs}
    values["Optimizer"] = {"lr": {"learning_rate": rate}}
    try:
        values["Arch"]["kwargs"] = kwargs
        config = validate(values, {}, "any")
    except LowbitError:  # kwargs with keys that are no text, or text that is no Unicode
        return
    again = load_text(tmp_path_factory.getbasetemp(), dump_config(config))
    assert again == config


def test_parse_override_keeps_what_follows_the_first_equals_sign():
    assert parse_override("Global.output_dir=a=b") == ("Global.output_dir", "a=b")
    assert parse_override(f"Global.output_dir={os.sep}tmp") == ("Global.output_dir", "/tmp")


_SIZED = """
Global: {GLOBAL}
Arch: {name: resnet18}
DataLoader:
  Eval:
    dataset:
      name: Digits
      split: val
      transform_ops:
        - ResizeImage: {resize_short: 36}
        - CropImage: {size: [40, 32]}
        - NormalizeImage:
"""


def test_an_image_shape_that_contradicts_the_transforms_is_an_error(tmp_path):
    shape = _SIZED.replace("{GLOBAL}", "{image_shape: [3, 32, 32]}")
    with pytest.raises(
        LowbitError, match=r"c\.yaml:2: Global\.image_shape: \[3, 32, 32\], but DataLoader\.Eval"
    ):
        load_text(tmp_path, shape)
    assert load_text(tmp_path, shape, "Global.image_shape=[3, 32, 40]").Global.image_shape == (3, 32, 40)
    with pytest.raises(
        LowbitError, match=r"^-o Global\.image_shape=.*images of \[3, 32, 40\]; make them equal$"
    ):
        load_text(tmp_path, shape, "Global.image_shape=[3, 64, 64]")


def test_an_image_shape_that_is_left_out_is_that_of_evaluation(tmp_path):
    assert load_text(tmp_path, _SIZED.replace("{GLOBAL}", "{epochs: 2}")).Global.image_shape == (3, 32, 40)


@pytest.mark.parametrize("source", ["digits", "digits.yaml", "configs/digits.yaml"])
def test_a_config_by_name_from_any_folder(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    assert load_config(source) == load_config(CONFIGS / "digits.yaml")


def test_a_misspelt_config_gets_the_nearest():
    with pytest.raises(LowbitError, match=r'^unknown config "digit": did you mean "digits"\?$'):
        load_config("digit")


def test_the_list_of_configs():
    found = {config.name: config for config in list_configs()}
    assert list(found) == sorted(file.stem for file in CONFIGS.glob("*.yaml"))
    for config in found.values():
        assert config.model == load_config(config.name).Arch.name
        assert config.description and "`lowbit" not in config.description
    assert found["digits"].to_dict()["model"] == "resnet20"


def test_the_original_calls_the_recipe_qconfigdir(tmp_path):
    path = "qt_config/qt_W4_mse_det__A4_mse_det__G4_minmax_sto.yaml"
    assert load_config("digits", [f"qconfigdir={path}"]).Recipe == path
    with pytest.raises(LowbitError, match=r"^-o qconfigdir=a: qconfigdir and Recipe both say"):
        load_config("digits", ["Recipe=b", "qconfigdir=a"])


def test_only_what_was_given():
    assert given_options(epochs=2, output_dir=None) == {"--epochs": ("Global.epochs", 2)}
    assert given_options(output_dir=Path("x")) == {"--output-dir": ("Global.output_dir", "x")}
    assert set(given_options(epochs=0, ema=0.0)) == {"--epochs", "--ema"}


def test_a_number_format_needs_a_level():
    assert given_options(amp_level="O1", amp_dtype="bf16")["--use-amp"] == ("AMP.use_amp", True)
    with pytest.raises(LowbitError, match="add --amp_level"):
        given_options(amp_dtype="bf16")
