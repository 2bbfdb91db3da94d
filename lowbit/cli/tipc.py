"""`lowbit tipc`: its commands under one name."""

from __future__ import annotations

import typer

from lowbit.cli.tipc_init import init
from lowbit.cli.tipc_plan import plan
from lowbit.cli.tipc_run import prepare, report, run

app = typer.Typer(help="The chain test of Paddle's model repositories (`test_tipc`).", no_args_is_help=True)
app.command("plan")(plan)
app.command("prepare")(prepare)
app.command("run")(run)
app.command("report")(report)
app.command("init")(init)
