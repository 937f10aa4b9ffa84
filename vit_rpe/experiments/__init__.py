"""Experiments: many runs, and the tables that they make together."""

from .study.check import Setting, check_settings
from .study.errors import StudyError
from .study.file import Study, load_study
from .study.live import hours
from .study.report import insert_report, report_text, write_report
from .study.run import Planned, plan_study, run_study
from .study.trials import Trial

__all__ = [
    "Trial",
    "Planned",
    "Setting",
    "Study",
    "StudyError",
    "check_settings",
    "hours",
    "insert_report",
    "load_study",
    "plan_study",
    "report_text",
    "run_study",
    "write_report",
]
