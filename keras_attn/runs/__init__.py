"""Training runs, from a recipe and data to a translator. The command line and the examples use it."""

from keras_attn.runs.averaging import average_translator
from keras_attn.runs.built_in_recipes import (
    DATES,
    MULTI30K,
    MULTI30K_TOKENIZED,
    PLAIN_TEXT,
    REVERSE,
    SHAKESPEARE,
    TEXT_FILES,
)
from keras_attn.runs.data import (
    data_name,
    default_recipe,
    free_folder,
    is_for_any_files,
    open_data,
    open_pairs,
    open_splits,
)
from keras_attn.runs.ensembles import ensemble_translators
from keras_attn.runs.evaluation import Evaluation, evaluate
from keras_attn.runs.fitted import FittedRecipe, fit_recipe
from keras_attn.runs.fitted_start import fit_start
from keras_attn.runs.fitted_text import fit_text_recipe
from keras_attn.runs.generate import generate_texts
from keras_attn.runs.held_out import DataSplits
from keras_attn.runs.recipe import Recipe
from keras_attn.runs.resumable_fit import resumable_fit
from keras_attn.runs.run_record import example_texts
from keras_attn.runs.serve_check import check_export
from keras_attn.runs.shortlists import ShortlistReport, evaluate_shortlist, shortlist_of
from keras_attn.runs.student_recipe import fit_student_recipe, student_recipe
from keras_attn.runs.teachers import teacher_folders
from keras_attn.runs.text_evaluation import TextEvaluation, evaluate_text
from keras_attn.runs.train_recipe import distill, train
from keras_attn.runs.translate import translate_lines

__all__ = [
    "DATES",
    "MULTI30K",
    "MULTI30K_TOKENIZED",
    "PLAIN_TEXT",
    "REVERSE",
    "SHAKESPEARE",
    "TEXT_FILES",
    "DataSplits",
    "Evaluation",
    "FittedRecipe",
    "Recipe",
    "ShortlistReport",
    "TextEvaluation",
    "average_translator",
    "check_export",
    "data_name",
    "default_recipe",
    "distill",
    "ensemble_translators",
    "evaluate",
    "evaluate_shortlist",
    "evaluate_text",
    "example_texts",
    "fit_recipe",
    "fit_start",
    "fit_student_recipe",
    "fit_text_recipe",
    "free_folder",
    "generate_texts",
    "is_for_any_files",
    "open_data",
    "open_pairs",
    "open_splits",
    "resumable_fit",
    "shortlist_of",
    "student_recipe",
    "teacher_folders",
    "train",
    "translate_lines",
]
