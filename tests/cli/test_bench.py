from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lowbit.cli.bench import hold_back
from lowbit.errors import LowbitError


def test_it_is_there_before_paddle_is():
    """The libraries read the settings when they are loaded."""
    code = (
        "import sys; from lowbit.cli.bench import hold_back; hold_back('avx2');"
        "import os; print(os.environ['MKL_ENABLE_INSTRUCTIONS'], 'paddle' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.split() == ["AVX2", "False"]


def test_a_set_that_nobody_knows():
    with pytest.raises(LowbitError, match='nothing can be held back to "sse9"'):
        hold_back("sse9", {})
