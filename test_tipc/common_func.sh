#!/bin/bash
# How the scripts of this folder find lowbit. Reading, running and judging a config is lowbit's own work.

lowbit_tipc() {
    if command -v lowbit > /dev/null; then
        lowbit tipc "$@"
    elif [ -x .venv/bin/lowbit ]; then
        PATH="$PWD/.venv/bin:$PATH" lowbit tipc "$@"
    else
        echo "error: lowbit is not installed here: activate its environment, or pip install lowbit" >&2
        return 2
    fi
}
