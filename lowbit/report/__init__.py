"""The HTML report of runs and the figures to compare them: start with `page.write_report`.

`run_files` reads a run folder (checked by `run_schema`), `summary` computes the figures, `charts` the
numbers behind charts. `sections` (training) and `deployment` (deployed models) make HTML of them out of
`elements`; `page` puts the file together.
"""

from lowbit.report.page import make_page, write_report
from lowbit.report.run_files import Run, open_run, open_runs
from lowbit.report.summary import Verdict, config_differences, figures, verdicts

__all__ = [
    "Run",
    "Verdict",
    "config_differences",
    "figures",
    "make_page",
    "open_run",
    "open_runs",
    "verdicts",
    "write_report",
]
