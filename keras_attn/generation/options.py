"""The options of decoding, each declared once: what it does, its values, and where a user gives it.

To add an option, declare it in `DecodingOptions`, and obey it in processors.py, or in the search that it is for. This file
imports no Keras, so that the command line reads the declarations before Keras starts.
"""

import dataclasses
import functools
from typing import Annotated, Any

# The most beams, or samples, of a row. Every step makes a row of logits for each hypothesis, which for this many over
# 32,000 tokens is 125 MiB per sentence. Studies of how scores behave in wide beams go up to 1,000 (Koehn and
# Knowles, 2017, https://arxiv.org/abs/1706.03872, section 3.6).
MAX_HYPOTHESES = 1024


@dataclasses.dataclass(frozen=True)
class Option:
    """The declaration of an option of `DecodingOptions`.

    Args:
        meaning: String, what it does.
        dtype: "int32", "float32" or "bool".
        acts_on: "log_probs": a processor changes the log-probabilities of tokens. "draws": answers are then drawn at random.
            "beams": it changes scores, or when a beam search stops. "ends": it changes where an answer ends.
        neutral: The value that changes nothing, for a request that does not give the option. 0 of `num_beams` and `max_length`
            stands for the task's own value, and only requests may have it.
        neutral_means: String, what the neutral value stands for, if the meaning does not say that.
        is_list: Boolean, whether the value is a list of token ids, filled with -1, rather than a number.
        least, greatest: The range of values, None where it is open.
        task_default: Boolean, whether a task may have a value of its own for all calls.
        flag: Boolean, whether the command `generate` takes it.
        request_range: Pair, the range of a served request, whose other values are clamped; None for an end that the task
            knows: its beams, its longest answer, its vocabulary. None for an option that requests do not have.
        label: String, the name of its control on the page; by default its name in words.
        hint: String, what it does in the page's words, for people who know nothing of decoding.
        slider: The least value, the greatest and the step of a slider on the page; None for a box.
    """

    meaning: str
    dtype: str
    acts_on: str
    neutral: Any
    neutral_means: str | None = None
    is_list: bool = False
    least: float | None = None
    greatest: float | None = None
    task_default: bool = False
    flag: bool = False
    request_range: tuple | None = None
    label: str | None = None
    hint: str | None = None
    slider: tuple | None = None

    @property
    def help(self):
        """The meaning, and what the neutral value stands for."""
        if self.neutral_means is None:
            return self.meaning
        return f"{self.meaning}; {self.neutral:g} for {self.neutral_means}"


_integer = functools.partial(Option, dtype="int32")
_number = functools.partial(Option, dtype="float32")
_choice = functools.partial(Option, dtype="bool", neutral=False)
_token_id = functools.partial(Option, dtype="int32", neutral=-1, neutral_means="none", least=-1)
_token_ids = functools.partial(_token_id, is_list=True)


@dataclasses.dataclass(frozen=True)
class DecodingOptions:
    """The options of a search. Each has one value for all rows, or one per row.

    An option that is None is not in the graph. A value is data of the graph: no compiled graph depends on it.

    Args:
        {arguments}

    Raises:
        ValueError: if a value is out of range, or has the wrong number of rows.
    """

    num_beams: Annotated[
        Any,
        _integer(
            "the beams of a row, if fewer than those of the search",
            acts_on="beams",
            neutral=0,
            neutral_means="the most",
            least=1,
            greatest=MAX_HYPOTHESES,
            request_range=(1, None),
            label="Beams",
            hint="How many beginnings are followed at once. More are slower, and may find a better answer.",
            slider=(1, 8, 1),
        ),
    ] = None
    min_length: Annotated[
        Any,
        _integer(
            "the fewest tokens, END included",
            acts_on="log_probs",
            neutral=0,
            neutral_means="no limit",
            least=0,
            task_default=True,
            flag=True,
            request_range=(0, None),
            label="Shortest answer",
            hint="In tokens: words, or parts of words.",
        ),
    ] = None
    max_length: Annotated[
        Any,
        _integer(
            "the most tokens, if fewer than those of the search",
            acts_on="ends",
            neutral=0,
            neutral_means="the default",
            least=1,
            request_range=(1, None),
            label="Longest answer",
            hint="In tokens: words, or parts of words.",
        ),
    ] = None
    no_repeat_ngram_size: Annotated[
        Any,
        _integer(
            "n-grams of this size appear once",
            acts_on="log_probs",
            neutral=0,
            neutral_means="no limit",
            least=0,
            task_default=True,
            flag=True,
            request_range=(0, 2**31 - 1),
            label="No phrase twice",
            hint="So many tokens in a row are never written again. 0 = may repeat.",
            slider=(0, 4, 1),
        ),
    ] = None
    repetition_penalty: Annotated[
        Any,
        _number(
            "multiplies log-probabilities of tokens that are there already",
            acts_on="log_probs",
            neutral=1.0,
            neutral_means="none",
            least=1e-6,
            task_default=True,
            flag=True,
            request_range=(0.01, 100.0),
            label="Avoid repetition",
            hint="1 = no; higher = use other words than those that are there already.",
            slider=(1, 3, 0.05),
        ),
    ] = None
    renormalize: Annotated[
        Any,
        _choice(
            "whether the probabilities of the tokens that may be chosen are divided by their sum, after all other options; "
            "`renormalize_logits` of transformers",
            acts_on="log_probs",
            task_default=True,
        ),
    ] = None
    stop_token_ids: Annotated[
        Any,
        _token_ids(
            "ids that end an answer as END does",
            acts_on="ends",
            task_default=True,
            flag=True,
            request_range=(0, None),
        ),
    ] = None
    suppressed_token_ids: Annotated[
        Any,
        _token_ids(
            "ids that are never chosen",
            acts_on="log_probs",
            task_default=True,
            flag=True,
            request_range=(0, None),
        ),
    ] = None
    suppressed_first_token_ids: Annotated[
        Any,
        _token_ids(
            "ids that are not chosen first, `first_token_id` not counted; `begin_suppress_tokens` of transformers",
            acts_on="log_probs",
            task_default=True,
        ),
    ] = None
    prefix_token_ids: Annotated[
        Any,
        _token_ids(
            "the first tokens of an answer, after `first_token_id`; their probability counts",
            acts_on="log_probs",
        ),
    ] = None
    first_token_id: Annotated[
        Any,
        _token_id(
            "the first token of an answer, at no cost: the token of the language to write in, for instance; "
            "`forced_bos_token_id` of transformers",
            acts_on="log_probs",
            task_default=True,
        ),
    ] = None
    last_token_id: Annotated[
        Any,
        _token_id(
            "the token at which an answer of the most tokens ends, at no cost; `forced_eos_token_id` of transformers",
            acts_on="log_probs",
            task_default=True,
        ),
    ] = None
    wu_length_penalty: Annotated[
        Any,
        _number(
            "w: scores are divided by ((5 + length) / 6) ** w too (Wu et al. 2016, equation 14)",
            acts_on="beams",
            neutral=0.0,
            flag=True,
        ),
    ] = None
    coverage_penalty: Annotated[
        Any,
        _number(
            "multiplies the coverage penalty of Wu et al. 2016, equation 14, which is added to scores",
            acts_on="beams",
            neutral=0.0,
            least=0,
        ),
    ] = None
    exact_stopping: Annotated[
        Any,
        _choice(
            "whether a beam search goes on while a live hypothesis could become better than the worst finished one at any "
            "length, rather than at its current length",
            acts_on="beams",
            task_default=True,
            flag=True,
        ),
    ] = None
    early_stopping: Annotated[
        Any,
        _choice(
            "whether a row ends as soon as it has as many finished hypotheses as beams, whatever its live ones may become",
            acts_on="beams",
            task_default=True,
        ),
    ] = None
    temperature: Annotated[
        Any,
        _number(
            "divides log-probabilities before a token is drawn",
            acts_on="draws",
            neutral=1.0,
            neutral_means="no change, 0 for the best token",
            least=0,
            flag=True,
            request_range=(0.0, 100.0),
            hint="0 = always the likeliest token, 1 = as the model learned, higher = more surprises.",
            slider=(0, 2, 0.05),
        ),
    ] = None
    top_k: Annotated[
        Any,
        _integer(
            "how many of the likeliest tokens are drawn from",
            acts_on="draws",
            neutral=0,
            neutral_means="all tokens",
            least=0,
            flag=True,
            request_range=(0, None),
            hint="Draw from so many of the likeliest tokens. 0 = from all.",
        ),
    ] = None
    top_p: Annotated[
        Any,
        _number(
            "the probability that the tokens drawn from have together",
            acts_on="draws",
            neutral=1.0,
            neutral_means="all",
            least=0,
            greatest=1,
            flag=True,
            request_range=(0.0, 1.0),
            hint="Draw from the likeliest tokens that have this probability together. 1 = from all.",
            slider=(0, 1, 0.01),
        ),
    ] = None
    min_p: Annotated[
        Any,
        _number(
            "the least probability of a token, as a share of the likeliest's",
            acts_on="draws",
            neutral=0.0,
            neutral_means="all",
            least=0,
            greatest=1,
            flag=True,
            request_range=(0.0, 1.0),
            hint="Leave out tokens below this share of the likeliest one's probability. 0 = leave out none.",
            slider=(0, 0.5, 0.01),
        ),
    ] = None
    seed: Annotated[
        Any,
        _integer(
            "the same seed draws the same answer",
            acts_on="draws",
            neutral=0,
            flag=True,
            request_range=(-(2**31), 2**31 - 1),
            hint="The same number draws the same answer again.",
        ),
    ] = None

    def given(self):
        """The options that were given, as a dict."""
        values = {name: getattr(self, name) for name in OPTIONS}
        return {name: value for name, value in values.items() if value is not None}

    def per_row(self, batch_size):
        """The same options as tensors with one value per row."""
        from keras_attn.generation.option_values import values_per_row  # imports Keras

        values = {name: values_per_row(name, value, batch_size) for name, value in self.given().items()}
        return dataclasses.replace(self, **values)

    def row_arrays(self, rows, num_rows):
        """The options of some rows of a batch, as a dict of NumPy arrays with one value per row.

        Args:
            rows: Integers, which rows.
            num_rows: Integer, how many rows the options were made for.
        """
        from keras_attn.generation.option_values import array_per_row  # imports Keras

        return {name: array_per_row(name, value, num_rows)[rows] for name, value in self.given().items()}

    @property
    def is_sampling(self):
        """Whether answers are drawn at random, instead of searched for."""
        return self._acts_on("draws")

    @property
    def changes_log_probs(self):
        """Whether any processor is used."""
        return self._acts_on("log_probs")

    def _acts_on(self, what):
        return any(OPTIONS[name].acts_on == what for name in self.given())


# The declarations by name.
OPTIONS = {field.name: field.type.__metadata__[0] for field in dataclasses.fields(DecodingOptions)}


def _argument(name, option):
    kind = {"int32": "Integers", "float32": "Floats", "bool": "Booleans"}[option.dtype]
    shape = " (P,) or (B, P)" if option.is_list else ""
    return f"        {name}: {kind}{shape}: {option.help}."


DecodingOptions.__doc__ = DecodingOptions.__doc__.replace(
    "        {arguments}", "\n".join(_argument(name, option) for name, option in OPTIONS.items())
)
