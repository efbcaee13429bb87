"""From a recipe and data to a run folder and a translator; what the command line and the examples call."""

from keras_attn.runs.data import DataSplits, dates, files, multi30k
from keras_attn.runs.evaluation import Evaluation, evaluate
from keras_attn.runs.recipe import DATES, MULTI30K, Recipe
from keras_attn.runs.serve_check import check_export
from keras_attn.runs.train import train

__all__ = [
    "DATES",
    "MULTI30K",
    "DataSplits",
    "Evaluation",
    "Recipe",
    "check_export",
    "dates",
    "evaluate",
    "files",
    "multi30k",
    "train",
]
