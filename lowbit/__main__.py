"""`python -m lowbit`, the same as the `lowbit` command; Paddle's launcher starts it this way."""

from lowbit.cli.app import main

main()
