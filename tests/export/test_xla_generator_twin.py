"""The twin of a text generator for XLA answers as Python does, over no other shapes than those it was exported for."""

import pytest
from helpers_marks import CUTS_ARE_EXPECTED
from helpers_text_generators import PROMPTS, byte_generator, piece_generator, prompt_ids
from helpers_translators import ODD_TEXTS

from keras_attn.export import read_warmup_requests, read_xla_buckets, run_saved_model, verify_saved_model
from keras_attn.generation import DecodingOptions

pytestmark = [pytest.mark.extended, CUTS_ARE_EXPECTED]

EXAMPLES = ["To be, or not", "that is"]


def exported(generator, tmp_path, **options):
    longest = generator.model.max_sequence_length - 1
    given = {"xla": True, "batch_sizes": (5,), "lengths": (11, longest), **options}
    return generator.export(tmp_path / "it", EXAMPLES, **given)


def answers_of(twin, *batches):
    found = run_saved_model(twin, [{"inputs": {"inputs": batch}} for batch in batches], 300, xla=True)
    return [answer["outputs"]["outputs"] for answer in found]


def test_it_continues_as_python_does_over_few_shapes(tmp_path):
    generator = byte_generator(num_beams=2)
    twin = exported(generator, tmp_path)
    texts = [*PROMPTS, *ODD_TEXTS]
    batches = [[], texts[:1], texts, texts[::-1] * 2]
    expected = dict(zip(texts, generator(texts)))
    assert answers_of(twin, *batches) == [[expected[text] for text in batch] for batch in batches]
    assert read_xla_buckets(twin) == {"batch_sizes": [5], "lengths": [11, 36]}
    # A prompt of 37 tokens, START counted, has no room for a new one: its last 37 - 5 are read, as with the longest bucket.
    prompts = [inputs["inputs"].tolist() for _, inputs in read_warmup_requests(twin)]
    assert [(len(batch), prompt_ids(generator, batch[0]).shape[1]) for batch in prompts] == [(5, 11), (5, 32)]
    assert not [check for check in verify_saved_model(twin, texts=EXAMPLES) if check.problems]


@pytest.mark.parametrize("quantization", ["int8", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_quantised_it_answers_as_the_generator_that_xla_compiles(quantization, tmp_path):
    generator = byte_generator(num_beams=1, jit_compile=True)
    twin = exported(generator, tmp_path, quantization=quantization)
    assert answers_of(twin, PROMPTS) == [generator.quantized(quantization, xla=True)(PROMPTS)]


@pytest.mark.slow
def test_its_options_and_pieces_are_those_of_the_generator(tmp_path):
    options = DecodingOptions(repetition_penalty=1.7, no_repeat_ngram_size=2, min_length=3)
    generator = piece_generator(options=options)
    assert answers_of(exported(generator, tmp_path), PROMPTS) == [generator(PROMPTS)]
    assert generator(PROMPTS) != piece_generator()(PROMPTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": (11, 37)}, r"`lengths` must end with the model's max_sequence_length - 1=36\. Received"),
        ({"batch_sizes": (5, 3)}, "`batch_sizes` must be rising"),
        ({"signatures": ["score"]}, "`serving_default` alone: give `xla` or `signatures`"),
        ({"attention": True}, "export `attention` to another folder, without `xla`"),
    ],
)
def test_what_cannot_be_compiled_is_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        exported(byte_generator(), tmp_path, **options)
