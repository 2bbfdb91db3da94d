#!/bin/bash
# bash test_tipc/test_train_inference_python.sh CONFIG MODE [options of `lowbit tipc run`]
# Exit code 0 only if every step that had to run did its work. Without a card everything runs on the CPU.
source "$(dirname "${BASH_SOURCE[0]}")/common_func.sh"
lowbit_tipc run --device auto "$@"
