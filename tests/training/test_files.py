from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from lowbit.errors import LowbitError
from lowbit.files import link_atomically, write_atomically


def test_a_write_that_fails_half_way_leaves_the_old_file_and_no_rubbish(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        write_atomically(target, fail)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_others_may_read_what_the_users_umask_lets_them(tmp_path):
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "file", lambda file: file.write_text("x"))
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_a_link_follows_no_later_replacement(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    write_atomically(first, lambda file: file.write_text("one"))
    link_atomically(first, second)
    write_atomically(first, lambda file: file.write_text("two"))
    assert second.read_text() == "one"
    link_atomically(first, second)  # over an existing name
    assert second.read_text() == "two"


def test_where_links_are_impossible_it_is_a_copy(tmp_path, monkeypatch):
    first = tmp_path / "first"
    first.write_text("one")

    def refuse(*_arguments: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    link_atomically(first, tmp_path / "second")
    assert (tmp_path / "second").read_text() == "one"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB, where that can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_a_clear_error_and_the_old_file_stays(small_disk):
    target = small_disk / "latest.lowbit"
    write_atomically(target, lambda file: file.write_bytes(b"x" * 30_000))
    with pytest.raises(LowbitError, match=r"latest\.lowbit: the disk is full; the previous one is untouched"):
        write_atomically(target, lambda file: file.write_bytes(b"y" * 60_000))
    assert target.read_bytes() == b"x" * 30_000
    assert [path.name for path in small_disk.iterdir()] == ["latest.lowbit"]


def test_the_clean_up_does_not_hide_why_a_file_cannot_be_written(tmp_path, monkeypatch):
    """As in a read-only folder; there, removing the temporary file fails as well."""

    def read_only(*_args, **_options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(LowbitError, match=r"cannot write .*report\.html: Read-only file system$"):
        write_atomically(tmp_path / "report.html", lambda file: read_only())
    (tmp_path / "file").write_text("")
    with pytest.raises(LowbitError, match=r"cannot write .*: Not a directory$"):
        write_atomically(tmp_path / "file" / "report.html", lambda file: file.write_text("x"))


def test_text_that_is_no_unicode_is_an_error(tmp_path):
    with pytest.raises(LowbitError, match=r"cannot write .*: '\\+ud800' is no character that UTF-8 has"):
        write_atomically(tmp_path / "file", lambda file: file.write_text("a\ud800", "utf-8"))
    assert list(tmp_path.iterdir()) == []
