"""Breaks one line of the library at a time, and asks whether the tests notice.

    python tests/mutants.py [NAME ...] [--jobs 2]

Each mutant is an edit of one place in a temporary copy of the library, found by the function it is in and the code it
changes. Every test named beside it must fail there, and pass on an unchanged copy. A mutant whose place is gone, or that
a named test lets live, fails the script; so does one of QUALITY_FAULTS that no test of the default run kills.
"""

import argparse
import ast
import dataclasses
import functools
import gc
import importlib
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import re
import shutil
import sys
import tempfile
import textwrap
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[1]
SECONDS_A_RUN = 600
# What every child needs, imported once: the children are forks. The library itself must not be among it.
WARM_UP = ("tensorflow", "keras", "tensorflow_text", "sentencepiece", "hypothesis", "pytest")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`original`, which stands once in the function or class `where`, becomes `mutated`; each of `tests` must fail then.

    Code is compared as `ast.unparse` writes it: layout, comments, quotes and superfluous brackets do not count.
    `where` is looked for in the whole package; code that has left it is found by the last name of `where` alone, and at
    last by itself.
    """

    name: str
    where: str
    original: str
    mutated: str
    tests: tuple[str, ...]

    def applied(self, sources):
        """The file that changes and its mutated code, given the code of every file.

        Raises:
            ValueError: if `original` is nowhere, or more than once where it was looked for.
        """
        wanted = _tokens(_canonical(self.original))
        words = [token for token, _, _ in wanted if token.isidentifier()]
        sources = {file: source for file, source in sources.items() if all(word in source for word in words)}
        name = self.where.rpartition(".")[2]
        for where in (self.where, name, None):
            places = [
                (file, code, *span)
                for file, source in sources.items()
                if where is None or name in source
                for code, tree in [unparsed(source)]
                for span in _spans(code, tree, where, wanted)
            ]
            if places:
                break
        if len(places) != 1:
            raise ValueError(
                f"{self.original!r} stands {len(places)} times in {where or 'the package'}; it must stand once"
            )
        file, code, first, last = places[0]
        column = first - (code.rfind("\n", 0, first) + 1)
        mutated = textwrap.indent(_canonical(self.mutated), " " * column).lstrip()
        return file, code[:first] + mutated + code[last:]

    def apply(self, root):
        folder = root / "keras_attn"
        paths = folder.rglob("*.py")
        sources = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}
        file, mutated = self.applied(sources)
        (folder / file).write_text(mutated, encoding="utf-8")


@functools.cache
def unparsed(source):
    """Code as `ast.unparse` writes it, and its syntax tree."""
    code = ast.unparse(ast.parse(source))
    return code, ast.parse(code)


def _canonical(code):
    """`code` as `ast.unparse` writes it: statements, arguments, items of a dict, the head of a statement or its rest."""
    code = code.strip().rstrip(",")
    for before, after in (("", ""), ("f(", ")"), ("{", "}"), ("", " pass")):
        try:
            tree = ast.parse(f"{before}{code}{after}")
        except SyntaxError:
            continue
        # `a, b` has brackets as an expression of its own, and none as arguments.
        if before or not (len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr)):
            return ast.unparse(tree).removeprefix(before).removesuffix(after).rstrip()
    return code


def _tokens(code):
    """(token, start, end) of names, numbers and single signs."""
    return [(match[0], *match.span()) for match in re.finditer(r"\w+|\S", code)]


def _spans(code, tree, where, wanted):
    """The places of the tokens `wanted` in the functions and classes named `where` (`Class.method.inner`) of `code`."""
    nodes = [tree]
    for name in where.split(".") if where else ():
        inner = (node for parent in nodes for node in ast.walk(parent) if node is not parent)
        kinds = (ast.FunctionDef, ast.ClassDef)
        nodes = [node for node in inner if isinstance(node, kinds) and node.name == name]
    starts = [0, *itertools.accumulate(len(line) for line in code.splitlines(keepends=True))]
    spans = set()
    for node in nodes:
        start, stop = (0, len(code)) if node is tree else (starts[node.lineno - 1], starts[node.end_lineno])
        tokens = _tokens(code[start:stop])
        for i in range(len(tokens) - len(wanted) + 1):
            part = tokens[i : i + len(wanted)]
            if all(one[0] == other[0] for one, other in zip(part, wanted)):
                spans.add((start + part[0][1], start + part[-1][2]))
    return sorted(spans)


OPS, LAYERS = "ops/test_dot_product_attention.py::", "layers/test_layer_contract.py::"
ROWS = "generation/test_live_rows.py::"
MODEL, SEARCH = "models/test_seq2seq_transformer.py::", "generation/test_beam_search.py::"
BLOCKS, RULES = "ops/test_memory_efficient_attention.py::", "ops/test_mask_rule.py::"
VARIANTS, RING = "layers/test_attention_variants.py::", "ops/test_ring.py::"
NAN = "layers/test_nan_in_padding.py::"
OTHERS = "layers/test_differential_and_talking_heads.py::"
OPTIONS = "generation/test_options.py::"
ENGINE = "export/test_ctranslate2.py::"
SEEING = "inspection/"
LOSSES, BATCHING = "training/test_losses.py::", "data/test_pair_batches.py::"
LOGITS = "training/test_crossentropy.py::"

CHECKPOINTS = "huggingface/test_architectures_of_checkpoints.py::"
PATCHES, IMAGES = "layers/test_patch_embedding.py::", "huggingface/test_vision_checkpoints.py::"
WINDOWS, SWIN = "layers/test_window_attention.py::", "models/test_swin_transformer.py::"
DAMAGED = "huggingface/test_damaged_checkpoints.py::"
LIFELIKE = "huggingface/test_lifelike_tokenizers.py::"
MEETING, TASK_MEETING = (
    "meetings/test_meetings.py::test_meeting",
    "meetings/test_task_meetings.py::test_meeting",
)
MEASURE_MEETING = "meetings/test_meetings.py::test_meeting_of_a_measure"

MUTANTS = [
    # What was wrong where parts met Keras' habits, or each other.
    Mutant(
        "products_with_numbers_are_sparse",
        "dense_spec",
        "return keras.KerasTensor(x.shape, dtype=x.dtype) if is_sparse else x",
        "return x",
        (f"{MEETING}[given_a_mask_after_times_a_number-layers.MultiHeadAttention]",),
    ),
    Mutant(
        "no_word_of_lost_masks",
        "BaseLayer._warn_of_lost_masks",
        "operation = operation_that_lost_the_mask(arguments.get(name), stop_at=_WARNED)",
        "operation = None",
        (f"{MEETING}[after_half_of_it-layers.BahdanauAttention]",),
    ),
    Mutant(
        "masks_lost_in_time_distributed",
        "_with_mask_argument.call_with_mask",
        "bound.arguments[padding_mask] = combine_with_carried_mask(mask, bound.arguments.get(padding_mask))",
        "pass",
        (f"{MEETING}[time_distributed-layers.EncoderBlock]",),
    ),
    Mutant(
        "ids_clamped_in_graphs",
        "TokenEmbedding._vectors",
        'indices_within(token_ids, self.vocabulary_size, "Token ids")',
        'ops.clip(ops.cast(token_ids, "int32"), 0, self.vocabulary_size - 1)',
        (f"{MEETING}[ids_outside_the_vocabulary-layers.TokenEmbedding]",),
    ),
    Mutant(
        "positions_counted_from_the_pads",
        "SequenceEmbedding.call",
        'padding_mask = combined_padding_mask(padding_mask, vectors, "padding_mask")',
        "padding_mask = None",
        (f"{MEETING}[pads_on_the_left-models.EncoderTransformer]",),
    ),
    Mutant(
        "a_graph_for_each_penalty",
        "_search",
        "key = tuple(sizes.values())",
        'key = (*sizes.values(), search["length_penalty"])',
        (f"{TASK_MEETING}[other_values_of_an_option-TextGenerator]",),
    ),
    Mutant(
        "graphs_kept_though_the_task_changed",
        "GraphCache._find",
        "is_stale = depends_on_owner and structure is not None and not structure.is_unchanged()",
        "is_stale = False",
        (f"{TASK_MEETING}[after_lora-TextGenerator]",),
    ),
    Mutant(
        "one_encoding_without_a_batch_axis",
        "_repeat_for_batch",
        "return ops.broadcast_to(encoding, ops.shape(inputs))",
        "return encoding",
        (
            "layers/test_carried_masks.py::test_positions_have_the_shape_of_the_sequence_and_its_mask[sinusoidal-3]",
        ),
    ),
    Mutant(
        "probabilities_taken_for_logits",
        "token_negative_log_likelihood",
        "ops.logical_and(in_vocabulary, ops.logical_not(_are_probabilities(flat_logits)))",
        "in_vocabulary",
        (f"{MEASURE_MEETING}[ends_in_rescaling_after_softmax-LabelSmoothedCrossentropy]",),
    ),
    Mutant(
        "pads_counted_in_dynamic_ntk",
        "MultiHeadAttention._count_tokens",
        "if not is_self_attention or not (self.num_sink_tokens or depends_on_length):",
        "if True:",
        (f"{MEETING}[more_pads_on_the_right-models.EncoderTransformer-dynamic]",),
    ),
    Mutant(
        "exports_found_without_their_content",
        "_key",
        '"content": content,',
        '"content": None,',
        (f"{TASK_MEETING}[served_from_its_folder-ImageClassifier]",),
    ),
    Mutant(
        "padding_mask_taken_for_a_mask_of_pairs",
        "EncoderBlock.call",
        'check_attention_mask_rank(attention_mask, inputs, "attention_mask", "padding_mask")',
        "pass",
        (f"{MEETING}[a_padding_mask_given_as_attention_mask-layers.EncoderBlock]",),
    ),
    Mutant(
        "nan_at_pads_reaches_weights",
        "without_padding",
        "if is_token is None or is_padding_clean():",
        "if True:",
        (f"{MEETING}[nan_at_pads-layers.EncoderBlock]", f"{MEETING}[nan_at_pads-layers.BahdanauAttention]"),
    ),
    Mutant(
        "blocks_attend_over_two_axes",
        "Block._check_axes",
        'check_rank(name, shape, "(B, T, D)", hint)',
        "pass",
        (f"{MEETING}[two_axes_of_time-layers.EncoderBlock]",),
    ),
    Mutant(
        "quantised_layers_loaded_as_others",
        "RNNSeq2Seq._make_embedding",
        "dtype=self._policy_of(name)",
        "dtype=plain_policy(self.dtype_policy)",
        (f"{MEETING}[bfloat16_copies_saved-models.RNNSeq2Seq-source]",),
    ),
    Mutant(
        "averages_by_the_place_in_a_list",
        "averaged_weights",
        "averages = _averages(model.optimizer)",
        "averages = list(zip(model.trainable_variables, (mean for _, mean in _averages(model.optimizer))))",
        (f"{MEETING}[average_after_freezing_with_adam-models.EncoderTransformer]",),
    ),
    Mutant(
        "registers_have_positions",
        "PatchEmbedding._special_tokens",
        "tokens = [ops.concatenate(tokens, axis=0) + positions]",
        "return ops.concatenate([*tokens, self.register_tokens], axis=0) + positions[:1]",
        (PATCHES + "test_special_tokens_come_first_and_registers_have_no_position",),
    ),
    Mutant(
        "rows_and_columns_of_patches_swapped",
        "image_patches",
        "ops.transpose(images, (0, 1, 3, 2, 4, 5))",
        "ops.transpose(images, (0, 3, 1, 2, 4, 5))",
        (PATCHES + "test_the_projection_is_a_convolution[6-15]", IMAGES + "test_vectors_are_theirs[vit]"),
    ),
    Mutant(
        "positions_are_resized_from_their_corners",
        "_resizing_matrix",
        '(ops.cast(ops.arange(new), "float32") + 0.5) * scale - 0.5',
        'ops.cast(ops.arange(new), "float32") * scale',
        ("ops/test_images.py::test_positions_are_resized_line_by_line[old0-new0]",),
    ),
    Mutant(
        "a_mean_over_the_class_token_too",
        "ImageClassificationHead.call",
        '{"first": 0, "mean": self.num_special_tokens}',
        '{"first": 0, "mean": 0}',
        (
            "models/test_vision_transformer.py::test_heads_read_the_class_token_and_the_patches[mean]",
            IMAGES + "test_logits_are_theirs[dinov2-ForImageClassification]",
        ),
    ),
    Mutant(
        "merging_takes_the_neighbour_to_the_right_first",
        "PatchMerging.call",
        "(0, 1, 3, 4, 2, 5)",
        "(0, 1, 3, 2, 4, 5)",
        (
            SWIN + "test_merging_joins_four_neighbours_the_one_below_first",
            IMAGES + "test_vectors_are_theirs[swin]",
        ),
    ),
    Mutant(
        "windows_shifted_along_one_axis_where_published_code_shifts_none",
        "shift_of_several_windows",
        "all(are_several)",
        "any(are_several)",
        (WINDOWS + "test_pixels_attend_to_padding_if_it_is_wished[sizes1]",),
    ),
    Mutant(
        "what_completes_windows_masked_as_it_is_not_in_published_code",
        "WindowAttention.call",
        "if self.attend_to_padding:",
        "if False:",
        (IMAGES + "test_vectors_are_theirs[swin]",),
    ),
    Mutant(
        "patches_read_by_columns_on_import",
        "Place.to_variable",
        "array.transpose(2, 3, 1, 0)",
        "array.transpose(3, 2, 1, 0)",
        (IMAGES + "test_vectors_are_theirs[vit]",),
    ),
    Mutant(
        "query_and_value_swapped_on_import",
        "Place.to_variable",
        "np.split(array, num_parts, axis=-1)[part]",
        "np.split(array, num_parts, axis=-1)[-1 - part]",
        (f"{CHECKPOINTS}test_vectors_or_logits_are_theirs[gpt2-left]",),
    ),
    Mutant(
        "first_position_forgotten_on_import",
        "Place.to_variable",
        "array[self.at.first_row : len(array) - self.at.last_rows]",
        "array[: len(array) - self.at.last_rows - self.at.first_row]",
        (f"{CHECKPOINTS}test_vectors_or_logits_are_theirs[roberta-left]",),
    ),
    Mutant(
        "a_size_that_no_file_holds",
        "Fields.size",
        "value > most",
        "False",
        (f"{DAMAGED}test_more_layers_than_tensors",),
    ),
    Mutant(
        "an_index_that_leaves_its_folder",
        "Folder._shard",
        "pathlib.PurePosixPath(name).name != name or",
        "",
        (f"{DAMAGED}test_an_index_that_leaves_its_folder[../x.safetensors]",),
    ),
    Mutant(
        "tied_tensors_that_differ",
        "_Plan._values",
        "if not self._folder.are_equal(name, other):",
        "if False:",
        ("huggingface/test_forms_of_checkpoints.py::test_tensors_that_should_be_one_must_be_equal",),
    ),
    Mutant(
        "a_field_that_nobody_reads",
        "Fields.check_all_read",
        "for name in sorted(_NOT_OBEYED.keys() & self._given - self._read):",
        "for name in ():",
        ("huggingface/test_configs_of_the_hub.py::test_a_quantised_checkpoint_is_refused",),
    ),
    Mutant(
        "truncation_left_over_is_followed",
        "_Files._parts_of_tokenizer_json",
        'parts.pop("truncation", None)',
        'parts.get("truncation")',
        (
            f"{LIFELIKE}test_what_the_last_call_of_transformers_left_is_not_followed_but_for_the_side[Right-PreTrainedTokenizerFast]",
        ),
    ),
    Mutant(
        "unknown_pieces_are_not_looked_up",
        "_sentencepiece",
        "if looks_up_pieces:",
        "if False:",
        (
            f"{LIFELIKE}test_pieces_are_looked_up_by_their_text_and_languages_stand_at_the_start_of_marians_texts_alone",
        ),
    ),
    Mutant(
        "languages_anywhere_in_marians_texts",
        "_Files._parts_that_look_up",
        "json_parts.split(MARIAN_CODE)",
        "json_parts.split(MARIAN_CODE[2:])",
        (
            f"{LIFELIKE}test_pieces_are_looked_up_by_their_text_and_languages_stand_at_the_start_of_marians_texts_alone",
        ),
    ),
    Mutant(
        "spaces_are_not_cleaned_up",
        "_Files._cleans",
        "return not is_merged or",
        "return",
        (f"{LIFELIKE}test_an_answer_whose_spaces_are_cleaned_up_streams_in_pieces_that_stay",),
    ),
    Mutant(
        "nllbs_old_template_is_kept",
        "_nllb_template",
        'fields.get("legacy_behaviour")',
        "True",
        (f"{LIFELIKE}test_nllbs_old_template_is_replaced_unless_the_old_behaviour_is_asked_for[fields0]",),
    ),
    Mutant(
        "no_language_where_none_is_named",
        "_Files._fields_with_language",
        'self._fields.get("src_lang") or default',
        'next(n.strip("_") for n in numbers if n.startswith("__"))',
        (
            f"{LIFELIKE}test_m2m_100_reads_brackets_as_text_and_takes_english_where_no_language_is_named[fields1]",
        ),
    ),
    Mutant(
        "end_that_is_the_pad_is_never_written",
        "Search._without_end",
        "token_id != self.inputs.end_token_id",
        "True",
        (f"{CHECKPOINTS}test_a_row_of_qwen3_ends_though_its_pad_is_its_end",),
    ),
    Mutant(
        "what_cannot_be_written_is_chosen",
        "Search.never_chosen",
        "(self.pad_token_id, *self.inputs.unwritable_token_ids)",
        "(self.pad_token_id,)",
        (
            "generation/test_beam_search.py::test_what_cannot_be_written_is_never_chosen_and_keeps_its_probability[3]",
        ),
    ),
    Mutant(
        "bfloat16_kernels_by_the_size_of_the_batch",
        "_is_decoding_step",
        'are_float32 = all(keras.backend.standardize_dtype(x.dtype) == "float32" for x in (query, key, value))',
        "are_float32 = True",
        (
            "ops/test_dot_product_attention.py::test_one_query_of_a_step_has_the_answer_that_it_has_in_any_batch[bfloat16-0.0]",
        ),
    ),
    Mutant(
        "older_folder_discarded_before_the_new_one_stands",
        "_replace_in_two_steps",
        "folder.rename(older)",
        "_discard(folder)",
        ("test_files.py::test_a_kill_at_any_step_leaves_the_old_or_the_new_folder_whole",),
    ),
    Mutant(
        "shared_layers_are_described_apart",
        "description",
        'return {"shared_layer": numbers[id(layer)]}',
        "pass",
        ("models/test_architectures.py::test_seq2seq_comes_back[t5]",),
    ),
    Mutant(
        "scale_of_the_layer_ignored",
        "MultiHeadAttention._query_heads",
        "scale = self.key_dim**-0.5 if self.scale is None else self.scale",
        "scale = self.key_dim**-0.5",
        ("models/test_architectures.py::test_seq2seq_logits[t5]",),
    ),
    Mutant(
        "start_is_taken_for_a_pad",
        "real_tokens",
        "if given_padding_mask is None:",
        "if True:",
        ("models/test_architectures.py::test_seq2seq_logits[marian]",),
    ),
    Mutant(
        "slot_positions_left_out_of_the_cache",
        "_with_positions",
        "KeyValueCache(*cache[:2], positions)",
        "KeyValueCache(*cache[:2], None)",
        ("models/test_architectures.py::test_llama_generates[4]",),
    ),
    # Masks
    Mutant(
        "mask_polarity_flipped",
        "_as_bias",
        "ops.where(mask, ops.zeros((), dtype), ops.convert_to_tensor(MASKED, dtype))",
        "ops.where(mask, ops.convert_to_tensor(MASKED, dtype), ops.zeros((), dtype))",
        (OPS + "test_two_masked_keys_by_hand",),
    ),
    Mutant(
        "causal_misses_its_own_place",
        "causal_mask",
        "ops.greater_equal(ops.expand_dims(query_positions, -1)",
        "ops.greater(ops.expand_dims(query_positions, -1)",
        ("ops/test_masks.py::test_causal_mask_compares_positions",),
    ),
    Mutant(
        "causal_sees_one_place_ahead",
        "causal_mask",
        "ops.greater_equal(ops.expand_dims(query_positions, -1)",
        "ops.greater_equal(ops.expand_dims(query_positions, -1) + 1",
        (
            "ops/test_masks.py::test_causal_mask_compares_positions",
            MODEL + "test_later_target_tokens_change_no_earlier_logits[post_norm]",
        ),
    ),
    Mutant(
        "causal_aligned_top_left_with_a_cache",
        "CallPositions.query_positions",
        "return successive_positions(length, first)",
        "return successive_positions(length, 0)",
        (MODEL + "test_full_forward_equals_cached_decoding[post_norm]",),
    ),
    Mutant(
        "causal_mask_dropped",
        "MultiHeadAttention._mask_rule",
        "causal=positions.is_causal,",
        "causal=False,",
        (MODEL + "test_later_target_tokens_change_no_earlier_logits[post_norm]",),
    ),
    Mutant(
        "mask_skipped_in_cross_attention",
        "DecoderBlock._cross_attend",
        "value_mask=call.encoder.padding_mask,",
        "value_mask=None,",
        (MODEL + "test_more_padding_and_batch_mates_change_no_logits[post_norm]",),
    ),
    Mutant(
        "source_mask_only_in_the_first_decoder_layer",
        "Seq2SeqTransformer._run_decoder_blocks",
        "encoder_padding_mask=source.padding_mask,",
        "encoder_padding_mask=source.padding_mask if block is self.decoder_blocks[0] else None,",
        (MODEL + "test_more_padding_and_batch_mates_change_no_logits[post_norm]",),
    ),
    Mutant(
        "mask_only_in_the_first_encoder_layer",
        "Transformer._run_encoder_blocks",
        "x, padding_mask=tokens.padding_mask,",
        "x, padding_mask=tokens.padding_mask if block is blocks[0] else None,",
        (MODEL + "test_more_padding_and_batch_mates_change_no_logits[post_norm]",),
    ),
    Mutant(
        "source_mask_skipped_while_decoding",
        "Seq2SeqTransformer.call_with_cache",
        "encoder_padding_mask=cache.encoder_padding_mask,",
        "encoder_padding_mask=None,",
        (MODEL + "test_more_padding_and_batch_mates_change_no_answer",),
    ),
    Mutant(
        "implicit_mask_ignored",
        "implicit_mask",
        'return getattr(tensor, "_keras_mask", None)',
        "return None",
        ("layers/test_multi_head_attention.py::test_implicit_and_explicit_masks_are_joined",),
    ),
    Mutant(
        "query_mask_ignored",
        "CallMasks.__init__",
        'as_boolean_mask(combined_padding_mask(query_mask, query), "query_mask")',
        "combined_padding_mask(None, query)",
        (LAYERS + "test_layer[attention_self]",),
    ),
    # Options of decoding
    Mutant(
        "exact_stopping_looks_at_the_length_now",
        "BeamSearch._highest_score",
        "self._score(best_live, longest, covered), self._score(best_live, index + 1, covered)",
        "self._score(best_live, index + 1, covered), self._score(best_live, index + 1, covered)",
        (OPTIONS + "test_exact_stopping_loses_no_better_hypothesis[1.0]",),
    ),
    Mutant(
        "the_worst_of_all_beams_in_a_row_of_fewer",
        "BeamSearch._worst",
        "last = ops.clip(self.options.num_beams, 1, self.num_beams) - 1",
        "last = 0 * self.options.num_beams + self.num_beams - 1",
        (OPTIONS + "test_a_row_of_fewer_beams_equals_a_search_with_as_many",),
    ),
    Mutant(
        "rows_that_left_the_batch_move_up",
        "_decode_live_rows.phase",
        "indices = ops.expand_dims(row_numbers, -1)",
        "indices = ops.expand_dims(ops.arange(ops.shape(row_numbers)[0]), -1)",
        (ROWS + "test_answers_are_those_of_a_batch_that_nobody_leaves[greedy]",),
    ),
    Mutant(
        "rows_that_are_left_have_the_options_of_others",
        "Search.for_rows",
        'search.options = dataclasses.replace(self.options, **row_values["options"])',
        'search.options = dataclasses.replace(self.options, **{k: v[: ops.shape(next(iter(row_values["options"].values())))[0]] for k, v in self.options.given().items()}) if row_values["options"] else self.options',
        (ROWS + "test_answers_are_those_of_a_batch_that_nobody_leaves[samples]",),
    ),
    Mutant(
        "compiled_batches_have_the_sizes_of_a_smaller_one",
        "_sizes",
        "sizes = num_all // ops.convert_to_tensor(_COMPILED_PARTS)",
        "sizes = num_rows // ops.convert_to_tensor(_COMPILED_PARTS)",
        (ROWS + "test_compiled_batches_have_few_sizes[greedy-4-expected_sizes0]",),
    ),
    Mutant(
        "short_targets_are_scored_by_bleu",
        "Choices.metric",
        'self.set(metric="chrf")',
        "self.set()",
        ("runs/test_fitted.py::test_short_targets_are_scored_by_characters",),
    ),
    Mutant(
        "loras_products_are_lost_in_saving",
        "_merged_kernel",
        "kernel_value + layer.lora_alpha / layer.lora_rank * (a @ b)",
        "kernel_value + 0 * layer.lora_alpha / layer.lora_rank * (a @ b)",
        ("tasks/test_translator.py::test_lora_is_merged_into_what_is_saved",),
    ),
    Mutant(
        "nobody_leaves_a_batch",
        "_sizes",
        "return size, size // 2",
        "return size, 0 * size",
        (ROWS + "test_answers_are_those_of_a_batch_that_nobody_leaves[greedy]",),
    ),
    Mutant(
        "the_second_new_slot_of_an_open_graph_is_the_third",
        "_row_indices",
        'ops.expand_dims(first, -1) + ops.arange(num_new, dtype="int32")',
        'ops.expand_dims(first, -1) + 2 * ops.arange(num_new, dtype="int32")',
        ("ops/test_kv_cache.py::test_written_in_place_in_an_open_graph[2]",),
    ),
    Mutant(
        "ngrams_look_past_the_latest_token",
        "_ngram_ends",
        "column < stop",
        "column <= stop",
        (OPTIONS + "test_processors_of_the_history[no_repeat_ngram_size-0]",),
    ),
    Mutant(
        "first_tokens_are_suppressed_everywhere",
        "process",
        "index == num_first",
        "index >= num_first",
        (OPTIONS + "test_every_compiler_gives_the_same[eager]",),
    ),
    Mutant(
        "a_field_that_changes_answers_is_let_through",
        "_is_refused",
        "return name in _REFUSED and value not in _REFUSED[name][1]",
        "return False",
        (
            "huggingface/test_generation_fields.py::test_a_field_that_is_not_obeyed_is_refused_by_name_and_can_be_ignored[stop_strings]",
        ),
    ),
    Mutant(
        "a_cut_source_is_not_told",
        "warn_of_cuts",
        "if not num_cut or not _warns_of_cuts.get():",
        "if True:",
        ("tasks/test_cut_texts.py::test_a_cut_is_told_once_at_the_line_of_the_call[translator]",),
    ),
    Mutant(
        "min_length_without_its_end",
        "require_min_length",
        "ops.expand_dims(length < min_length, -1)",
        "ops.expand_dims(length <= min_length, -1)",
        (OPTIONS + "test_min_length_counts_the_end",),
    ),
    Mutant(
        "top_p_keeps_one_token_too_many",
        "keep_top_p",
        "before = ops.cumsum(shares, axis=-1) - shares",
        "before = ops.cumsum(shares, axis=-1) - 2 * shares",
        ("generation/test_sampling.py::test_a_processor_equals_numpy[top_p]",),
    ),
    Mutant(
        "prompts_read_their_padding",
        "_CausalStep.read_prompt",
        "is_token = positions[:, :-1] >= 0",
        "is_token = positions[:, :-1] >= -99",
        (
            "models/test_decoder_transformer.py::test_the_side_of_the_pads_and_batch_mates_change_nothing[learned-graph]",
        ),
    ),
    Mutant(
        "gradient_of_softmax_without_its_row_term",
        "_softmax_weighted_sum.attend.gradient",
        "scores * (by_scores - row_terms)",
        "scores * by_scores",
        (OPS + "test_asking_for_scores_changes_neither_output_nor_gradient[plain]",),
    ),
    Mutant(
        "every_query_sees_itself_in_spite_of_pads",
        "MaskRule.every_query_sees_itself",
        "any(x is not None for x in others)",
        "False",
        (RULES + "test_a_query_may_not_see_itself_where_more_than_order_hides_keys[query_mask]",),
    ),
    Mutant(
        "square_root_of_key_dim_dropped",
        "scaled",
        "scale = query.shape[-1] ** -0.5",
        "scale = 1.0",
        (OPS + "test_two_keys_by_hand",),
    ),
    Mutant(
        "nan_of_masked_keys_leaks",
        "guard",
        "if not (rule.keys_are_finite or all_are_seen):",
        "if False:",
        (OPS + "test_what_the_mask_rules_out_reaches_nobody",),
    ),
    Mutant(
        "nan_of_masked_keys_leaks_through_blocks",
        "memory_efficient_attention",
        "if not mask.keys_are_finite:",
        "if False:",
        (BLOCKS + "test_what_nobody_sees_reaches_nobody[key_mask-nan]",),
    ),
    Mutant(
        "positions_all_zero",
        "sinusoidal_encoding",
        'ops.cast(positions, "float32")',
        '0.0 * ops.cast(positions, "float32")',
        ("ops/test_positions.py::test_four_channels_by_hand",),
    ),
    Mutant(
        "sines_and_cosines_exchanged",
        "sinusoidal_encoding",
        "channels % 2 == 0",
        "channels % 2 == 1",
        ("ops/test_positions.py::test_four_channels_by_hand",),
    ),
    Mutant(
        "nan_of_pads_leaks_into_projections",
        "CallMasks.clean_inputs",
        "clean[entry] = keep(x, ops.expand_dims(mask, -1))",
        "clean[entry] = x",
        (NAN + "test_of_a_sequence_that_attends_to_itself[same-nan]",),
    ),
    Mutant(
        "nan_at_pads_reaches_the_weights_of_blocks",
        "without_padding",
        "keep(x, ops.expand_dims(is_token, -1))",
        "x",
        (
            NAN + "test_weights_get_the_update_of_zeros_at_pads[encoder_block]",
            NAN + "test_weights_get_the_update_of_zeros_at_pads[bahdanau]",
        ),
    ),
    Mutant(
        "padding_taken_for_pairs",
        "check_attention_mask_rank",
        "len(shape) < 3",
        "False",
        (LAYERS + "test_bad_call_arguments_are_refused[pairs_of_all_rows]",),
    ),
    Mutant(
        "keys_of_rows_without_queries_leak",
        "CallMasks.participants",
        "combine_masks(self.query_mask, some_key), combine_masks(self.key_mask, some_query)",
        "combine_masks(self.query_mask, some_key), self.key_mask",
        (NAN + "test_of_one_sequence_that_attends_to_another[different-nan]",),
    ),
    Mutant(
        "real_keys_that_positions_hide_leak",
        "CallMasks.participants",
        "if in_order:",
        "if False:",
        (NAN + "test_of_one_padding_where_positions_hide_keys_too[keys_after_queries-None]",),
    ),
    Mutant(
        "keys_with_positions_of_their_own_taken_for_the_queries",
        "CallMasks.participants",
        "if aligned and self.query_mask is self.key_mask:",
        "if self.query_mask is self.key_mask:",
        (NAN + "test_of_one_padding_where_positions_hide_keys_too[keys_after_queries-None]",),
    ),
    Mutant(
        "layer_norm_gradient_without_that_of_the_mean",
        "layer_normalization.normalize.gradient",
        "by_normalized - by_mean - normalized * by_deviation",
        "by_normalized - normalized * by_deviation",
        ("ops/test_normalization.py::test_gradients_are_the_slopes_of_the_formula",),
    ),
    Mutant(
        "layer_norm_gradient_without_that_of_the_deviation",
        "layer_normalization.normalize.gradient",
        "by_normalized - by_mean - normalized * by_deviation",
        "by_normalized - by_mean",
        ("ops/test_normalization.py::test_gradients_are_the_slopes_of_the_formula",),
    ),
    Mutant(
        "layer_norm_in_half_precision",
        "layer_normalization",
        "x = at_least_float32(inputs)",
        "x = inputs",
        ("ops/test_normalization.py::test_half_precision_is_computed_in_float32",),
    ),
    # Variants of attention
    Mutant(
        "square_root_of_key_dim_dropped_in_the_layer",
        "MultiHeadAttention._query_heads",
        "scale = self.key_dim**-0.5 if self.scale is None else self.scale",
        "scale = 1.0 if self.scale is None else self.scale",
        ("layers/test_keras_parity.py::test_equals_keras_under_every_mask[multi_head-{}]",),
    ),
    Mutant(
        "positions_of_the_call_ignored",
        "CallPositions.query_positions",
        "if self.positions is not None: return _checked(self.positions",
        "if False: return _checked(self.positions",
        (VARIANTS + "test_positions_are_used[alibi]",),
    ),
    Mutant(
        "left_padding_ignored_in_a_cache",
        "CallPositions.slot_positions",
        'return slots + first - ops.cast(self.cache_update_index, "int32")',
        "return slots",
        (
            VARIANTS
            + "test_rows_without_keys_are_0_and_nan_in_padding_reaches_nobody[static_cache-everything]",
        ),
    ),
    Mutant(
        "prefix_ignored",
        "MaskRule._order",
        "mask = ops.logical_or(mask, _slice_last(self.prefix_mask, keys)[..., None, :])",
        "pass",
        (
            VARIANTS + "test_a_prefix_is_seen_by_all_and_the_rest_causally",
            RULES + "test_each_rule_alone[prefix_mask]",
        ),
    ),
    Mutant(
        "segments_ignored",
        "MaskRule._segments",
        "if self.query_segment_ids is None:",
        "if True:",
        (
            VARIANTS + "test_packed_rows_are_separate_rows[dense-alibi]",
            "models/test_packing.py::test_packed_rows_equal_separate_rows[post_norm]",
        ),
    ),
    Mutant(
        "sink_tokens_leave_the_window",
        "MaskRule._window",
        "mask = ops.logical_or(mask, (key_positions < self.num_sink_tokens)[..., None, :])",
        "pass",
        (VARIANTS + "test_the_first_tokens_stay_in_the_window",),
    ),
    Mutant(
        "sink_tokens_left_out_of_blocks",
        "MaskRule.visible_keys",
        "return [slice(0, sinks), slice(start, stop)]",
        "return [slice(start, stop)]",
        (BLOCKS + "test_every_mask[causal_sinks_known]",),
    ),
    Mutant(
        "blocks_start_a_key_late_under_a_window",
        "MaskRule.visible_keys",
        "start = _clip_index(first - self.sliding_window + 1, 0, num_keys)",
        "start = _clip_index(first - self.sliding_window + 2, 0, num_keys)",
        (BLOCKS + "test_every_mask[causal_window_known]",),
    ),
    Mutant(
        "blocks_end_a_key_early_under_a_causal_mask",
        "MaskRule.visible_keys",
        "stop = _clip_index(last + 1, 0, num_keys)",
        "stop = _clip_index(last, 0, num_keys)",
        (BLOCKS + "test_every_mask[causal_known]",),
    ),
    Mutant(
        "nothing_left_out_under_a_causal_mask",
        "MaskRule.visible_keys",
        "if self.causal: stop =",
        "if False: stop =",
        (BLOCKS + "test_keys_that_no_query_of_a_block_sees_are_left_out[causal]",),
    ),
    Mutant(
        "keys_behind_the_first_query_of_a_block_open",
        "MaskRule.num_open_keys",
        "_clip_index(self.offset + queries.start, 0, num_keys)",
        "_clip_index(self.offset + queries.start + 2, 0, num_keys)",
        (BLOCKS + "test_every_mask[causal_known]",),
    ),
    Mutant(
        "one_key_behind_a_query_left_open_in_place",
        "with_later_keys_masked",
        "k=(first + 1, num_keys - 1)",
        "k=(first + 2, num_keys)",
        (BLOCKS + "test_heads_one_after_the_other",),
    ),
    Mutant(
        "keys_masked_in_a_product_by_too_little",
        "with_masked_keys",
        "_as_bias(mask, key.dtype)",
        "_as_bias(mask, key.dtype) * 1e-30",
        (BLOCKS + "test_heads_one_after_the_other",),
    ),
    Mutant(
        "row_terms_added_in_half_precision",
        "_Block._scores_gradient_less",
        "-rounded, -rest",
        "rounded, rest",
        (BLOCKS + "test_gradients_of_single_heads_in_half_precision_are_within_its_bounds",),
    ),
    Mutant(
        "softmax_of_bfloat16_trusted_everywhere",
        "is_softmax_rounded_once",
        "return not (is_inference_scope() or is_compiled_graph()) and _rounds_once()",
        "return True",
        (BLOCKS + "test_xla_computes_the_softmax_of_half_precision_in_float32",),
    ),
    Mutant(
        "heads_of_a_key_head_mixed",
        "head_by_head.join_heads",
        "x = ops.moveaxis(x, 0, -4)",
        "x = ops.moveaxis(x, 0, -3)",
        (BLOCKS + "test_heads_one_after_the_other",),
    ),
    Mutant(
        "dropout_forgotten_in_the_gradient_of_blocks",
        "_Block.logits_gradient",
        "by_scores = by_scores * self.multiplier",
        "pass",
        (BLOCKS + "test_everything_together[together-table_scattered]",),
    ),
    Mutant(
        "dropout_by_the_place_in_the_block",
        "_Block._multiplier",
        'ops.arange(self.queries.start, self.queries.stop, dtype="int32")',
        'ops.arange(0, self.queries.stop - self.queries.start, dtype="int32")',
        (BLOCKS + "test_everything_together[together-table_scattered]",),
    ),
    Mutant(
        "slope_of_the_soft_cap_dropped",
        "_Block.logits_gradient",
        "if self.blocks.soft_cap is not None:",
        "if False:",
        (BLOCKS + "test_everything_together[together-table_scattered]",),
    ),
    Mutant(
        "soft_cap_ignored",
        "soft_capped",
        "if soft_cap is None:",
        "if True:",
        (VARIANTS + "test_a_soft_cap_bounds_how_much_more_one_key_can_weigh_than_another[2.0]",),
    ),
    Mutant(
        "gradient_of_sink_logits_upside_down",
        "_Block.sink_gradient",
        "ops.sum(-share * row_terms, axis=(-2, -1))",
        "ops.sum(share * row_terms, axis=(-2, -1))",
        (BLOCKS + "test_every_option[{'sinks': True}]",),
    ),
    Mutant(
        "sink_logits_ignored",
        "softmax",
        "if sink_logits is None:",
        "if True:",
        (VARIANTS + "test_sink_logits_start_at_0_as_one_more_key_of_product_0",),
    ),
    Mutant(
        "gradient_of_keys_behind_the_band_lost",
        "_KeyGradient.add",
        "self._finished.append(self.pending[..., shared:, :])",
        "self._finished.append(0 * self.pending[..., shared:, :])",
        (BLOCKS + "test_every_mask[causal_known]", BLOCKS + "test_every_mask[causal_window_known]"),
    ),
    Mutant(
        "ring_slots_off_by_one",
        "ring_positions",
        "ops.mod(last_positions - slots, period)",
        "ops.mod(last_positions - slots + 1, period)",
        (RING + "test_positions_of_slots[5-2]",),
    ),
    Mutant(
        "padding_written_to_a_ring",
        "write_ring",
        "written = ops.logical_and(stored >= 0, offset >= 0)[..., None, :, None]",
        "written = (offset >= 0)[..., None, :, None]",
        (RING + "test_padding_is_not_written",),
    ),
    Mutant(
        "ring_forgets_what_the_new_keys_replace",
        "_ring_keys",
        "keys = AttendedKeys(all_keys, all_values, positions, positions >= 0)",
        "keys = AttendedKeys(ring.key, ring.value, ring_positions(ring.key.shape[-2], num_sink_tokens, positions[..., -1:]))",
        (VARIANTS + "test_chunks_longer_than_the_ring_equal_the_full_pass[dense-2]",),
    ),
    Mutant(
        "keys_not_rotated",
        "MultiHeadAttention._key_heads",
        "return self._rotated(heads, positions.new_key_positions(ops.shape(heads)[-2]), positions)",
        "return heads",
        ("layers/test_attention_combinations.py::test_dense_equals_blocks_equals_oracle[60]",),
    ),
    Mutant(
        "dynamic_ntk_counts_pads_and_other_segments",
        "MultiHeadAttention._count_tokens",
        "positions.measure(ops.shape(query)[-2], key_mask, masks.key_segment_ids)",
        "pass",
        (
            "layers/test_rotary_embedding.py::"
            "test_attention_counts_the_real_tokens_where_their_number_or_order_matters[segment_ids-length]",
        ),
    ),
    Mutant(
        "rotated_the_wrong_way",
        "apply_rotary",
        "pairs * cos + ops.flip(pairs, axis=pair_axis) * sin",
        "pairs * cos - ops.flip(pairs, axis=pair_axis) * sin",
        ("ops/test_rotary.py::test_a_quarter_and_a_half_turn_by_hand[False-expected0]",),
    ),
    Mutant(
        "slopes_upside_down",
        "SlopeBias.block",
        "return -slopes * self._distances(slopes.dtype, queries, keys)",
        "return slopes * self._distances(slopes.dtype, queries, keys)",
        (
            "layers/test_position_biases.py::test_alibi_lowers_logits_by_slope_times_distance_in_both_directions",
        ),
    ),
    Mutant(
        "queries_and_keys_of_a_bias_exchanged",
        "_relative_positions",
        "return ops.expand_dims(key_positions, -2) - ops.expand_dims(query_positions, -1)",
        "return ops.expand_dims(query_positions, -1) - ops.expand_dims(key_positions, -2)",
        ("layers/test_position_biases.py::test_keys_equal_loops",),
    ),
    Mutant(
        "heads_do_not_talk_after_the_softmax",
        "talking_heads_attention",
        "scores = _mix_heads(softmax(logits, sink_logits), scores_kernel)",
        "scores = softmax(logits, sink_logits)",
        (OTHERS + "test_talking_heads_equals_the_paper",),
    ),
    Mutant(
        "difference_not_normalised_back",
        "DifferentialAttention._attend",
        "(1 - self.lambda_init)",
        "1",
        (OTHERS + "test_differential_attention_equals_the_paper[False-3-3]",),
    ),
    # Dropout, configurations, reloading
    Mutant(
        "dropout_left_on",
        "Residual._branch",
        "self._dropout_layer(update, training=training)",
        "self._dropout_layer(update, training=True)",
        (MODEL + "test_dropout_is_off_unless_training",),
    ),
    Mutant(
        "dropout_of_scores_left_on",
        "score_dropout",
        "if not layer.dropout or not training:",
        "if not layer.dropout:",
        (MODEL + "test_dropout_is_off_unless_training",),
    ),
    Mutant(
        "config_key_of_a_layer_dropped",
        "FeedForward.get_config",
        '"activation": serialize_activation(self.activation)',
        "**{}",
        (LAYERS + "test_layer[feed_forward_gated]",),
    ),
    Mutant(
        "pads_in_the_mean_of_a_sequence",
        "_mean",
        "keep(at_least_float32(sequence), ops.expand_dims(mask, -1))",
        "at_least_float32(sequence)",
        ("layers/test_prediction_heads.py::test_pooling_reads_real_tokens_only[mean]",),
    ),
    Mutant(
        "labels_that_begin_a_span_joined",
        "joined",
        " & ~begins[1:]",
        "",
        ("tasks/test_encoder_tasks.py::test_spans_have_characters",),
    ),
    Mutant(
        "config_key_of_the_model_dropped",
        "Transformer.get_config",
        "for name in self._OPTIONS",
        "for name in self._OPTIONS[:1]",
        (MODEL + "test_config_round_trip[pre_norm]",),
    ),
    Mutant(
        "tied_weights_untied_after_reload",
        "layer_from_config",
        "made_layers[key] = layer",
        "pass",
        ("models/test_seq2seq_training.py::test_tied_weights_stay_tied_after_reload",),
    ),
    # The cache
    Mutant(
        "cache_write_shifted",
        "_write",
        '- ops.cast(index, "int32")',
        '- ops.cast(index, "int32") + 1',
        ("ops/test_kv_cache.py::test_write_at_any_index_and_overflow[3-2]",),
    ),
    Mutant(
        "slots_taken_for_positions",
        "_Seq2SeqStep.__call__",
        'ops.zeros((width,), dtype="int32") + index,',
        'ops.zeros((width,), dtype="int32") + index * width,',
        ("models/test_seq2seq_generate.py::test_generate_is_the_search_written_out[pre_norm-3-1.0]",),
    ),
    # Beam search
    Mutant(
        "finished_beams_extended",
        "BeamSearch._live",
        "top_k(ops.where(ends, IMPOSSIBLE, candidates.log_probs), self.num_beams)",
        "top_k(candidates.log_probs, self.num_beams)",
        (SEARCH + "test_a_finished_hypothesis_keeps_its_score_beside_a_longer_batch_mate",),
    ),
    Mutant(
        "finished_rows_go_on",
        "BeamSearch._finish_ended",
        "joins = ops.logical_and(ends, ops.logical_not(ops.expand_dims(done, -1)))",
        "joins = ends",
        (SEARCH + "test_batch_mates_change_nothing",),
    ),
    Mutant(
        "length_penalty_ignored",
        "BeamSearch._score",
        "score = log_probs / length ** column(self.length_penalty)",
        "score = log_probs",
        (SEARCH + "test_length_penalty_decides_between_short_and_long",),
    ),
    Mutant(
        "end_not_counted",
        "BeamSearch._finish_ended",
        "self._score(candidates.log_probs, index + 1, candidates.coverage)",
        "self._score(candidates.log_probs, ops.maximum(index, 1), candidates.coverage)",
        (SEARCH + "test_n_best_lists_are_sorted_distinct_clean_and_rescored",),
    ),
    Mutant(
        "ancestor_mask_ignored",
        "BeamSearch._slot_mask",
        "ops.logical_and(own, written)",
        "ops.logical_and(ops.ones_like(own), written)",
        (
            SEARCH + "test_beam_is_right_where_greedy_is_wrong",
            "models/test_seq2seq_generate.py::test_generate_is_the_search_written_out[pre_norm-3-1.0]",
        ),
    ),
    Mutant(
        "ancestors_do_not_follow_their_beams",
        "BeamSearch._live",
        "ancestors=_gather(beams.ancestors, parents),",
        "ancestors=beams.ancestors,",
        (SEARCH + "test_random_tables_token_for_token[3-1.0]",),
    ),
    Mutant(
        "all_beams_start_alive",
        "BeamSearch.start_state",
        "ops.where(ops.arange(beams) == 0, 0.0, IMPOSSIBLE)",
        "ops.zeros((beams,))",
        (SEARCH + "test_n_best_lists_are_sorted_distinct_clean_and_rescored",),
    ),
    Mutant(
        "n_best_not_sorted",
        "BeamSearch._merge",
        "scores, kept = top_k(ops.concatenate([finished.scores, scores], axis=1), self.num_beams)",
        """scores = ops.concatenate([finished.scores, scores], axis=1)
kept = ops.sort(top_k(scores, self.num_beams)[1], axis=-1)
scores = ops.take_along_axis(scores, kept, axis=-1)""",
        (SEARCH + "test_n_best_lists_are_sorted_distinct_clean_and_rescored",),
    ),
    # Training
    Mutant(
        "pads_counted_in_the_loss",
        "labels_and_weights",
        "is_token = ops.not_equal(labels, pad_token_id)",
        'is_token = ops.ones_like(labels, dtype="bool")',
        (
            LOSSES + "test_more_padding_changes_neither_value_nor_gradient",
            LOSSES + "test_training_step_is_the_same_with_more_padding",
        ),
    ),
    Mutant(
        "label_smoothing_on_the_other_tokens_only",
        "_values",
        "label_smoothing * (label_logits - mean_logits())",
        "label_smoothing * (label_logits - mean_logits()) * logits.shape[-1] / (logits.shape[-1] - 1)",
        (LOSSES + "test_value_and_gradient_equal_the_definition[0.1]",),
    ),
    Mutant(
        "a_label_that_rounds_away",
        "CrossentropyGradient.by_factors",
        "tf.cast(at_labels - at_label, dtype)",
        "tf.cast(at_labels, dtype) - tf.cast(at_label, dtype)",
        (LOGITS + "test_in_bfloat16_a_label_of_probability_near_1_keeps_its_gradient",),
    ),
    Mutant(
        "a_rate_of_dropout_rounded_down_to_bytes",
        "Dropout.call",
        '(num_dropped + tf.cast(column_bytes, "int32"))',
        '(num_dropped + 0 * tf.cast(column_bytes, "int32"))',
        ("layers/test_dropout.py::test_a_share_is_dropped_and_the_mean_stays",),
    ),
    Mutant(
        "the_difference_at_a_label_added_to_what_is_there",
        "_with_entries_replaced",
        "return add(input=emptied, indices=indices, updates=new)",
        "return add(input=x, indices=indices, updates=new)",
        (LOGITS + "test_in_bfloat16_a_label_of_probability_near_1_keeps_its_gradient",),
    ),
    Mutant(
        "nan_of_padding_in_the_gradient_of_the_table",
        "CrossentropyGradient._finite_probabilities",
        "return tf.cond(is_finite, lambda: self.probabilities, mended)",
        "return self.probabilities",
        (LOGITS + "test_weights_and_padding_with_nan",),
    ),
    Mutant(
        "a_gradient_of_other_rows_of_logits",
        "factors_of_product",
        "table.shape[0] != logits.shape[-1]",
        "False",
        (LOGITS + "test_what_changes_a_product_is_differentiated_by_its_logits",),
    ),
    Mutant(
        "logarithm_of_a_probability_that_underflows",
        "_negative_log",
        "ops.all(label_probabilities > _SMALLEST_EXACT)",
        "ops.all(label_probabilities >= 0)",
        (LOSSES + "test_logits_of_60000_are_finite_and_exact",),
    ),
    Mutant(
        "perplexity_in_half_precision",
        "token_negative_log_likelihood",
        "logits = ops.cast(logits, at_least_float32(logits.dtype))",
        "logits = ops.convert_to_tensor(logits)",
        ("training/test_metrics.py::test_half_precision_logits_do_not_lower_the_precision",),
    ),
    Mutant(
        "schedule_off_by_one",
        "_update_number",
        'return ops.convert_to_tensor(step, dtype="float32") + 1.0',
        'return ops.convert_to_tensor(step, dtype="float32")',
        (
            "training/test_schedules.py::test_noam_by_hand",
            "training/test_schedules.py::test_inverse_square_root_by_hand",
        ),
    ),
    Mutant(
        "words_of_batch_mates_are_chosen",
        "Search.row_logits",
        "ops.minimum(logits, ops.expand_dims(self.row_limits, 1))",
        "logits",
        ("tasks/test_shortlist.py::test_greedy_by_hand[tied]",),
    ),
    Mutant(
        "no_merge_is_left_out",
        "BpeDropout._merged",
        "< dropout",
        "< 0",
        ("data/test_subword_sampling.py::test_each_step_leaves_out_a_share_of_the_merges[True]",),
    ),
    Mutant(
        "every_epoch_has_the_same_segmentations",
        "translation_batches",
        "(seed, _SAMPLING, epoch)",
        "(seed, _SAMPLING, 0)",
        ("data/test_subword_sampling.py::test_epochs_have_all_pairs_in_other_segmentations[{}]",),
    ),
    Mutant(
        "decoder_input_not_shifted",
        "TranslationBatches._batch",
        "target_shape, without_last=1)",
        "target_shape, without_first=1)",
        (BATCHING + "test_one_pair_by_hand",),
    ),
    Mutant(
        "over_long_pairs_dropped_silently",
        "tokenize_pairs",
        "over_long[-1] += [file_line(pairs.sources, first + row) for row in np.flatnonzero(~fits)]",
        "pass",
        (BATCHING + "test_over_long_pairs_are_left_out_and_reported",),
    ),
    Mutant(
        "lines_counted_from_zero",
        "file_line",
        "int(row) + 1",
        "int(row)",
        (BATCHING + "test_over_long_pairs_are_left_out_and_reported",),
    ),
    Mutant(
        "every_epoch_has_the_same_order",
        "SeededBatches._generator",
        "np.random.SeedSequence(self._seed, spawn_key=key)",
        "np.random.SeedSequence(self._seed)",
        (BATCHING + "test_the_order_is_a_function_of_the_seed",),
    ),
    Mutant(
        "resumed_one_update_late",
        "SeededBatches._batches",
        "for update in self.plan(epoch)[first:]:",
        "for update in self.plan(epoch)[first + (first > 0) :]:",
        (BATCHING + "test_the_batches_from_any_place_on_are_the_rest[longest]",),
    ),
    Mutant(
        "workers_get_the_same_rows",
        "SeededBatches._my_rows",
        "slice(number * self._num_workers + self._worker, None, self._stride)",
        "slice(number * self._num_workers, None, self._stride)",
        (BATCHING + "test_micro_batches_and_workers_share_the_rows_of_an_update[longest]",),
    ),
    Mutant(
        "weights_of_a_batch_and_not_of_the_update",
        "SeededBatches._weights",
        "self.num_micro_batches / update.num_tokens",
        "1 / (num_rows * 7)",
        ("runs/test_updates.py::test_accumulated_batches_equal_one_big_batch",),
    ),
    Mutant(
        "segments_of_a_row_in_one",
        "TranslationBatches._batch",
        "np.arange(len(rows)) - np.searchsorted(rows, rows) + 1",
        "np.ones_like(rows)",
        (BATCHING + "test_an_epoch_holds_every_pair_once[True-packed]",),
    ),
    Mutant(
        "windows_overlap",
        "TextWindows._make_plan",
        "len(self._token_ids) - self._length, self._length)",
        "len(self._token_ids) - self._length, self._length - 1)",
        ("data/test_plain_text.py::test_no_token_comes_twice_in_an_epoch",),
    ),
    # Runs
    Mutant(
        "the_highest_loss_is_the_best",
        "Recipe.lower_is_better",
        'return self.metric == "loss"',
        "return False",
        ("runs/test_language_model.py::test_the_best_epoch_is_kept",),
    ),
    Mutant(
        "seeds_of_dropout_are_not_saved",
        "state_variables",
        '"model": model.variables',
        '"model": model.weights',
        ("runs/test_resume.py::test_a_killed_run_goes_on_to_the_same_bits",),
    ),
    Mutant(
        "a_snapshot_changes_with_training",
        "_read_by_tensorflow.take",
        "values = read()",
        "values = [variable.value for variable in variables.values()]",
        ("runs/test_saved_states.py::test_a_snapshot_is_the_state_when_it_was_taken[adam]",),
    ),
    Mutant(
        "optimizer_is_not_saved",
        "state_variables",
        '"optimizer": model.optimizer.variables',
        '"optimizer": []',
        ("runs/test_resume.py::test_a_killed_run_goes_on_to_the_same_bits",),
    ),
    Mutant(
        "sums_of_metrics_are_lost",
        "Progress.on_epoch_begin",
        "if self.batch:",
        "if False:",
        ("runs/test_resume.py::test_a_killed_run_goes_on_to_the_same_bits",),
    ),
    Mutant(
        "resumed_run_draws_points_twice",
        "cut_off",
        "if Event.FromString(record).step <= updates",
        "if True",
        ("runs/test_tensorboard_logs.py::test_points_after_the_state_are_cut_off",),
    ),
    Mutant(
        "mean_of_a_point_begins_at_the_resume",
        "TrainingCurves.resume",
        "self._sums = sums",
        "self._sums = None",
        ("runs/test_tensorboard_logs.py::test_points_are_means_over_all_updates_since_the_last_one",),
    ),
    Mutant(
        "schedule_counts_batches",
        "make_optimizer",
        "schedule if steps == 1 else PerUpdateSchedule(schedule, steps)",
        "schedule",
        ("runs/test_updates.py::test_accumulated_batches_equal_one_big_batch",),
    ),
    Mutant(
        "moving_average_counts_batches",
        "make_optimizer",
        "recipe.ema_momentum ** (1 / steps)",
        "recipe.ema_momentum",
        ("runs/test_updates.py::test_the_moving_average_is_over_updates",),
    ),
    Mutant(
        "files_written_in_place",
        "replaced_file",
        "aside = _temporary_path(target)",
        "aside = target",
        ("models/test_weights.py::test_a_write_that_fails_leaves_the_older_file",),
    ),
    Mutant(
        "states_are_not_rotated",
        "Checkpoints._write",
        "for older in self._paths()[: -self.num_kept]:",
        "for older in ():",
        ("runs/test_saved_states.py::test_the_last_states_are_kept",),
    ),
    # RNNSeq2Seq
    Mutant(
        "hypotheses_go_on_from_another_ones_state",
        "RNNSeq2Seq._decoding_step",
        "state = ops.matmul(is_parent, state)",
        "pass",
        ("models/test_rnn_seq2seq.py::test_the_score_of_an_answer_is_that_of_teacher_forcing[4-gru]",),
    ),
    Mutant(
        "nothing_is_fed_to_the_next_step",
        "RNNSeq2Seq._next_state",
        "ops.concatenate([x, fed], axis=-1)",
        "ops.concatenate([x, 0 * fed], axis=-1)",
        ("models/test_rnn_seq2seq.py::test_the_model_is_that_of_the_papers",),
    ),
    Mutant(
        "pads_of_the_source_are_read",
        "RNNSeq2Seq.encode",
        "mask=mask, training=training)",
        "training=training)",
        ("models/test_rnn_seq2seq.py::test_pads_and_batch_mates_change_nothing[gru]",),
    ),
    # Text
    Mutant(
        "truncated_one_token_too_late",
        "SourceForm.token_ids",
        "room = max_sequence_length - len(self.before) - len(self.after)",
        "room = max_sequence_length - len(self.before) - len(self.after) + 1",
        ("tasks/test_translator.py::test_a_text_that_was_cut_still_ends_with_end",),
    ),
    Mutant(
        "truncated_without_end",
        "SourceForm.token_ids",
        "tf.concat(parts, axis=1)",
        "tf.concat(parts, axis=1)[:, : max_sequence_length - 1]",
        ("tasks/test_translator.py::test_a_text_that_was_cut_still_ends_with_end",),
    ),
    Mutant(
        "a_matrix_that_varies_is_kept_as_it_was",
        "quantized_product",
        '"is_weight_const": {"b": is_constant}',
        '"is_weight_const": {"b": True}',
        ("ops/test_int8_products.py::test_a_matrix_that_is_another_in_each_run",),
    ),
    Mutant(
        "lists_for_xla_have_any_length",
        "Shortlist.listed_tokens",
        "if to_buckets:",
        "if False:",
        ("tasks/test_shortlist.py::test_lists_for_xla_have_few_lengths",),
    ),
    Mutant(
        "tokens_that_fill_a_list_take_the_place_of_its_own",
        "Shortlist.listed_tokens",
        "is_listed |= is_other & (tf.cumsum(tf.cast(is_other, tf.int32)) <= room)",
        "is_listed = tf.cumsum(tf.cast(is_other, tf.int32)) <= room",
        ("tasks/test_shortlist.py::test_lists_for_xla_have_few_lengths",),
    ),
    Mutant(
        "casts_are_taken_for_policies",
        "_with_policies",
        "part in _FLOATS",
        "True",
        ("models/test_copies.py::test_casts_of_a_functional_model_stay_what_they_are",),
    ),
    Mutant(
        "layers_keep_what_they_computed_of_other_weights",
        "finalize_layers",
        "layer.finalize_state()",
        "pass",
        (
            "models/test_copies.py::test_what_normalization_was_adapted_to_is_copied",
            "tasks/test_models_of_users.py::test_a_folder_gives_the_task_back",
        ),
    ),
    Mutant(
        "a_student_begins_where_loading_its_teachers_ended",
        "DistillationRun.prepare",
        "keras.utils.set_random_seed(self.recipe.seed)",
        "pass",
        (
            "runs/test_distillation.py::test_a_student_begins_the_same_whether_or_not_its_teacher_was_loaded_in_this_process",
        ),
    ),
    Mutant(
        "half_a_character_is_a_span",
        "whole_characters",
        "return size_of(before), size_of(num_characters(texts, rows, ends))",
        "return starts, ends",
        ("tasks/test_spans.py::test_spans_of_bytes_are_whole_characters",),
    ),
    Mutant(
        "an_export_keeps_its_shortlist_to_itself",
        "Translator.write_export_files",
        "if self.shortlist is not None:",
        "if False:",
        ("tasks/test_shortlist.py::test_verify_compares_with_the_list_of_the_export[tied-None]",),
    ),
    Mutant(
        "a_short_list_meets_a_whole_row",
        "Search.writable_logits",
        "if is_listed:",
        "if self.writable_limits is not None:",
        ("tasks/test_shortlist.py::test_more_candidates_than_a_vocabulary_has",),
    ),
    Mutant(
        "pads_are_decoded_as_words",
        "BeamSearch._candidates",
        "top_k_and_normalizer(logits, per_beam, excluded)",
        "top_k_and_normalizer(logits, per_beam, ())",
        (SEARCH + "test_a_pad_is_never_a_word",),
    ),
    Mutant(
        "an_ensemble_has_infinite_logarithms",
        "_log_mean",
        "ops.log(ops.maximum(mean, _SMALLEST))",
        "ops.log(mean)",
        ("models/test_ensemble.py::test_a_token_of_no_probability_has_a_finite_logarithm",),
    ),
    Mutant(
        "greedy_pads_are_words",
        "GreedySearch.choose",
        "logits, excluded = self.writable_logits(logits, is_listed)",
        "excluded = ()",
        ("generation/test_greedy_search.py::test_a_pad_is_never_the_best_token",),
    ),
    Mutant(
        "columns_beside_the_best_are_searched",
        "_top_k",
        "indices = chosen // k * num_columns + entries_at(columns, chosen % k)",
        "indices = chosen // k * num_columns + chosen % k",
        ("ops/test_largest_values.py::test_the_largest_values_and_their_indices[4099-7]",),
    ),
    Mutant(
        "projections_made_for_a_step_are_made_again",
        "MultiHeadAttention.call",
        "current_step_projections(self, projects_keys=cache_update_index is not None)",
        "None",
        ("layers/test_step_projections.py::test_projections_that_were_made_are_those_that_are_used[plain]",),
    ),
    Mutant(
        "caches_that_are_overwritten_share_memory",
        "unshared.copied",
        "return tf.raw_ops.DeepCopy(x=x)",
        "return x",
        ("ops/test_kv_cache.py::test_a_loop_overwrites_caches_that_are_its_own",),
    ),
    Mutant(
        "a_cache_is_overwritten_twice",
        "_written_rows",
        "if overwritten is None or id(stored) in overwritten or not is_float32 or is_compiled_scope():",
        "if overwritten is None or not is_float32 or is_compiled_scope():",
        ("ops/test_kv_cache.py::test_a_cache_that_is_written_twice_is_not_overwritten_the_second_time",),
    ),
    Mutant(
        "log_normalizer_of_the_smallest_share",
        "log_normalizer",
        "share = ops.max(shares, axis=-1, keepdims=True, initial=0)",
        "share = ops.min(shares, axis=-1, keepdims=True, initial=1)",
        ("ops/test_softmax.py::test_it_is_the_log_of_the_sum[True-shape0]",),
    ),
    Mutant(
        "excluded_values_choose_the_columns",
        "_top_k",
        "_search(_maxima_without(maxima, x, excluded), k)",
        "_search(maxima, k)",
        (
            "ops/test_largest_values.py::test_the_largest_values_without_some_and_the_normalizer_of_all[4-8000-7]",
        ),
    ),
    Mutant(
        "excluded_values_are_found",
        "_top_k",
        "_without(candidates, candidate_indices, excluded)",
        "candidates",
        (
            "ops/test_largest_values.py::test_the_largest_values_without_some_and_the_normalizer_of_all[4-8000-7]",
        ),
    ),
    Mutant(
        "a_compiled_part_gets_the_matrices_of_other_graphs",
        "_step_scope",
        "contextlib.nullcontext() if compiler is None else compiled_scope()",
        "contextlib.nullcontext()",
        ("models/test_quantization.py::test_the_compiled_part_of_a_graph_gets_matrices_of_integers",),
    ),
    Mutant(
        "xla_pairs_features_as_without_it",
        "_rotate_for_compiler",
        "np.flip(features.reshape(shape), pair_axis)",
        "np.flip(features.reshape(shape), -2)",
        ("ops/test_rotary.py::test_equals_complex_multiplication[compiled_scope-1.7-10-True-positions0]",),
    ),
    Mutant(
        "a_cache_keeps_what_padding_holds",
        "written_keys",
        "is_token = _before_last_axes(new_positions >= 0)",
        "is_token = _before_last_axes(new_positions >= new_positions)",
        ("layers/test_multi_head_attention.py::test_nan_at_negative_positions_is_not_kept_in_the_cache",),
    ),
    Mutant(
        "small_int8_matrices_lose_their_scale",
        "step_form",
        'ops.cast(matrix.values, "float32") * matrix.scale',
        'ops.cast(matrix.values, "float32")',
        ("ops/test_int8_products.py::test_a_small_transposed_matrix_is_turned",),
    ),
    Mutant(
        "integers_for_a_loop_are_not_turned",
        "Int8Matrix.transposed",
        "ops.reshape(ops.transpose(self.values), (-1,))",
        "ops.reshape(self.values, (-1,))",
        ("ops/test_int8_products.py::test_product_is_that_of_the_rounded_numbers[for a loop-True]",),
    ),
    Mutant(
        "integers_for_a_loop_are_cast_in_each_step",
        "Int8Matrix.transposed",
        "ops.reshape(ops.transpose(self.values), (-1,))",
        "ops.transpose(self.values)",
        ("ops/test_int8_products.py::test_xla_multiplies_integers_of_8_bits_in_a_loop[no tiles]",),
    ),
    Mutant(
        "a_single_row_takes_integers_as_they_lie",
        "loop_form",
        "transposed_values=matrix.transposed().values",
        "transposed_values=ops.reshape(matrix.values, (-1,))",
        ("ops/test_int8_products.py::test_what_a_loop_multiplies_by_is_turned_once[tiles]",),
    ),
    Mutant(
        "xla_cuts_what_it_should_round",
        "_rounded",
        "x + _ROUNDING",
        "ops.trunc(x) + _ROUNDING",
        ("ops/test_int8_products.py::test_product_is_that_of_the_rounded_numbers[given-True]",),
    ),
    Mutant(
        "a_compiled_graph_does_not_mask_keys",
        "guard",
        "dataclasses.replace(rule, query_mask=None).block()",
        "dataclasses.replace(rule, key_mask=None).block()",
        (
            "ops/test_dot_product_attention.py::test_equals_loops_under_padding_in_a_graph_for_a_compiler[False]",
        ),
    ),
    Mutant(
        "xla_casts_bfloat16_matrices",
        "_xla_product",
        "output_type=tf.float32",
        "output_type=tf.bfloat16",
        (
            "ops/test_bfloat16_products.py::test_xla_sums_in_float32_and_casts_the_matrix_for_few_rows_only[17-True]",
        ),
    ),
    Mutant(
        "compiled_logits_do_not_know_that_rows_are_few",
        "_are_few",
        "return ops.logical_and(num_rows >= fewest, num_rows <= 32)",
        "return False",
        (
            "ops/test_bfloat16_products.py::test_xla_takes_the_product_for_few_rows_where_they_are_known_to_it_alone"
            "[5-1-True]",
        ),
    ),
    Mutant(
        "stored_tables_are_multiplied_in_float32",
        "TokenEmbedding._products",
        "if runs_bfloat16_products(rows, weights):",
        "if False:",
        (
            "ops/test_bfloat16_products.py::test_logits_of_a_stored_table_are_rounded_once_at_most_and_the_same_in_any_batch[2]",
        ),
    ),
    Mutant(
        "step_projects_keys_as_values",
        "projected_heads",
        "zip(parts, sizes)",
        "zip([parts[0], *parts[:0:-1]], sizes)",
        (
            "layers/test_step_projections.py::test_steps_with_projections_equal_the_whole_sequence[sizes0-plain]",
        ),
    ),
    Mutant(
        "small_products_summed_over_the_wrong_axis",
        "attention_without_scores.by_elementwise_products",
        "ops.sum(ops.swapaxes(scores, -1, -2) * value, axis=-2, keepdims=True)",
        "ops.sum(value, axis=-2, keepdims=True)",
        ("ops/test_dot_product_attention.py::test_one_query_of_a_batch_of_unknown_size",),
    ),
    # Other engines
    Mutant(
        "query_and_key_swapped_on_export",
        "_set_block",
        "projections = [attention.query_dense, attention.key_dense, attention.value_dense]",
        "projections = [attention.key_dense, attention.query_dense, attention.value_dense]",
        (ENGINE + "test_every_option_of_the_model_gives_the_same_log_probabilities[post_norm]",),
    ),
    Mutant(
        "ctranslate2_makes_its_own_sines",
        "_set_embedding",
        "spec.position_encodings.encodings = keras.ops.convert_to_numpy(table)",
        "keras.ops.convert_to_numpy(table)",
        (ENGINE + "test_every_option_of_the_model_gives_the_same_log_probabilities[pre_norm]",),
    ),
    Mutant(
        "ctranslate2_may_choose_the_pad",
        "_set_output",
        "np.float32(_NEVER)",
        "np.float32(0)",
        (ENGINE + "test_every_option_of_the_model_gives_the_same_log_probabilities[pre_norm]",),
    ),
    Mutant(
        "adapted_weights_left_behind",
        "_Weights.check_all_taken",
        "if self._left:",
        "if False:",
        (ENGINE + "test_what_it_cannot_compute_is_refused_before_anything_is_written[with_lora]",),
    ),
    # Seeing
    Mutant(
        "captured_calls_use_up_random_numbers",
        "_restore",
        "variable.assign(value)",
        "pass",
        (
            SEEING
            + "test_capture.py::test_a_layer_of_a_users_own_keeps_its_random_numbers_its_means_and_its_masks",
        ),
    ),
    Mutant(
        "rollout_in_the_wrong_order",
        "rollout",
        "mixed @ product",
        "product @ mixed",
        (SEEING + "test_summaries.py::test_rollout_is_the_sum_over_all_ways_through_the_layers",),
    ),
    Mutant(
        "relevance_of_the_target_ignored",
        "relevance",
        "between + weights @ across @ source",
        "between + across @ source",
        (SEEING + "test_summaries.py::test_relevance_of_two_layers_and_of_cross_attention_by_hand",),
    ),
    Mutant(
        "next_position_may_be_seen",
        "Declarations.forbidden",
        "np.arange(size) > np.arange(size)[:, None]",
        "np.arange(size) > np.arange(size)[:, None] + 1",
        (SEEING + "test_check_masks.py::test_the_next_position_alone_is_a_leak",),
    ),
    Mutant(
        "gradients_not_judged",
        "_Check._take_gradients",
        'self._judge(output, name, _counts(sizes), "gradient")',
        "pass",
        (
            SEEING
            + "test_check_masks.py::test_a_mutant_is_found_with_its_layer[a leak of the gradient alone]",
        ),
    ),
    Mutant(
        "causal_mask_not_explained",
        "CallOfKeras.mask",
        'if self.arguments.get("use_causal_mask"):',
        "if False:",
        (SEEING + "test_explain_masks.py::test_grouped_attention_with_the_causal_mask_alone_and_windows",),
    ),
    Mutant(
        "a_query_without_a_choice_has_a_kind",
        "_chooses",
        "return attends & (visible.sum(axis=-1) > 1)",
        "return attends",
        ("plots/test_head_kinds.py::test_a_causal_mask_leaves_the_first_query_no_choice",),
    ),
    Mutant(
        "attention_served_past_the_end_of_a_text",
        "AttentionFunction.outputs",
        "kind_scores * (queries * keys)",
        "kind_scores",
        ("export/test_attention_signature.py::test_languages_are_those_of_each_row",),
    ),
]


# The faults that the default tests must find, each with its mutant.
QUALITY_FAULTS = {
    "query, key and value weights swapped on import": "query_and_value_swapped_on_import",
    "mask polarity flipped": "mask_polarity_flipped",
    "causal shifted by one": "causal_sees_one_place_ahead",
    "causal aligned top-left with a cache": "causal_aligned_top_left_with_a_cache",
    "mask skipped in cross-attention": "mask_skipped_in_cross_attention",
    "mask only in the first layer": "mask_only_in_the_first_encoder_layer",
    "1/sqrt(key_dim) dropped": "square_root_of_key_dim_dropped",
    "positions all zero": "positions_all_zero",
    "positions ignoring left padding": "left_padding_ignored_in_a_cache",
    "dropout left on": "dropout_left_on",
    "finished beams extended": "finished_beams_extended",
    "length penalty ignored": "length_penalty_ignored",
    "one get_config key dropped": "config_key_of_a_layer_dropped",
    "pads counted in the loss": "pads_counted_in_the_loss",
    "schedule off by one": "schedule_off_by_one",
    "tied weights untied after reload": "tied_weights_untied_after_reload",
}
# Of all mutants, the share that the default tests must kill.
SHARE_OF_THE_DEFAULT = 0.8


class Recorder:
    """A plugin of pytest: which tests failed, and which of them are not in the default run."""

    def __init__(self):
        self.failed, self.extended = set(), set()

    def pytest_collection_modifyitems(self, items):
        self.extended = {item.nodeid for item in items if item.get_closest_marker("extended")}

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            self.failed.add(report.nodeid)


class Run:
    """A forked process that runs tests on the copy of the project at `root`, and on no other."""

    def __init__(self, root, tests, name="run"):
        self.root, self.name = root, name
        self.start = time.perf_counter()
        (root / f"{name}.json").unlink(missing_ok=True)
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=_run_tests, args=(root, tests, name))
        self.process.start()

    def seconds(self):
        return time.perf_counter() - self.start

    def failed_tests(self):
        """The node ids, without the folder tests/, of the tests that failed: {id: whether it is an extended one}.

        Raises:
            RuntimeError: if pytest could not run them.
        """
        self.process.join(max(0, SECONDS_A_RUN - self.seconds()))
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise RuntimeError(f"no answer in {SECONDS_A_RUN} s")
        record = self.root / f"{self.name}.json"
        code, failed, extended = json.loads(record.read_text()) if record.exists() else (None, [], [])
        # pytest exits with 0 when all passed and with 1 when some failed.
        if code not in (0, 1) or code != bool(failed):
            raise RuntimeError((self.root / f"{self.name}.txt").read_text(errors="replace")[-2000:])
        return {name.removeprefix("tests/"): name in extended for name in failed}


def _run_tests(root, tests, name):
    output = os.open(root / f"{name}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(root)
    here = str(ROOT / "tests")
    sys.path[:] = [str(root), *(path for path in sys.path if path not in (here, str(ROOT), ""))]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    import pytest

    import keras_attn

    found = pathlib.Path(keras_attn.__file__).resolve().parents[1]
    assert found == root.resolve(), f"keras_attn was imported from {found}"
    recorder = Recorder()
    # The parent has imported hypothesis, whose own asserts pytest would have rewritten.
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options = [
        *quiet,
        "-p",
        "no:cacheprovider",
        "--processes=0",
        "-q",
        "--tb=no",
        "--color=no",
        "-m",
        "not slow",
    ]
    code = pytest.main([*options, *(f"tests/{test}" for test in tests)], plugins=[recorder])
    (root / f"{name}.json").write_text(
        json.dumps([int(code), sorted(recorder.failed), sorted(recorder.extended)])
    )


def copy_of_the_project(folder, source=ROOT):
    for name in ("keras_attn", "tests", "setup.cfg"):
        copy = shutil.copytree if (source / name).is_dir() else shutil.copy2
        copy(source / name, folder / name)
    return folder


def is_case_of(node_id, test):
    return node_id == test or node_id.startswith(f"{test}[")


def verdict(mutant, run):
    """(what killed it: "default", "extended" or None; what to print) of one mutant."""
    try:
        failed = run.failed_tests()
    except RuntimeError as error:
        return None, f"ERROR: {error}"
    cases = {test: [name for name in failed if is_case_of(name, test)] for test in mutant.tests}
    survived = [test for test, names in cases.items() if not names]
    if survived:
        return None, f"SURVIVED {', '.join(survived)}"
    by_default = any(not failed[name] for names in cases.values() for name in names)
    killers = ", ".join(test.partition("::")[2] for test in mutant.tests)
    return "default" if by_default else "extended", killers


def in_turn(jobs, num_at_once):
    """Runs (key, function that starts a Run) a few at once; yields (key, Run) as they end."""
    waiting, running = list(jobs), {}
    while waiting or running:
        while waiting and len(running) < num_at_once:
            key, start = waiting.pop(0)
            run = start()
            running[run.process.sentinel] = key, run
        first = min(run.start for _, run in running.values())
        left = max(0, SECONDS_A_RUN - (time.perf_counter() - first))
        ended = multiprocessing.connection.wait(list(running), timeout=left)
        for sentinel in ended or [min(running, key=lambda sentinel: running[sentinel][1].start)]:
            yield running.pop(sentinel)


def failures_without_mutation(base, mutants, num_at_once):
    """The named tests that fail in `base`, where the runs leave compiled files for the copies made of it."""
    tests = {test for mutant in mutants for test in mutant.tests}
    files = sorted({test.partition("::")[0] for test in tests})
    jobs = [
        (
            file,
            functools.partial(
                Run, base, sorted(test for test in tests if test.startswith(f"{file}::")), str(i)
            ),
        )
        for i, file in enumerate(files)
    ]
    failures = []
    for file, run in in_turn(jobs, num_at_once):
        try:
            failures += run.failed_tests()
        except RuntimeError as error:
            failures.append(f"{file}: {error}")
    return failures


def report(mutants, base, num_at_once):
    """Prints a line for each mutant; returns {name: what killed it}."""
    width = max(len(mutant.name) for mutant in mutants)
    print(f"{'mutant':{width}}  seconds  killed by the", flush=True)
    killers = {}
    with tempfile.TemporaryDirectory() as folder:

        def start(mutant):
            root = pathlib.Path(folder) / mutant.name
            root.mkdir()
            mutant.apply(copy_of_the_project(root, base))
            return Run(root, mutant.tests)

        jobs = [(mutant, functools.partial(start, mutant)) for mutant in mutants]
        for mutant, run in in_turn(jobs, num_at_once):
            killer, text = verdict(mutant, run)
            killers[mutant.name] = killer
            shutil.rmtree(run.root)
            print(
                f"{mutant.name:{width}}  {run.seconds():7.1f}  {(killer or 'nobody') + ':':9} {text}",
                flush=True,
            )
    return killers


def faults_of(killers):
    """What is wrong with a run: survivors, and what the default tests should have killed and did not."""
    names = [name for name, killer in killers.items() if killer is None]
    faults = [f"alive: {', '.join(names)}"] if names else []
    missed = [
        fault for fault, name in QUALITY_FAULTS.items() if name in killers and killers[name] != "default"
    ]
    faults += [f"not killed by default tests: {', '.join(missed)}"] if missed else []
    by_default = sum(killer == "default" for killer in killers.values())
    if len(killers) == len(MUTANTS) and by_default < SHARE_OF_THE_DEFAULT * len(MUTANTS):
        faults.append(
            f"the default tests kill {by_default} of {len(MUTANTS)}, fewer than {SHARE_OF_THE_DEFAULT:.0%}"
        )
    return faults


def chosen_mutants(names):
    known = {mutant.name: mutant for mutant in MUTANTS}
    unknown = sorted(set(names) - set(known))
    if unknown:
        sys.exit(f"Unknown: {', '.join(unknown)}. Mutants: {', '.join(known)}.")
    return [known[name] for name in names] or MUTANTS


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to run; all of them by default")
    parser.add_argument("--jobs", type=int, default=2, help="how many to run at once")
    options = parser.parse_args()
    mutants = chosen_mutants(options.names)
    start = time.perf_counter()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for name in WARM_UP:
        importlib.import_module(name)
    warnings.simplefilter(
        "ignore"
    )  # of forks beside threads, those of NumPy; the tests have filters of their own
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        base = copy_of_the_project(pathlib.Path(folder))
        failures = failures_without_mutation(base, mutants, options.jobs)
        if failures:
            sys.exit("These tests fail without any mutation:\n" + "\n".join(failures))
        print(f"The tests pass without mutation ({time.perf_counter() - start:.0f} s).\n", flush=True)
        killers = report(mutants, base, options.jobs)
    by_default, by_extended = (sum(x == kind for x in killers.values()) for kind in ("default", "extended"))
    print(
        f"\n{by_default + by_extended} of {len(mutants)} killed in {time.perf_counter() - start:.0f} seconds: "
        f"{by_default} by default tests, {by_extended} by extended ones alone."
    )
    faults = faults_of(killers)
    sys.exit("\n".join(faults) if faults else 0)


if __name__ == "__main__":
    main()
