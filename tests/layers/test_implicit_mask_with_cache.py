"""A cached step cannot remember an implicit mask, so it is refused; the mask belongs over the cache's slots."""

import keras
import numpy as np
import pytest

from keras_attn.layers import DecoderBlock


@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize("normalize_first", [False, True])
def test_an_implicit_mask_on_a_cached_step_is_refused(num_tokens, normalize_first):
    embedding = keras.layers.Embedding(11, 6, mask_zero=True)
    block = DecoderBlock(intermediate_dim=5, num_heads=2, normalize_first=normalize_first)
    block.build((None, None, 6))
    token_ids = np.array([[4, 0, 5], [7, 3, 0]])[:, :num_tokens]
    with pytest.raises(ValueError, match=r"`value_mask` must have shape \(2, 7\)"):
        block(
            embedding(token_ids),
            self_attention_cache=block.empty_cache(2, 7),
            self_attention_cache_update_index=0,
        )
