"""Small text generators for tests of continuing, saving, exporting and the command line."""

import numpy as np
from helpers_seed import set_seed

import keras_attn
from keras_attn.text import ByteTokenizer, SentencePieceTokenizer

LINES = ["To be, or not to be:", "that  is the question,", "\twhether 'tis nobler in the mind", "to suffer"]
# Prompts of several lengths: none, one that fills all but two of the positions, and one that must be cut.
PROMPTS = ["", "To be", "or not\nto be, that", "y" * 34, "x" * 80, "é😀"]


def with_varied_weights(model, seed=3):
    """Weights for which answers are no repetition of one token."""
    rng = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        if len(weight.shape) > 1:
            weight.assign(rng.normal(size=weight.shape) * 2.5 / np.sqrt(weight.shape[0]))
    return model


def byte_generator(**options):
    """Two layers over bytes, with learned positions, which begin a text after a line break."""
    set_seed(3)
    model = keras_attn.models.DecoderTransformer.from_sizes(
        259, 2, hidden_dim=20, num_heads=2, intermediate_dim=23, max_sequence_length=37
    )
    options = {"num_beams": 3, "max_length": 5, "start_token_id": 3 + ord("\n"), **options}
    return keras_attn.TextGenerator(with_varied_weights(model), ByteTokenizer(), **options)


def piece_generator(**options):
    """One layer with rotary positions over pieces that keep white space; texts begin after END."""
    set_seed(5)
    tokenizer = SentencePieceTokenizer.train(LINES, vocabulary_size=290, keep_white_space=True)
    model = keras_attn.models.DecoderTransformer.from_sizes(
        tokenizer.vocabulary_size,
        1,
        hidden_dim=24,
        num_heads=3,
        intermediate_dim=17,
        position_encoding="rotary",
        max_sequence_length=41,
    )
    options = {"max_length": 5, "start_token_id": tokenizer.end_token_id, **options}
    return keras_attn.TextGenerator(with_varied_weights(model), tokenizer, **options)


def prompt_ids(generator, text, max_length=None):
    """The prompt that the class' docstring describes, as an array (1, P)."""
    ids = [generator.start_token_id, *generator.tokenizer.encode([text])[0]]
    total = generator.model.max_sequence_length
    if len(ids) >= total:
        ids = ids[-(total - min(max_length or generator.max_length, total // 2)) :]
    return np.array([ids])


def continued(generator, text, max_length=None, **search):
    """What the model's `generate` finds after one prompt alone, as arrays."""
    ids = prompt_ids(generator, text, max_length)
    most = min(max_length or generator.max_length, generator.model.max_sequence_length - ids.shape[1])
    return generator.model.generate(
        ids,
        generator.tokenizer.end_token_id,
        max_length=most,
        unwritable_token_ids=generator.unwritable_token_ids,
        **search,
    )


def text_after(generator, text, token_ids):
    """The text of token ids (L,) after a prompt."""
    ids = prompt_ids(generator, text)[0].tolist()
    ids = ids[1:] if ids[0] == generator.start_token_id else ids
    before, whole = generator.tokenizer.decode([ids, [*ids, *map(int, np.asarray(token_ids))]])
    assert whole.startswith(before)
    return whole[len(before) :]
