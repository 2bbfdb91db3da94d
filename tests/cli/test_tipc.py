from __future__ import annotations


def test_the_commands(run):
    out = run("lowbit", "tipc", "--help").out
    for word in ("plan", "prepare", "run", "report", "init"):
        assert f"│ {word} " in out
