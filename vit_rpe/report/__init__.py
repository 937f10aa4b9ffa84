"""Things to look at: reports of runs, pictures of masks and results, in one set of colors."""

from .colors import ABSENT, MARK, WEIGHTS
from .content import LIMIT
from .figures import calibration_figure, confusion_figure, curves_figure, masks_figure
from .page import NAME, write_page, write_report
from .replayed import default_folder, summary, table, write_replay
from .subject import Subject

__all__ = [
    "ABSENT",
    "LIMIT",
    "MARK",
    "NAME",
    "WEIGHTS",
    "Subject",
    "calibration_figure",
    "confusion_figure",
    "curves_figure",
    "masks_figure",
    "default_folder",
    "summary",
    "table",
    "write_page",
    "write_replay",
    "write_report",
]
