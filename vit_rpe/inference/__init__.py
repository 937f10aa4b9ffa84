"""A trained model at work: predictions on files, and files that other programs run.

The public names are those listed here.
"""

from .classifier import AMP, Classifier, load_classifier
from .export_file import Comparison, ExportFailed, export, metadata
from .formats import FORMATS
from .inputs import Input, Inputs, find_inputs
from .loading import VIDEO_OPTIONS, ModelSource, data_config
from .pictures import MOST, as_png, picture_grid
from .predictions import Guess, Prediction, predict
from .tables import as_csv, as_json, as_table

__all__ = [
    "AMP",
    "FORMATS",
    "MOST",
    "VIDEO_OPTIONS",
    "Classifier",
    "Comparison",
    "ExportFailed",
    "Guess",
    "Input",
    "Inputs",
    "ModelSource",
    "Prediction",
    "as_csv",
    "as_json",
    "as_png",
    "as_table",
    "data_config",
    "export",
    "find_inputs",
    "load_classifier",
    "metadata",
    "picture_grid",
    "predict",
]
