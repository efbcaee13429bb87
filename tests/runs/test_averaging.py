"""The mean of weights that have no common meaning is refused: of other words, other heads, another beginning."""

import keras
import numpy as np
import pytest

import keras_attn
from keras_attn.models import Seq2SeqTransformer, save_weights
from keras_attn.runs import average_translator
from keras_attn.runs.combined_translators import weights_origin
from keras_attn.text import WordPieceTokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c"]


def translator(words=WORDS, seed=3, num_heads=2):
    keras.utils.set_random_seed(seed)
    model = Seq2SeqTransformer.from_sizes(
        len(words), 1, 1, hidden_dim=12, num_heads=num_heads, intermediate_dim=5, max_sequence_length=11
    )
    tokenizer = WordPieceTokenizer(words)
    return keras_attn.Translator(model, tokenizer, tokenizer, max_length=7)


OTHERS = {
    "(source|target) tokenizer": {"words": [*WORDS[:4], "c", "a", "b"]},
    "configuration": {"num_heads": 3},
    "weights that training began with": {"seed": 4},
}


def write(folder, trained, factor=1.0):
    """The files of a run: a translator, and the weights of an epoch."""
    origin = weights_origin(trained)
    for weight in trained.model.weights:
        weight.assign(factor * keras.ops.convert_to_tensor(weight))
    save_weights(trained.model, folder / "epoch.safetensors", origin)
    trained.save(folder / "translator")
    return folder / "epoch.safetensors", folder / "translator"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", OTHERS)
def test_weights_without_a_common_meaning_are_refused(what, tmp_path):
    own, folder = write(tmp_path / "own", translator())
    later, _ = write(tmp_path / "later", translator(), factor=3.0)
    average_translator([own, later], folder, tmp_path / "averaged")
    twice = keras_attn.Translator.load(tmp_path / "averaged").model.weights
    for weight, first in zip(twice, translator().model.weights, strict=True):
        np.testing.assert_allclose(weight, 2 * np.asarray(first), rtol=1e-6)
    other, other_folder = write(tmp_path / "other", translator(**OTHERS[what]))
    with pytest.raises(ValueError, match=f"other/epoch.safetensors and in .* another ({what})"):
        average_translator([own, other], folder, tmp_path / "mixed")
    if "began" not in what:
        with pytest.raises(
            ValueError, match=f"own/epoch.safetensors and in .*other/translator.* another ({what})"
        ):
            average_translator([own], other_folder, tmp_path / "mixed")
    assert not (tmp_path / "mixed").exists()
