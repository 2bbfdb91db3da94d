"""What a run has left, to look at: the HTML report, and runs side by side."""

from lowbit.report.figures import figures
from lowbit.report.page import make_page, write_report
from lowbit.report.run_files import Run, open_run, open_runs

__all__ = ["Run", "figures", "make_page", "open_run", "open_runs", "write_report"]
