from __future__ import annotations

import sys

import paddle
import pytest

from lowbit.errors import LowbitError
from lowbit.models import build_model

OWN = """
import paddle

NOT_A_MODEL = 3


class Net(paddle.nn.Layer):
    def __init__(self, num_classes=10, width=8):
        super().__init__()
        self.fc = paddle.nn.Linear(width, num_classes)


class ClasNet(paddle.nn.Layer):
    def __init__(self, class_num):
        super().__init__()
        self.fc = paddle.nn.Linear(4, class_num)


class Fixed(paddle.nn.Layer):
    pass


class Needy(paddle.nn.Layer):
    def __init__(self, depth, num_classes):
        super().__init__()


class Other:
    pass


def make(num_classes, **options):
    return Net(num_classes, **options)


def make_nothing():
    return None
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's in the working folder, which is on no path; returns its name."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    sys.modules.pop(name, None)


def test_own_model_from_the_working_folder(own):
    model = build_model(f"{own}:Net", num_classes=5, width=3)
    assert list(model.fc.weight.shape) == [3, 5]


def test_number_of_classes_under_paddleclas_word(own):
    assert list(build_model(f"{own}:ClasNet", num_classes=6).fc.weight.shape) == [4, 6]


def test_own_model_without_a_number_of_classes(own):
    assert isinstance(build_model(f"{own}:Fixed", num_classes=6), paddle.nn.Layer)


def test_function_that_builds_a_model(own):
    assert list(build_model(f"{own}:make", num_classes=2, width=9).fc.weight.shape) == [9, 2]


def test_module_in_a_package(tmp_path, monkeypatch):
    (tmp_path / "pack_for_build").mkdir()
    (tmp_path / "pack_for_build" / "nets.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert build_model("pack_for_build.nets:Net", num_classes=5).fc.weight.shape[1] == 5
    with pytest.raises(LowbitError, match=r'no module "pack_for_build\.netz"'):
        build_model("pack_for_build.netz:Net", num_classes=5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnt18", 'unknown model "resnt18": did you mean "resnet18"'),
        ("RESNET18", 'did you mean "resnet18"|did you mean "ResNet18"'),
        ("vgg", "package.module:Class"),
        ("no_such_module_here:Net", 'no module "no_such_module_here".*PYTHONPATH'),
        (":Net", "write .package.module:Class."),
        ("module:", "write .package.module:Class."),
        ("../module.py:Net", "write .package.module:Class."),
        ("OWN:Nett", 'has no "Nett": did you mean "Net"'),
        ("OWN:Other", "is not a paddle.nn.Layer"),
        ("OWN:NOT_A_MODEL", "is a int, not a paddle.nn.Layer"),
        ("OWN:make_nothing", "gave a NoneType"),
        ("OWN:Needy", "needs a value for: depth"),
    ],
)
def test_wrong_names(own, name, message):
    with pytest.raises(LowbitError, match=message):
        build_model(name.replace("OWN", own), num_classes=5)


def test_unknown_options(own):
    with pytest.raises(LowbitError, match=r'"mobilenet_v2" has no option "scal": did you mean "scale"'):
        build_model("mobilenet_v2", num_classes=5, scal=0.5)
    with pytest.raises(LowbitError, match='"resnet18" has no option "scale": it takes none'):
        build_model("resnet18", num_classes=5, scale=0.5)
    with pytest.raises(LowbitError, match='has no option "widht": did you mean "width"'):
        build_model(f"{own}:Net", num_classes=5, widht=3)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "import no_such_dependency",
            r"failed at .*broken_\w+\.py:1: ModuleNotFoundError.*no_such_dependency",
        ),
        ("x = 1\n1 / 0", r"failed at .*broken_\w+\.py:2: ZeroDivisionError"),
        ("x = 1\ny = (", r"failed at .*broken_\w+\.py:2: SyntaxError"),
    ],
)
def test_module_that_does_not_import(tmp_path, monkeypatch, source, message):
    name = f"broken_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(LowbitError, match=message):
        build_model(f"{name}:Net", num_classes=5)


def test_no_classes():
    with pytest.raises(LowbitError, match="at least one class, not 0"):
        build_model("resnet20", num_classes=0)
