"""What an architecture's file says of a checkpoint: the model, the table of names, and the tensors that are not needed."""

import dataclasses
import re
from collections.abc import Callable

from keras_attn.huggingface.activations import their_activation

# Limits the length of models whose positions are computed, for memory's sake; transformers sets no limit.
LONGEST_COMPUTED = 4096

# Tensors that no architecture needs: constants in older files, and heads that are not read.
_CONSTANTS = {
    r"(.*\.)?position_ids": "constant",
    r".*rotary_emb\.inv_freq": "constant",
    r"lm_head\.weight|final_logits_bias": "head: language model",
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What a config, and the names in the files, say of the model of a checkpoint.

    Args:
        make: Function without arguments that returns the model with fresh weights.
        names: Table of names, from our variables to their tensors, see `keras_attn.models.checkpoint_names`.
        prefix: String before the names of the body's tensors, in checkpoints with a head and in some without.
        same: Tuple of groups of names. The tensors of a group are one tensor, stored once or several times; the table
            has one of the names.
        unused: Dict from regular expressions, which match whole names without the prefix, to the reason why such
            tensors are not needed: those of a head that the model does not have, for instance. If the model uses one tensor
            that a pattern matches, it needs them all.
        renamed: Dict from regular expressions, found in names without the prefix, to their replacement, for older files.
        written_as_zeros: Dict from names to shapes of tensors that transformers' model has and ours does not.
        heads: Dict from the names of tasks, `TASKS` in model_types.py, to functions that return a `Head`: the heads that the
            model may have.
    """

    make: Callable
    names: dict
    prefix: str = ""
    same: tuple = ()
    unused: dict = dataclasses.field(default_factory=dict)
    renamed: dict = dataclasses.field(default_factory=dict)
    written_as_zeros: dict = dataclasses.field(default_factory=dict)
    heads: dict = dataclasses.field(default_factory=dict)

    @property
    def all_unused(self):
        """`unused`, and the tensors that no architecture needs."""
        return {**_CONSTANTS, **self.unused}

    def table_name(self, name):
        """The name that the table has for a tensor of the files: without the prefix, with `.weight` and `.bias` for
        TensorFlow's `.gamma` and `.beta`, and after the replacements of `renamed`."""
        name = name.removeprefix(self.prefix)
        name = re.sub(r"\.gamma$", ".weight", name)
        name = re.sub(r"\.beta$", ".bias", name)
        for pattern, replacement in self.renamed.items():
            name = re.sub(pattern, replacement, name)
        return name

    def names_of(self, name):
        """The names under which a tensor may be stored, its own first."""
        names = [name]
        for group in self.same:
            if name in group:
                names += [other for other in group if other != name]
        return names


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
        if not (self.is_tied and self.gives_logits):
            return ()
        return (group,)


def head_dim(hidden_dim, num_heads):
    """The size of a head if all heads together are as wide as the model.

    Raises:
        ValueError: if they cannot be.
    """
    if hidden_dim % num_heads:
        raise ValueError(
            f"The width of a model must be divisible by its heads. Received: {hidden_dim}, {num_heads} heads."
        )
    return hidden_dim // num_heads


def written_activation(feed_forward):
    """The field of a feed-forward network's activation."""
    return their_activation(feed_forward.activation)


def written_pad(model):
    """The field `pad_token_id`."""
    return None if model.pad_token_id < 0 else model.pad_token_id


def written_tie(token):
    """The field `tie_word_embeddings` of a token embedding: False if there is no output projection."""
    return token.tie_weights and token.gives_logits
