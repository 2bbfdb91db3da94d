"""`python -m lowbit`, the same as the `lowbit` command."""

from lowbit.cli.app import main

main()
