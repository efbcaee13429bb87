"""The search that the arguments of a model's `generate` ask for."""

from keras_attn.generation.beam_search import BeamSearch
from keras_attn.generation.decoding_loop import decode
from keras_attn.generation.greedy_and_sampling import GreedySearch, Sampling
from keras_attn.generation.options import DecodingOptions
from keras_attn.generation.search import Hypotheses, check_num_hypotheses


def find_answers(inputs, num_beams=1, num_return_sequences=None, length_penalty=1.0, options=None):
    """The result of a model's `generate`: samples if the options ask for them, else the best answers found.

    One beam is a `GreedySearch`, or, where `num_return_sequences` is given and a score is wanted with each answer, a `BeamSearch`.

    Args:
        inputs: `SearchInputs`.
        num_beams: Integer; ignored by sampling.
        num_return_sequences: Integer n, or None for the tokens of the best answer without a score.
        length_penalty: Float, a scalar tensor, or floats (B,).
        options: `DecodingOptions`, or None.

    Returns:
        `Hypotheses` with n answers per row; or, if n is None, int32 (B, max_length), the first answer of each
        row.

    Example: `find_answers(inputs, num_beams=2)`, with the `inputs` of the example of `beam_search`.
    """
    options = checked_options(options, num_beams, num_return_sequences)
    if options.is_sampling:
        search = Sampling(inputs, num_return_sequences or 1, options, length_penalty)
    elif num_beams == 1 and num_return_sequences is None:
        search = GreedySearch(inputs, options=options)
    else:
        search = BeamSearch(inputs, num_beams, options, length_penalty)
    token_ids, scores = search.answers(*decode(search))
    if num_return_sequences is None:
        return token_ids[:, 0]
    return Hypotheses(token_ids[:, :num_return_sequences], scores[:, :num_return_sequences])


def checked_options(options, num_beams, num_return_sequences):
    """The options of a model's `generate`, checked. None means that no option is given.

    Args:
        options: `DecodingOptions`, or None.
        num_beams: Integer.
        num_return_sequences: Integer, or None.

    Raises:
        ValueError: if a number is not positive or greater than `MAX_HYPOTHESES`, or if more answers are wanted than
            there are beams.

    Example:

    ```python
    options = checked_options(None, num_beams=4, num_return_sequences=2)
    ```
    """
    options = DecodingOptions() if options is None else options
    check_num_hypotheses("num_beams", num_beams)
    if num_return_sequences is not None:
        check_num_hypotheses("num_return_sequences", num_return_sequences)
    if not options.is_sampling and (num_return_sequences or 1) > num_beams:
        raise ValueError(
            "`num_return_sequences` must be at least 1 and at most `num_beams`. "
            f"Received: num_return_sequences={num_return_sequences}, num_beams={num_beams}."
        )
    return options
