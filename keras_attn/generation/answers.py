from keras_attn.generation.beam_search import Hypotheses, beam_search
from keras_attn.generation.greedy_search import greedy_search
from keras_attn.generation.options import DecodingOptions
from keras_attn.generation.sampling import sample


def checked_options(options, num_beams, num_return_sequences):
    """The options of a model's `generate`, none being all of them left out.

    Args:
        options: `DecodingOptions`, or None.
        num_beams: Integer.
        num_return_sequences: Integer, or None.

    Raises:
        ValueError: if a number is not positive, or more answers are wanted than there are beams.

    Example:

    ```python
    options = checked_options(None, num_beams=4, num_return_sequences=2)
    ```
    """
    options = DecodingOptions() if options is None else options
    for name, value in (("num_beams", num_beams), ("num_return_sequences", num_return_sequences)):
        optional = value is None and name == "num_return_sequences"
        if not optional and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value}.")
    if not options.is_sampling and (num_return_sequences or 1) > num_beams:
        raise ValueError(
            "`num_return_sequences` must be at least 1 and at most `num_beams`. "
            f"Received: num_return_sequences={num_return_sequences}, num_beams={num_beams}."
        )
    return options


def checked_max_length(max_length, max_sequence_length):
    """The most tokens of an answer: `max_length`, or where that is None, all that the model can take.

    Raises:
        ValueError: if `max_length` is greater than `max_sequence_length`.

    Example:

    ```python
    max_length = checked_max_length(None, max_sequence_length=512)
    ```
    """
    if max_length is None:
        return max_sequence_length
    if max_length > max_sequence_length:
        raise ValueError(
            "`max_length` must be at most `max_sequence_length`. "
            f"Received: max_length={max_length}, max_sequence_length={max_sequence_length}."
        )
    return max_length


def answers(num_beams, num_return_sequences, options, length_penalty=1.0, coverage=None, **arguments):
    """What a model's `generate` returns: samples if `options` ask for them, else the best of a search.

    Greedy search where nobody asks for more than the tokens of one beam.

    Args:
        num_beams, options, length_penalty, coverage, **arguments: As in `beam_search`; those that are not of beams alone go to
            `sample` too.
        num_return_sequences: Integer n, or None.

    Returns:
        `Hypotheses` of n answers a row; or, if None, int32 (B, max_length), the first answer of each row.

    Example:

    ```python
    from keras_attn.ops import empty_cache

    token_ids = answers(
        num_beams=2,
        num_return_sequences=None,
        options=DecodingOptions(),
        step=lambda token_ids, index, cache, attention_mask: (keras.ops.zeros((1, 2, 5)), cache),
        make_cache=lambda slots: (empty_cache(1, 1, slots, 1),),
        batch_size=1,
        max_length=4,
        start_token_id=2,
        end_token_id=3,
    )
    ```
    """
    if options.is_sampling:
        found = sample(
            **arguments, options=options, length_penalty=length_penalty, num_samples=num_return_sequences or 1
        )
    elif num_beams == 1 and num_return_sequences is None:
        return greedy_search(**arguments, options=options)
    else:
        found = beam_search(
            **arguments,
            options=options,
            length_penalty=length_penalty,
            num_beams=num_beams,
            coverage=coverage,
        )
    if num_return_sequences is None:
        return found.token_ids[:, 0]
    return Hypotheses(*(x[:, :num_return_sequences] for x in found))
