"""Continues prompts on the terminal."""

import sys

from keras_attn.generation import DecodingOptions
from keras_attn.terminal import write_answer


def generate_texts(generator, prompts=(), num_return_sequences=None, options=None, **search):
    """Prints prompts and their continuations.

    One prompt that is continued greedily is printed piece by piece. Several answers are set apart by empty lines.

    Args:
        generator: A `TextGenerator`.
        prompts: List of strings; without any, each line of standard input is one.
        num_return_sequences: Integer, how many continuations of each prompt.
        options: `DecodingOptions`, each with one value.
        search: More arguments of a call of the generator: `num_beams`, `length_penalty`, `max_length`.
    """
    options = DecodingOptions() if options is None else options
    is_greedy = (search.get("num_beams") or generator.num_beams) == 1 and not options.given()
    prompts = list(prompts) or (line.rstrip(b"\r\n").decode("utf-8", "replace") for line in sys.stdin.buffer)
    for number, prompt in enumerate(prompts):
        if number:
            write_answer("")
        if is_greedy and num_return_sequences is None:
            write_answer(prompt, end="")
            for piece in generator.stream(prompt, search.get("max_length")):
                write_answer(piece, end="")
            write_answer("")
            continue
        answers = generator(prompt, num_return_sequences=num_return_sequences or 1, options=options, **search)
        write_answer("\n\n".join(prompt + answer for answer in answers))
