from __future__ import annotations

import ctypes
import re
import shutil
import stat

import pytest

from lowbit.kernels import build
from lowbit.kernels.build import BuildError, compile_library, fingerprint


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_it_compiles_without_a_warning(compiler, tmp_path, monkeypatch):
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    monkeypatch.setenv("CXX", compiler)
    # clang asks for brackets that g++ can do without, as in a >> 4 & 1.
    strict = ("-Wall", "-Wextra", "-Werror", "-Wno-parentheses")
    target = compile_library(tmp_path / "deeper" / "lib.so", extra=strict)
    function = ctypes.CDLL(str(target)).lowbit_fingerprint
    function.restype = ctypes.c_char_p
    assert function().decode() == fingerprint()
    assert [path.name for path in target.parent.iterdir()] == ["lib.so"]


def test_options_that_other_processors_and_other_roundings_forbid():
    assert not {"-march=native", "-ffast-math", "-Ofast", "-funsafe-math-optimizations"} & set(build.OPTIONS)
    assert "-ffp-contract=off" in build.OPTIONS


def test_the_fingerprint_is_of_sources_and_options(tmp_path, monkeypatch):
    first = fingerprint()
    copy = shutil.copytree(build.SOURCES, tmp_path / "csrc")
    monkeypatch.setattr(build, "SOURCES", copy)
    assert fingerprint() == first
    (copy / "gemm" / "gemm.h").write_text("// changed")
    second = fingerprint()
    (copy / "gemm" / "gemm.h").rename(copy / "gemm" / "renamed.h")
    third = fingerprint()
    monkeypatch.setattr(build, "OPTIONS", ("-O0",))
    assert len({first, second, third, fingerprint()}) == 4


def test_every_folder_has_a_header_that_explains_it():
    for folder in (path for path in build.SOURCES.iterdir() if path.is_dir()):
        header = (folder / f"{folder.name}.h").read_text()
        comment = header[: header.index("#pragma once")]
        named = {name for name in (path.name for path in folder.iterdir()) if name in comment}
        others = [path for path in folder.iterdir() if path.suffix == ".cpp" and path.stem != folder.name]
        assert comment.startswith("// ") and len(comment.splitlines()) >= 8
        assert len(named) >= len(others) / 2, f"{folder.name}.h names too few of the folder's files"


def test_the_walk_of_a_convolution_in_the_docs_is_short_and_exists():
    page = (build.SOURCES.parents[2] / "docs" / "architecture.md").read_text()
    walk = re.findall(r"^\d+\. `(gemm/\w+\.cpp)`", page, re.MULTILINE)
    assert 4 < len(walk) <= 8 and all((build.SOURCES / name).is_file() for name in walk)


def test_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match=r"no C\+\+ compiler \(no-such-compiler\)"):
        compile_library(tmp_path / "lib.so")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"no C\+\+ compiler"):
        compile_library(tmp_path / "lib.so")


def test_a_compiler_that_fails_leaves_the_old_library(tmp_path, monkeypatch):
    compiler = tmp_path / "cxx"
    compiler.write_text("#!/bin/sh\necho out of memory >&2\nexit 1\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    old = tmp_path / "lib.so"
    old.write_text("old")
    with pytest.raises(BuildError, match="out of memory"):
        compile_library(old)
    assert old.read_text() == "old" and sorted(p.name for p in tmp_path.iterdir()) == ["cxx", "lib.so"]
