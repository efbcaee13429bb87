"""Seq2SeqTransformer: one answer on every path, masks that hold, options, and errors that say what to do."""

import concurrent.futures

import keras
import numpy as np
import pytest
from helpers_models import (
    END,
    PAD,
    SIZES,
    START,
    TARGET_V,
    VARIANTS,
    B,
    S,
    T,
    V,
    assert_close,
    call,
    generate,
    make_batch,
    make_model,
    shared_model,
    weight_gradients,
)
from keras import ops

from keras_attn.models import Seq2SeqTransformer

# The two that differ most.
FEWER_VARIANTS = ("post_norm", "untied_gated_rms_learned")


def cached_logits(model, batch, chunks):
    """The logits of `decoder_token_ids`, computed in chunks of the given lengths."""
    token_ids = batch["decoder_token_ids"]
    cache = model.init_cache(batch["encoder_token_ids"], length=token_ids.shape[1] + 2)
    first, logits = 0, []
    for length in chunks:
        part, cache = model.call_with_cache(token_ids[:, first : first + length], cache, first)
        logits.append(ops.convert_to_numpy(part))
        first += length
    assert first == token_ids.shape[1]
    return np.concatenate(logits, axis=1)


@pytest.mark.parametrize("variant", FEWER_VARIANTS)
def test_full_forward_equals_cached_decoding(variant):
    model = shared_model(variant)
    batch = make_batch() | {"decoder_token_ids": make_batch(pads=False)["decoder_token_ids"]}
    full = call(model, batch)
    assert full.shape == (B, T, TARGET_V if "target_vocabulary_size" in VARIANTS[variant] else V)
    assert full.dtype == "float32"
    for chunks in ([T], [1, 1, 3]):
        assert_close(cached_logits(model, batch, chunks), full)


def test_cached_decoding_at_given_positions_and_slots():
    # Two rows share slots 0 to 4 but the second begins two slots later: positions say so, and a mask hides the rest.
    model = shared_model()
    batch = make_batch(batch_size=2, pads=False)
    full = call(model, batch)
    shifted = np.array([[START, START, *batch["decoder_token_ids"][1, : T - 2]]], "int32")
    cache = model.init_cache(batch["encoder_token_ids"][1:], length=T)
    visible = (np.arange(T) >= 2) & (np.arange(T) <= np.arange(T)[:, None])
    logits, _ = model.call_with_cache(
        shifted,
        cache,
        0,
        positions=np.array([[0, 0, 0, 1, 2]]),
        decoder_attention_mask=ops.convert_to_tensor(visible[None]),
    )
    assert_close(ops.convert_to_numpy(logits)[0, 2:], full[1, : T - 2])


@pytest.mark.parametrize("variant", FEWER_VARIANTS)
def test_more_padding_and_batch_mates_change_no_logits(variant):
    model = shared_model(variant)
    batch = make_batch()
    real = batch["decoder_token_ids"] != PAD
    logits = call(model, batch)
    longer = {name: np.pad(ids, ((0, 0), (0, 4))) for name, ids in batch.items()}
    assert_close(call(model, longer)[:, :T][real], logits[real])
    for row in (0, B - 1):
        source = batch["encoder_token_ids"][row][batch["encoder_token_ids"][row] != PAD]
        target = batch["decoder_token_ids"][row][real[row]]
        alone = call(model, {"encoder_token_ids": source[None], "decoder_token_ids": target[None]})
        assert_close(alone[0], logits[row][real[row]])


def test_more_padding_and_batch_mates_change_no_answer():
    model = shared_model()
    ids = make_batch()["encoder_token_ids"]
    options = {"num_beams": 3, "num_return_sequences": 3, "max_length": 5}
    token_ids, scores = generate(model, ids, **options)
    longer_ids, longer_scores = generate(model, np.pad(ids[1:], ((0, 0), (0, 4))), **options)
    np.testing.assert_array_equal(longer_ids, token_ids[1:])
    np.testing.assert_allclose(longer_scores, scores[1:], atol=1e-5)
    last = ids[-1:][:, ids[-1] != PAD]
    alone_ids, alone_scores = generate(model, last, **options)
    np.testing.assert_array_equal(alone_ids[0], token_ids[-1])
    np.testing.assert_allclose(alone_scores[0], scores[-1], atol=1e-5)


def test_what_stands_at_pads_changes_nothing_to_the_last_bit():
    model = make_model("two_vocabularies")
    batch = make_batch()
    real = batch["decoder_token_ids"] != PAD
    logits = call(model, batch)
    embeddings = ops.convert_to_numpy(model.source_embedding.token.embeddings).copy()
    for content in (1e6, np.nan):
        embeddings[PAD] = content
        model.source_embedding.token.embeddings.assign(embeddings)
        np.testing.assert_array_equal(call(model, batch)[real], logits[real])


def test_the_source_mask_is_needed():
    # The pads of one row taken for words: with any layer's mask missing, this would be the model's answer.
    batch = make_batch()
    model, unmasked = shared_model(), shared_model(pad_token_id=1)
    batch["decoder_token_ids"][1:] = batch["decoder_token_ids"][0]
    difference = np.abs(call(model, batch) - call(unmasked, batch)).max(axis=(1, 2))
    assert difference[0] == 0
    assert (difference[1:] > 1e-2).all()


@pytest.mark.extended
def test_a_source_row_of_pads_is_finite_and_disturbs_nobody():
    model = shared_model()
    batch = make_batch(pads=False)
    logits = call(model, batch)
    empty = {name: ids.copy() for name, ids in batch.items()}
    empty["encoder_token_ids"][1] = PAD
    with_empty = call(model, empty)
    assert np.isfinite(with_empty).all()
    np.testing.assert_array_equal(with_empty[[0, 2]], logits[[0, 2]])
    options = {"num_beams": 2, "num_return_sequences": 2, "max_length": 4}
    token_ids, scores = generate(model, empty["encoder_token_ids"], **options)
    neighbours = generate(model, batch["encoder_token_ids"], **options)
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(token_ids[[0, 2]], neighbours[0][[0, 2]])
    gradients = weight_gradients(model, empty, lambda logits: ops.sum(logits**2))
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("variant", FEWER_VARIANTS)
def test_later_target_tokens_change_no_earlier_logits(variant):
    model = shared_model(variant)
    batch = make_batch(pads=False)
    logits = call(model, batch)
    for t in (1, T - 2):
        later = {name: ids.copy() for name, ids in batch.items()}
        later["decoder_token_ids"][:, t:] = (batch["decoder_token_ids"][:, t:] - 1) % 7 + 4
        changed = call(model, later)
        np.testing.assert_array_equal(changed[:, :t], logits[:, :t])
        assert np.abs(changed[:, t] - logits[:, t]).max() > 1e-3


@pytest.mark.extended
def test_the_jacobian_above_the_diagonal_is_zero():
    # The learned vector of position i is an input at place i: logits at t depend on those up to t, and only on them.
    model = shared_model(position_encoding="learned")
    batch = make_batch(target_length=3, pads=False)
    for t in range(3):
        gradients = weight_gradients(model, batch, lambda logits, t=t: ops.sum(logits[:, t] ** 2))
        reached = np.abs(gradients["target_embedding/position_encoding/embeddings"]).max(axis=-1) > 0
        np.testing.assert_array_equal(reached, np.arange(SIZES["max_sequence_length"]) <= t)


def expected_parameters(layers, hidden_dim, intermediate_dim, vocabulary_size):
    """Vaswani et al., sections 3.2 to 3.4, with biases: one embedding for both sides and the output."""
    attention = 4 * (hidden_dim * hidden_dim + hidden_dim)
    feed_forward = 2 * hidden_dim * intermediate_dim + intermediate_dim + hidden_dim
    norm = 2 * hidden_dim
    encoder_block = attention + feed_forward + 2 * norm
    decoder_block = 2 * attention + feed_forward + 3 * norm
    return vocabulary_size * hidden_dim + layers * (encoder_block + decoder_block)


# The last column: millions of parameters in Vaswani et al., Table 3, where V is about 37,000 (section 5.1).
@pytest.mark.parametrize(
    ("preset", "vocabulary_size", "sizes", "count", "millions"),
    [
        ("tiny", 10007, (4, 128, 256), 2_605_952, None),
        ("base", 37000, (6, 512, 2048), 63_082_496, 65),
        ("big", 37000, (6, 1024, 4096), 214_245_376, 213),
    ],
)
def test_parameter_counts_of_the_papers(preset, vocabulary_size, sizes, count, millions):
    def count_params():
        with keras.StatelessScope(initialize_variables=False):
            return Seq2SeqTransformer.from_preset(preset, vocabulary_size).count_params()

    # Without values; a thread of its own, as Keras would give them to the variables of this one later.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        found = thread.submit(count_params).result()
    assert found == count == expected_parameters(*sizes, vocabulary_size)
    if millions:
        assert count / 1e6 == pytest.approx(millions, rel=0.04)


def test_presets_take_other_arguments_and_name_the_known_ones():
    model = Seq2SeqTransformer.from_preset(
        "tiny", 13, num_encoder_layers=1, num_decoder_layers=2, dropout=0.2
    )
    assert (len(model.encoder_blocks), len(model.decoder_blocks)) == (1, 2)
    assert (model.hidden_dim, model.cross_attention_shape, model.decoder_blocks[0].dropout) == (
        128,
        (2, 4),
        0.2,
    )
    with pytest.raises(ValueError, match=r"`preset` must be one of \['base', 'big', 'tiny'\].*'huge'"):
        Seq2SeqTransformer.from_preset("huge", 13)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("variant", FEWER_VARIANTS)
def test_a_gradient_reaches_every_weight(variant):
    model = shared_model(variant)
    gradients = weight_gradients(model, make_batch(), lambda logits: ops.sum(ops.sin(logits)))
    for path, gradient in gradients.items():
        assert np.isfinite(gradient).all(), path
        # A bias of the keys moves all logits of a query alike, which softmax does not see.
        assert np.abs(gradient).max() > 1e-4 or path.endswith("key/bias"), path


def test_one_embedding_three_roles():
    model = make_model()
    assert model.source_embedding.token is model.target_embedding.token
    assert sum("embedding" in weight.path for weight in model.weights) == 1
    batch = make_batch(pads=False)
    before = call(model, batch)
    embeddings = ops.convert_to_numpy(model.target_embedding.token.embeddings).copy()
    embeddings[12] += 1.0  # a token that is in no input: only its own logit may move
    model.target_embedding.token.embeddings.assign(embeddings)
    moved = np.abs(call(model, batch) - before).max(axis=(0, 1)) > 1e-6
    np.testing.assert_array_equal(moved, np.arange(V) == 12)


def test_untied_output_has_weights_of_its_own():
    model = make_model(tie_output=False)
    batch = make_batch(pads=False)
    before = call(model, batch)
    embeddings = ops.convert_to_numpy(model.target_embedding.token.embeddings).copy()
    embeddings[12] += 1.0
    model.target_embedding.token.embeddings.assign(embeddings)
    np.testing.assert_array_equal(call(model, batch), before)
    assert model.count_params() == shared_model().count_params() + V * 14


def test_learned_positions_end_where_they_end():
    model = make_model(position_encoding="learned", max_sequence_length=7, num_decoder_layers=1)
    batch = make_batch(source_length=7)
    assert call(model, batch).shape == (B, T, V)
    longer = batch | {"encoder_token_ids": make_batch(source_length=8)["encoder_token_ids"]}
    message = r"longer than `max_sequence_length`. Received: length 8, max_sequence_length=7"
    with pytest.raises(ValueError, match=message):
        model(longer)
    with pytest.raises(ValueError, match=r"max_length=8, max_sequence_length=7"):
        model.generate(batch["encoder_token_ids"], START, END, max_length=8)
    assert generate(model, batch["encoder_token_ids"][:1], max_length=7).shape == (1, 7)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"encoder_token_ids": [[4]]}, r"\['encoder_token_ids'\]"),
        ({"encoder_token_ids": [[4]], "decoder_token_ids": [[2]], "mask": [[1]]}, "mask"),
        ([[4, 5]], "Received"),
    ],
)
def test_inputs_are_a_dict_of_two(inputs, message):
    wrong = keras.tree.map_structure(lambda value: value, inputs)
    as_arrays = (
        {name: np.array(ids) for name, ids in wrong.items()} if isinstance(wrong, dict) else np.array(wrong)
    )
    with pytest.raises(ValueError, match=rf"`inputs` must be a dict of .*decoder_token_ids.*{message}"):
        shared_model()(as_arrays)


def test_the_order_of_the_inputs_is_free():
    model = shared_model()
    batch = make_batch()
    np.testing.assert_array_equal(call(model, dict(reversed(batch.items()))), call(model, batch))


@pytest.mark.parametrize("name", ["encoder_token_ids", "decoder_token_ids"])
@pytest.mark.parametrize("wrong", [-1, V, 10**6])
def test_ids_outside_the_vocabulary_raise_eagerly(name, wrong):
    batch = make_batch()
    batch[name][0, 1] = wrong
    with pytest.raises(ValueError, match=rf"Token ids must lie in \[0, {V}\). Received: {wrong}\."):
        shared_model()(batch)


def test_ids_outside_the_vocabulary_raise_in_generate():
    with pytest.raises(ValueError, match="Token ids must lie in"):
        shared_model().generate(np.array([[4, V]]), START, END, max_length=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary_size": 0}, "`vocabulary_size` must be a positive integer"),
        ({"target_vocabulary_size": -3}, "`target_vocabulary_size` must be a positive integer"),
        ({"num_encoder_layers": 0}, "`num_encoder_layers` must be a positive integer"),
        ({"num_decoder_layers": 1.5}, "`num_decoder_layers` must be a positive integer"),
        ({"hidden_dim": 0}, "`hidden_dim` must be a positive integer"),
        ({"num_heads": 0}, "`num_heads` must be a positive integer"),
        ({"num_heads": 3}, "must be divisible by `num_heads`"),
        ({"intermediate_dim": None}, "`intermediate_dim` must be a positive integer"),
        ({"max_sequence_length": 0}, "`max_sequence_length` must be a positive integer"),
        ({"dropout": 1.0}, r"`dropout` must be a number in \[0, 1\)"),
        ({"attention_dropout": -0.1}, r"`dropout` must be a number in \[0, 1\)"),
        ({"normalization": "batch"}, r"`normalization` must be one of \['layer_norm', 'rms_norm'\]"),
        (
            {"position_encoding": "none"},
            r"`position_encoding` must be one of \['learned', 'rotary', 'sinusoidal'\]",
        ),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        Seq2SeqTransformer.from_sizes(**{**SIZES, **options})


@pytest.mark.extended
def test_mixed_precision_is_close_and_answers_in_float32():
    batch = make_batch()
    real = batch["decoder_token_ids"] != PAD
    expected = call(shared_model("pre_norm"), batch)
    model = make_model("pre_norm", dtype="mixed_bfloat16")
    logits = call(model, batch)
    assert logits.dtype == "float32"
    assert model.target_embedding.token.embeddings.dtype == "float32"
    assert_close(logits[real], expected[real], 3e-2)
    token_ids, scores = generate(
        model, batch["encoder_token_ids"], num_beams=2, num_return_sequences=2, max_length=3
    )
    assert token_ids.shape == (B, 2, 3)
    assert scores.dtype == "float32"
    assert np.isfinite(scores).all()


@pytest.mark.extended
def test_one_seed_one_model():
    def train_once():
        keras.utils.set_random_seed(23)
        model = Seq2SeqTransformer.from_sizes(**SIZES, dropout=0.2)
        return call(model, make_batch()), call(model, make_batch(), training=True)

    first, second = train_once(), train_once()
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])
    assert np.abs(first[0] - first[1]).max() > 1e-2


def test_dropout_is_off_unless_training():
    model = make_model(dropout=0.5, attention_dropout=0.5)
    logits = call(model, make_batch())
    np.testing.assert_array_equal(logits, call(model, make_batch(), training=False))
    np.testing.assert_array_equal(logits, call(shared_model(dropout=0.0), make_batch()))


@pytest.mark.parametrize("variant", ["pre_norm", "untied_gated_rms_learned"])
def test_config_round_trip(variant):
    model = make_model(variant, pad_token_id=1, dtype="mixed_bfloat16", name="mine")
    config = model.get_config()
    again = Seq2SeqTransformer.from_config(config)
    assert again.get_config() == config
    assert again.dtype_policy.name == "mixed_bfloat16"
    assert [weight.shape for weight in again.weights] == [weight.shape for weight in model.weights]
    assert (again.pad_token_id, again.max_sequence_length) == (1, SIZES["max_sequence_length"])


def test_attention_scores_of_each_layer():
    model = shared_model()
    batch = make_batch()
    mask = ops.not_equal(batch["encoder_token_ids"], PAD)
    encoder_sequence = model.encode(batch["encoder_token_ids"])
    logits, scores = model.decode(
        batch["decoder_token_ids"], encoder_sequence, mask, return_attention_scores=True
    )
    np.testing.assert_array_equal(ops.convert_to_numpy(logits), call(model, batch))
    assert len(scores) == SIZES["num_decoder_layers"]
    real_queries = batch["decoder_token_ids"] != PAD
    real_keys = batch["encoder_token_ids"] != PAD
    for layer_scores in map(ops.convert_to_numpy, scores):
        assert layer_scores.shape == (B, SIZES["num_heads"], T, S)
        np.testing.assert_allclose(
            layer_scores.sum(axis=-1), np.repeat(real_queries[:, None], 2, axis=1), atol=1e-6
        )
        assert not layer_scores[~np.broadcast_to(real_keys[:, None, None], layer_scores.shape)].any()
