"""The bundle's report: one page that opens from a file and needs nothing else."""

from export.report.page import REPORT_FILE, check_templates, render_report, write_report

__all__ = ["write_report", "render_report", "check_templates", "REPORT_FILE"]
