from __future__ import annotations

from lowbit.data import open_dataset


def test_lite_data(run, tmp_path):
    folder = tmp_path / "lite"
    result = run("lowbit", "data", "lite", folder)
    assert result.code == 0
    assert str(folder) in result.out
    assert (folder / "lite_data.tar").stat().st_size < 20e6
    assert [len(open_dataset(folder, split)) for split in ("train", "val")] == [16, 16]


def test_without_the_archive(run, tmp_path):
    run("lowbit", "data", "lite", tmp_path / "lite", "--no-tar")
    assert not (tmp_path / "lite" / "lite_data.tar").exists()


def test_where_one_stands(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("lowbit", "data", "lite").code == 0
    assert (tmp_path / "lite_data" / "train").is_dir()
