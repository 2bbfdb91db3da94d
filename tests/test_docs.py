"""The documentation says what is true: its links, commands, options, config keys and the rows of packages."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import shlex
import types
import typing
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from lowbit.config import Config, list_configs, load_config, validate
from lowbit.config import data as data_sections
from lowbit.config.transform_ops import OPS
from lowbit.models import model_aliases, model_names
from tests.support.commands import OPTIONS

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in (
        ROOT / "README.md",
        ROOT / "README.zh.md",
        ROOT / "examples/README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
    )
}
LAUNCHER = ["python", "-m", "paddle.distributed.launch"]


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def _command_lines() -> list[tuple[str, list[str]]]:
    """Every line of a shell block as its words, with its page."""
    return [
        (page, words)
        for page, text in PAGES.items()
        for block in _blocks(text, "bash")
        for line in block.replace("\\\n", " ").splitlines()
        if (words := shlex.split(line, comments=True))
    ]


OURS = [(page, words) for page, words in _command_lines() if words[0] in ("lowbit", "python", "make")]


def _split(words: list[str]) -> tuple[str, list[str]]:
    """The command of a line and what follows it; the launcher and its options are taken away."""
    if words[:3] == LAUNCHER:
        words = words[3:]
        while words[0].startswith("-"):
            words = words[1:] if "=" in words[0] else words[2:]
        words = words if words[0] == "lowbit" else ["python", *words]
    length = 3 if " ".join(words[:3]) in OPTIONS else 2
    return " ".join(words[:length]), words[length:]


@pytest.mark.parametrize(("page", "words"), OURS)
def test_commands_and_options_exist(page, words):
    command, rest = _split(words)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return
    if words[:1] == ["python"] and words[1].startswith(("examples/", "benchmarks/")):  # they have no options
        assert (ROOT / words[1]).is_file() and not rest, f"{page}: {shlex.join(words)}"
        return
    assert command in OPTIONS, f"{page}: no such command: {shlex.join(words)}"
    for word in rest:
        if re.match(r"--?[a-z]", word):
            assert word.split("=")[0] in OPTIONS[command], f"{page}: {command} has no option {word}"


@pytest.mark.parametrize(("page", "words"), [line for line in OURS if "-o" in line[1]])
def test_overrides_are_valid(page, words):
    overrides = [value for option, value in pairwise(words) if option == "-o"]
    if "Optimizer.name=Momentun" in overrides:  # there the page shows what a mistake looks like
        return
    if "--teacher" in words:  # keys of its section need it, and fp32 would need a recipe and weights, too
        overrides.append("Distillation.teacher=weights.pdparams")
    config = words[words.index("-c") + 1]
    # A config of PaddleClas's is not in this repository; ours of the same network has the same sections.
    ours = Path(config).stem in {entry.name for entry in list_configs()}
    load_config(config if ours else "ResNet18_ImageNet", overrides)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_files_exist(page):
    text = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in _anchors(target.read_text("utf-8")), f"{page}: {link}"
    for name in re.findall(r"(?:configs|examples|benchmarks)/\w+\.\w+", PAGES[page]):
        assert (ROOT / name).is_file(), f"{page}: {name}"


def _anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_both_readmes_show_the_same_commands_and_links():
    commands = [
        [words for page, words in _command_lines() if page == name] for name in ("README.md", "README.zh.md")
    ]
    assert commands[0] == commands[1] != []
    links = [re.findall(r"\]\((\w[^)]+)\)", PAGES[name])[1:] for name in ("README.md", "README.zh.md")]
    assert links[0] == links[1] != []


def test_example_configs_are_valid():
    load_config(ROOT / "configs/my_images.yaml")
    short = next(block for block in _blocks(PAGES["docs/config.md"], "yaml") if "Arch" in block)
    validate(yaml.safe_load(short), {}, "docs/config.md")


@pytest.mark.parametrize("command", OPTIONS)
def test_every_option_is_described_and_no_other(command):
    title = command.removeprefix("python ")
    section = re.search(
        rf"^(#+) {re.escape(title)}$(.*?)(?=^#|\Z)", PAGES["docs/commands.md"], re.MULTILINE | re.DOTALL
    )
    assert section, f"docs/commands.md has no section {title}"
    first_cells = " ".join(re.findall(r"^\| (`.+?) \|", section[2], re.MULTILINE))
    assert set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", first_cells)) == OPTIONS[command] - {"--help"}


def _key_tables() -> dict[str, dict[str, str]]:
    """Heading to {key: default}, for the tables of keys in docs/config.md."""
    tables: dict[str, dict[str, str]] = {}
    title, inside = "", False
    for line in PAGES["docs/config.md"].splitlines():
        if line.startswith("#"):
            title = line.lstrip("# ")
        inside = line == "| key | default | meaning |" or (inside and line.startswith("|"))
        if inside and (row := re.match(r"\| `(\w+)` \| (.+?) \|", line)):
            tables.setdefault(title, {})[row[1]] = row[2]
    return tables


KEY_TABLES = _key_tables()


def _section_named(title: str) -> type[BaseModel]:
    """The part of the config's schema that a heading of docs/config.md is about."""
    kind, _, name = title.rpartition(" ")
    if kind:
        return OPS[name] if kind == "Operation" else getattr(data_sections, name)
    here: type[BaseModel] = Config
    for key in name.split("."):
        annotation: typing.Any = here.model_fields[key].annotation
        while not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):  # X | None, list[X]
            annotation = next(part for part in typing.get_args(annotation) if part is not types.NoneType)
        here = annotation
    return here


@pytest.mark.parametrize("title", KEY_TABLES)
def test_keys_and_defaults_are_those_of_the_schema(title):
    fields = _section_named(title).model_fields
    assert set(KEY_TABLES[title]) == set(fields)
    for key, written in KEY_TABLES[title].items():
        default = fields[key].default
        if written == "required":
            assert default is PydanticUndefined, key
        elif written == "a section":
            assert isinstance(default, BaseModel), key
        else:
            value = list(default) if isinstance(default, tuple) else default
            assert yaml.safe_load(written.strip("`")) == value, key


def test_every_section_has_a_table():
    sections = {f"Operation {name}" for name, op in OPS.items() if op.model_fields}
    sections |= {f"Dataset {name}" for name in ("ImageNetDataset", "AutoDataset", "Digits")}
    assert sections | {"Global", "Arch", "Optimizer", "AMP", "Infer"} <= set(KEY_TABLES)
    assert all(f"`{section}`" in PAGES["docs/config.md"] for section in Config.model_fields)


def test_functions_named_for_commands_exist():
    table = PAGES["docs/commands.md"].split("## From Python")[1].partition("\n## ")[0]
    names = set(re.findall(r"lowbit(?:\.\w+)+", table))
    assert len(names) > 15
    for name in names:
        pkgutil.resolve_name(name)


def test_calls_shown_for_commands_take_these_arguments():
    table = PAGES["docs/commands.md"].split("## From Python")[1].partition("\n## ")[0]
    calls = re.findall(r"`(lowbit(?:\.\w+)+\(.*?\))(?:\.\w+\(.*?\))?`", table)
    assert len(calls) > 12
    for call in calls:
        tree = ast.parse(call, mode="eval").body
        function = pkgutil.resolve_name(ast.unparse(tree.func))
        inspect.signature(function).bind(*tree.args, **{one.arg: one.value for one in tree.keywords})


def test_every_model_is_named():
    for name in (*model_names(), *model_aliases()):
        assert f"`{name}`" in PAGES["docs/models.md"]


def test_packages_import_only_packages_of_lower_rows():
    rows = {
        package: int(row)
        for row, packages in re.findall(r"^\| (\d+) \| (.+?) \|", PAGES["docs/architecture.md"], re.MULTILINE)
        for package in re.findall(r"`(\w+)`", packages)
    }
    packages = [path.parent.name for path in (ROOT / "lowbit").glob("*/__init__.py")]
    assert len(packages) > 5
    for package in packages:
        for path in (ROOT / "lowbit" / package).rglob("*.py"):
            for used in _packages_used(path) - {package}:
                assert rows[used] < rows[package], f"{path.relative_to(ROOT)} uses lowbit.{used}"


def test_the_picture_shows_every_package():
    picture = (ROOT / "docs/architecture.svg").read_text("utf-8")
    for init in (ROOT / "lowbit").glob("*/__init__.py"):
        assert f">{init.parent.name}</text>" in picture, init.parent.name


def _packages_used(path: Path) -> set[str]:
    return {module.split(".")[1] for module in _imported_modules(path) if module.startswith("lowbit.")}


def _imported_modules(path: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return modules + [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]


def test_tests_import_helpers_from_support_only() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        for module in _imported_modules(path):
            allowed = not module.startswith("tests") or module.startswith("tests.support")
            assert allowed, f"{path.relative_to(ROOT)} imports {module}"


WALKS = {
    "From a recipe to a layer": 8,
    "From a config to the first step": 10,
    "One W4A4G4 convolution in Python": 10,
    "From a checkpoint to a verified ONNX file": 18,
}


@pytest.mark.parametrize(("title", "most"), WALKS.items())
def test_a_walk_through_the_source_is_short_and_connected(title: str, most: int) -> None:
    """Every file but the first is imported by one listed before it, or imports one."""
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    steps = re.findall(r"^\d+\. (.*)$", page.split(f"### {title}\n")[1].partition("\n#")[0], re.MULTILINE)
    assert 0 < len(steps) <= most
    seen: dict[str, set[str]] = {}
    for name in re.findall(r"`([a-z_0-9/]+\.py)`", "\n".join(steps)):
        path = ROOT / "lowbit" / name
        assert path.is_file(), name
        module, uses = _module_name(name), _modules_used(path)
        linked = any(module in used or other in uses for other, used in seen.items())
        assert not seen or linked, f"{name} neither uses nor is used by {', '.join(seen)}"
        seen[module] = uses


def test_files_and_names_of_the_architecture_exist() -> None:
    page = PAGES["docs/architecture.md"]
    roots = (ROOT / "lowbit", ROOT / "lowbit/kernels/csrc", ROOT)

    def source(name: str) -> Path:
        found = [root / name for root in roots if (root / name).exists()]
        assert found, f"docs/architecture.md: no {name}"
        return found[0]

    for name in re.findall(r"`([\w/]+(?:\.(?:py|h|cpp|js)|/))`", page):
        source(name)
    named = re.findall(r"`([\w.]+)` in `([\w/]+\.py)`", page)
    assert len(named) > 5
    for names, path in named:
        text = source(path).read_text("utf-8")
        for name in names.split("."):
            assert re.search(rf"(def|class) {name}\b", text), f"docs/architecture.md: no {name} in {path}"


def test_the_walk_of_a_recipe_leaves_no_module_out() -> None:
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    walk = page.split("### From a recipe to a layer")[1].partition("\n#")[0]
    modules = {f"recipe/{file.name}" for file in (ROOT / "lowbit/recipe").glob("[a-z]*.py")}
    assert modules <= set(re.findall(r"`([a-z_/]+\.py)`", walk))


def _module_name(name: str) -> str:
    return "lowbit." + name.removesuffix(".py").replace("/", ".")


def _modules_used(path: Path) -> set[str]:
    """Modules that a file imports, also through the package that exports the name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("lowbit"):
            continue
        package = ROOT / node.module.replace(".", "/")
        found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        if (package / "__init__.py").is_file():
            found |= _exporters(package / "__init__.py", {alias.name for alias in node.names})
    return found


def _exporters(init: Path, names: set[str]) -> set[str]:
    nodes = ast.walk(ast.parse(init.read_text("utf-8")))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {node.module for node in imports if node.module and names & {a.name for a in node.names}}


PACKAGES = sorted(
    path.parent for path in (ROOT / "lowbit").rglob("__init__.py") if path.parent.name != "lowbit"
)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_package_names_its_modules(package):
    """A package's docstring is its guide: it names every module and folder, and none that is gone."""
    guide = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8"))) or ""
    named = {word.split(".")[0].rstrip("/") for word in re.findall(r"`([a-z_0-9./]+)`", guide)}
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    if package.name == "cli":  # its modules are the commands of their names
        modules &= {"app", "options"}
    missing = modules - named
    assert not missing, f"{package.name}/__init__.py does not name {sorted(missing)}"
    rows = [line.split("|")[1] for line in guide.splitlines() if line.startswith("| `")]
    listed = {word.rstrip("/") for row in rows for word in re.findall(r"`([^`]+)`", row)}
    gone = listed - modules - {path.name for path in package.iterdir() if path.is_dir()}
    assert not gone, f"{package.name}/__init__.py lists {sorted(gone)}, which it does not have"


def test_private_operators_of_paddle_are_for_accel_alone() -> None:
    """`paddle._C_ops` is called or replaced in one package, and by the function that allocates tensors."""
    sources = (ROOT / "lowbit").rglob("*.py")
    users = {
        path.relative_to(ROOT / "lowbit").as_posix() for path in sources if _uses_private_operators(path)
    }
    assert {name for name in users if not name.startswith("accel/")} == {"numerics/fused.py"}


def test_classes_of_layers_are_changed_by_accel_alone() -> None:
    """By `change_class`; `models` is below `accel` and has one model whose forward returns too much."""
    sources = (ROOT / "lowbit").rglob("*.py")
    users = {path.relative_to(ROOT / "lowbit").as_posix() for path in sources if _sets_a_class(path)}
    assert users == {"accel/op_overrides.py", "models/vision.py"}


def _sets_a_class(path: Path) -> bool:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    return any(isinstance(target, ast.Attribute) and target.attr == "__class__" for target in targets)


def _uses_private_operators(path: Path) -> bool:
    return any(
        isinstance(node, ast.Name | ast.Attribute)
        and getattr(node, "id", getattr(node, "attr", "")) == "_C_ops"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    )
