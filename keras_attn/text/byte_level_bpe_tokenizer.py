"""Byte-level byte-pair encoding, the tokenizer of GPT-2, RoBERTa, BART, LLaMA 3 and Qwen."""

from keras_attn.text.json_parts import added_token, pre_tokenizers, split
from keras_attn.text.patterns import GPT2_PATTERN
from keras_attn.text.pipeline_tokenizer import PipelineTokenizer


class ByteLevelBPETokenizer(PipelineTokenizer):
    """Spells text as bytes and joins them by a list of merges; nothing is unknown, and decoding gives the text back.

    Unlike KerasHub's `BytePairTokenizer`, it splits words and joins bytes by operations of the graph that TF Serving
    links, with no loop: the merges become a sentencepiece model. Ids are those of `tokenizers`.

    Args:
        vocabulary: Dictionary from piece to id, the content of vocab.json.
        merges: List of pairs of pieces, the lines of merges.txt.
        pattern: Regular expression whose matches are the words, `keras_attn.text.patterns.GPT2_PATTERN`,
            `LLAMA3_PATTERN`, `QWEN2_PATTERN` or another that RE2 can match.
        add_prefix_space: Whether a space is put before a text that begins with none.
        ignore_merges: Whether a word that is a piece is one token whatever the merges say, as in LLaMA 3.
        special_tokens: Dictionary from roles to tokens of the vocabulary, as in `PipelineTokenizer`. These are found
            in texts, and skipped when ids are decoded.

    Raises:
        ValueError: If the merges and the vocabulary do not fit each other, or the pattern is not supported.
        ImportError: If sentencepiece or tensorflow-text is not installed.

    Example:

    ```
    from keras_attn.text import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer({"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4}, [("a", "b"), ("Ġ", "ab")])
    assert tokenizer.encode(["ab abb"]) == [[3, 4, 1]]
    assert tokenizer.decode([[3, 4, 1]]) == ["ab abb"]
    ```

    Reference:
        - Radford et al., 2019, "Language Models are Unsupervised Multitask Learners", section 2.2
        - Sennrich et al., 2016 (arXiv:1508.07909), section 3.2
    """

    def __init__(
        self,
        vocabulary,
        merges,
        pattern=GPT2_PATTERN,
        add_prefix_space=False,
        ignore_merges=False,
        special_tokens=None,
    ):
        special_tokens = dict(special_tokens or {})
        missing = sorted(token for token in special_tokens.values() if token not in vocabulary)
        if missing:
            raise ValueError(f"`special_tokens` must name tokens of the vocabulary. Received: {missing}.")
        spelling = {"type": "ByteLevel", "add_prefix_space": add_prefix_space}
        if pattern == GPT2_PATTERN:
            pre_tokenizer = pre_tokenizers(spelling)
        else:
            pre_tokenizer = pre_tokenizers(split(pattern), {**spelling, "use_regex": False})
        added = dict.fromkeys(special_tokens.values())
        description = {
            "model": {
                "type": "BPE",
                "vocab": dict(vocabulary),
                "merges": [list(merge) for merge in merges],
                "ignore_merges": ignore_merges,
            },
            "added_tokens": [added_token(token, vocabulary[token]) for token in added],
            "pre_tokenizer": pre_tokenizer,
            "decoder": {"type": "ByteLevel"},
        }
        super().__init__(description, special_tokens)
        self.pattern = pattern
        self.add_prefix_space = add_prefix_space
        self.ignore_merges = ignore_merges

    def get_config(self):
        description = super().get_config()["description"]
        return {
            "vocabulary": description["model"]["vocab"],
            "merges": description["model"]["merges"],
            "pattern": self.pattern,
            "add_prefix_space": self.add_prefix_space,
            "ignore_merges": self.ignore_merges,
            "special_tokens": dict(self.special_tokens),
        }

    def _write_config(self, folder):
        return self.get_config()

    @classmethod
    def _read_config(cls, folder, config):
        return cls(**config)
