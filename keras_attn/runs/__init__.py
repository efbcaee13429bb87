"""Training runs, from a recipe and data to a translator. The command line and the examples use it."""

from keras_attn.runs import next_command
from keras_attn.runs.combined_translators import average_translator, ensemble_translators
from keras_attn.runs.data import (
    DataSplits,
    data_name,
    default_recipe,
    free_folder,
    is_for_any_files,
    open_pairs,
    open_splits,
)
from keras_attn.runs.distillation import fit_student_recipe, student_recipe, teacher_folders
from keras_attn.runs.evaluation import Evaluation, TextEvaluation, evaluate, evaluate_text
from keras_attn.runs.pair_settings import FittedRecipe, fit_recipe
from keras_attn.runs.recipe import Recipe
from keras_attn.runs.resumable_fit import resumable_fit
from keras_attn.runs.run_folder import example_texts
from keras_attn.runs.settling import distill, train
from keras_attn.runs.shortlists import ShortlistReport, evaluate_shortlist, shortlist_of
from keras_attn.runs.starting_model import fit_start
from keras_attn.runs.task_commands import (
    check_export,
    evaluate_task,
    export_task,
    generate_texts,
    show_task,
    translate_lines,
    verify,
    version_folder,
    write_shortlist,
)
from keras_attn.runs.text_settings import fit_text_recipe

__all__ = [
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
    "evaluate_task",
    "evaluate_text",
    "example_texts",
    "export_task",
    "fit_recipe",
    "fit_start",
    "fit_student_recipe",
    "fit_text_recipe",
    "free_folder",
    "generate_texts",
    "is_for_any_files",
    "next_command",
    "open_pairs",
    "open_splits",
    "resumable_fit",
    "shortlist_of",
    "show_task",
    "student_recipe",
    "teacher_folders",
    "train",
    "translate_lines",
    "verify",
    "version_folder",
    "write_shortlist",
]
