"""What an architecture's file says of a checkpoint: the model, the table of names, and which tensors are of no use."""

import dataclasses
import re
from collections.abc import Callable

from keras_attn.huggingface.activations import their_activation

# The longest sequence of models whose positions are computed for any length, and of which transformers cuts none: a limit of
# memory alone.
LONGEST_COMPUTED = 4096

# Tensors of no use in every architecture: constants that older files hold, and heads that `load_model` has no place for.
_CONSTANTS = {
    r"(.*\.)?position_ids": "constant",
    r".*rotary_emb\.inv_freq": "constant",
    r"lm_head\.weight|final_logits_bias": "head: language model",
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A config, understood.

    Args:
        make: Function without arguments that returns the model with fresh weights.
        names: Table of names, see `name_tables.py`.
        prefix: String, with which the names of the body begin in checkpoints that have a head, and in some that have none.
        same: Tuple of groups of names. The tensors in a group are one tensor, stored once or several times; the names
            table has one of them.
        unused: Dict from regular expressions, which match whole names without the prefix, to the reason why such
            tensors are not needed. Where one of a pattern's tensors is used, all of its tensors are needed.
        renamed: Dict from regular expressions, found in names without the prefix, to what stands there in today's names;
            for files that were written in other ways.
        of_no_use: Dict from names to shapes of tensors that transformers' model has and ours has no use for: written as
            zeros.
        heads: Dict from names of tasks, see `heads.py`, to functions that return a `Head`.
    """

    make: Callable
    names: dict
    prefix: str = ""
    same: tuple = ()
    unused: dict = dataclasses.field(default_factory=dict)
    renamed: dict = dataclasses.field(default_factory=dict)
    of_no_use: dict = dataclasses.field(default_factory=dict)
    heads: dict = dataclasses.field(default_factory=dict)

    @property
    def all_unused(self):
        """`unused`, and what is of no use in every architecture."""
        return {**_CONSTANTS, **self.unused}


@dataclasses.dataclass(frozen=True)
class Output:
    """How a checkpoint gives logits of tokens.

    Args:
        is_tied: Boolean, whether the output projection is the token embedding.
        gives_logits: Boolean, False for a body, which has none.
    """

    is_tied: bool
    gives_logits: bool = True

    @property
    def options(self):
        """The arguments of the `TokenEmbedding`."""
        return {"tie_weights": self.is_tied or not self.gives_logits, "gives_logits": self.gives_logits}

    def same(self, *group):
        """The tensors that are one if it is tied: as in `Architecture`."""
        return (group,) if self.is_tied and self.gives_logits else ()


def written_activation(feed_forward):
    """The field of a feed-forward network's activation."""
    return their_activation(feed_forward.activation)


def written_pad(model):
    """The field `pad_token_id`."""
    return None if model.pad_token_id < 0 else model.pad_token_id


def written_tie(token):
    """The field `tie_word_embeddings` of a token embedding: False if there is no output projection."""
    return token.tie_weights and token.gives_logits


def own_name(name, prefix, renamed):
    """A tensor's name in today's form: without the prefix, without the names that norms had in TensorFlow, and renamed."""
    name = name.removeprefix(prefix)
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    for pattern, replacement in renamed.items():
        name = re.sub(pattern, replacement, name)
    return name
