"""The recipe of a student, from that of its teacher."""

import dataclasses
import pathlib
import re

from keras_attn.runs.fitted import FittedRecipe, fit_recipe
from keras_attn.runs.recipe import Recipe
from keras_attn.runs.run_record import RECORD
from keras_attn.runs.translation_run import corpora_of

# Reasons of a fitted recipe that do not hold for a student: its tokenizers are given, its layers may be.
_NOT_OF_STUDENTS = ("tokens", "vocabulary", "model")


def student_recipe(
    teachers, recipe=None, size=None, layers=None, references=None, num_beams=None, length_penalty=None
):
    """The recipe of a student of some teachers.

    Args:
        teachers: Folders of translators, or of the runs that made them.
        recipe: `Recipe` of the student's training. Defaults to that of the first teacher's run.
        size: Named size, as in `Recipe.with_size`.
        layers: String or pair of integers: encoder and decoder layers, `"6+1"`.
        references: Boolean, whether the student learns from the given targets beside the teachers' translations. Defaults to
            the recipe's own setting, or True.
        num_beams, length_penalty: Of the teachers' search; by default the recipe's setting, or the teachers' own.

    Returns:
        A `Recipe` with `distill`.

    Raises:
        ValueError: if there is no recipe, or a value is out of range.

    Example:

    ```python
    recipe = student_recipe(["runs/tok-s1", "runs/tok-s2"], MULTI30K_TOKENIZED, layers="6+1")
    assert recipe.model_arguments["num_decoder_layers"] == 1
    ```
    """
    teachers = [str(teacher) for teacher in teachers]
    if recipe is None:
        recipe = _recipe_of(teachers)
    if size is not None:
        recipe = recipe.with_size(size)
    model = recipe.model
    if layers is not None:
        encoder, decoder = checked_layers(layers)
        model = {**model, "num_encoder_layers": encoder, "num_decoder_layers": decoder}
    given = {"references": references, "num_beams": num_beams, "length_penalty": length_penalty}
    distill = {
        **(recipe.distill or {}),
        **({"teachers": teachers} if teachers else {}),
        **{name: value for name, value in given.items() if value is not None},
    }
    return dataclasses.replace(recipe, model=model, distill=distill, minutes=None)


def fit_student_recipe(data, recipe, given=(), references=True):
    """The `FittedRecipe` of `fit_recipe` for a student, whose tokenizers are its teachers'.

    Args:
        data, recipe, given: As in `fit_recipe`.
        references: Boolean, whether the student learns from the given pairs too: it then has twice as many.
    """
    if references:
        data = data._replace(train=corpora_of(data.train) * 2)
    fitted = fit_recipe(data, recipe, given)
    reasons = {name: reason for name, reason in fitted.reasons.items() if name not in _NOT_OF_STUDENTS}
    return FittedRecipe(fitted.recipe, {"vocabulary": "the teachers'", **reasons}, fitted.note)


def checked_layers(layers):
    """The pair of integers in a text such as `"6+1"`, or such a pair itself."""
    found = re.fullmatch(r"([1-9][0-9]*)\+([1-9][0-9]*)", layers) if isinstance(layers, str) else None
    pair = tuple(map(int, found.groups())) if found else layers
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ValueError(f'`layers` must be of the encoder and of the decoder, "6+1". Received: {layers!r}.')
    return pair


def _recipe_of(teachers):
    if not teachers or not (pathlib.Path(teachers[0]) / RECORD).is_file():
        raise ValueError(
            "A student needs a recipe: give one, or the folder of a run as the first teacher, whose recipe is then used. "
            f"Received: teachers={teachers}."
        )
    # A teacher may have been a student itself.
    return dataclasses.replace(Recipe.load(teachers[0]), distill=None)
