#!/bin/bash
# bash test_tipc/prepare.sh CONFIG MODE
# Draws lite data and a demo image where they are missing. Downloads nothing.
source "$(dirname "${BASH_SOURCE[0]}")/common_func.sh"
lowbit_tipc prepare "$@"
