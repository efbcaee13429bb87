"""Seq2SeqTransformer against the paper's equations in torch.nn.functional, float64, with the same weights."""

import numpy as np
import pytest
from helpers_models import PAD, SIZES, assert_close, call, make_batch, make_model, sizes_of
from keras import ops

torch = pytest.importorskip("torch", reason='needs torch: pip install "keras_attn[peers]"')
F = torch.nn.functional


class TorchTransformer:
    """Encoder and decoder of Vaswani et al., figure 1, on weights that are looked up by path."""

    def __init__(self, model, sizes):
        self.weights = {
            weight.path.partition("/")[2]: torch.tensor(ops.convert_to_numpy(weight).astype("float64"))
            for weight in model.weights
        }
        self.config = sizes

    def __call__(self, encoder_token_ids, decoder_token_ids):
        source, target = torch.tensor(encoder_token_ids).long(), torch.tensor(decoder_token_ids).long()
        source_mask = (source != PAD)[:, None, None, :]
        length = target.shape[1]
        target_mask = (target != PAD)[:, None, None, :] & torch.ones(length, length).tril().bool()
        x = self.embed(source, "source_embedding")
        for i in range(self.config["num_encoder_layers"]):
            block = f"encoder_block_{i}"
            x = self.residual(
                block, "self_attention", x, lambda q, name: self.attention(name, q, q, source_mask)
            )
            x = self.residual(block, "feed_forward", x, self.feed_forward)
        x = self.norm("encoder_norm", x) if self.config["normalize_first"] else x
        y = self.embed(target, "target_embedding")
        for i in range(self.config["num_decoder_layers"]):
            block = f"decoder_block_{i}"
            y = self.residual(
                block, "self_attention", y, lambda q, name: self.attention(name, q, q, target_mask)
            )
            y = self.residual(
                block, "cross_attention", y, lambda q, name, x=x: self.attention(name, q, x, source_mask)
            )
            y = self.residual(block, "feed_forward", y, self.feed_forward)
        y = self.norm("decoder_norm", y) if self.config["normalize_first"] else y
        if self.config["tie_output"]:
            return y @ self.embeddings("target_embedding").T
        return y @ self.weights["target_embedding/token_embedding/reverse_embeddings"]

    def embeddings(self, name):
        # What both sides share has the name of where it comes first.
        name = "source_embedding" if self.config["target_vocabulary_size"] is None else name
        return self.weights[f"{name}/token_embedding/embeddings"]

    def embed(self, ids, name):
        x = F.embedding(ids, self.embeddings(name)) * self.config["hidden_dim"] ** 0.5
        if self.config["position_encoding"] == "learned":
            return x + self.weights[f"{name}/position_encoding/embeddings"][: ids.shape[1]]
        positions = torch.arange(ids.shape[1], dtype=torch.float64)[:, None]
        even = torch.arange(0, x.shape[-1], 2, dtype=torch.float64)
        angles = positions / 10000 ** (even / x.shape[-1])
        return x + torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)

    def residual(self, block, name, x, sublayer):
        norm = f"{block}/{name}_residual/norm"
        if self.config["normalize_first"]:
            return x + sublayer(self.norm(norm, x), f"{block}/{name}")
        return self.norm(norm, x + sublayer(x, f"{block}/{name}"))

    def norm(self, name, x):
        if self.config["normalization"] == "rms_norm":
            return F.rms_norm(
                x, x.shape[-1:], self.weights[f"{name}/scale"], self.config["layer_norm_epsilon"]
            )
        gamma, beta = self.weights[f"{name}/gamma"], self.weights[f"{name}/beta"]
        return F.layer_norm(x, x.shape[-1:], gamma, beta, self.config["layer_norm_epsilon"])

    def attention(self, name, query, value, mask):
        q, k, v = (
            torch.einsum("btd,dnh->bnth", x, self.weights[f"{name}/{part}/kernel"])
            + self.weights[f"{name}/{part}/bias"][:, None]
            for part, x in (("query", query), ("key", value), ("value", value))
        )
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        kernel, bias = (self.weights[f"{name}/attention_output/{part}"] for part in ("kernel", "bias"))
        return torch.einsum("bnth,nhd->btd", heads, kernel) + bias

    def feed_forward(self, x, name):
        def dense(part, x):
            return x @ self.weights[f"{name}/{part}/kernel"] + self.weights[f"{name}/{part}/bias"]

        if self.config["gated"]:
            return dense("output", F.silu(dense("gate", x)) * dense("intermediate", x))
        return dense("output", F.relu(dense("intermediate", x)))


@pytest.mark.parametrize("variant", ["post_norm", "untied_gated_rms_learned"])
def test_logits_are_those_of_the_paper_in_torch(variant):
    model = make_model(variant)
    batch = make_batch()
    real = batch["decoder_token_ids"] != PAD
    expected = TorchTransformer(model, sizes_of(variant))(**batch).numpy()
    assert_close(call(model, batch)[real], expected[real], 1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("normalize_first", [False, True])
def test_six_layers_stay_within_1e_4(normalize_first):
    sizes = {"num_encoder_layers": 6, "num_decoder_layers": 6, "normalize_first": normalize_first}
    model = make_model(**sizes)
    batch = make_batch()
    real = batch["decoder_token_ids"] != PAD
    expected = TorchTransformer(model, sizes_of(**sizes))(**batch).numpy()
    assert_close(call(model, batch)[real], expected[real], 1e-4)


@pytest.mark.extended
def test_the_comparison_would_notice():
    # Were a layer or a mask left out of both sides, equality would say nothing.
    model = make_model()
    batch = make_batch()
    reference = TorchTransformer(model, sizes_of())
    expected = reference(**batch).numpy()
    for path, weight in reference.weights.items():
        if path.endswith("key/bias"):  # which softmax does not see
            continue
        reference.weights[path] = weight + torch.randn(
            weight.shape, generator=torch.Generator().manual_seed(3)
        )
        assert np.abs(reference(**batch).numpy() - expected).max() > 5e-5, path
        reference.weights[path] = weight
    reference.config["num_decoder_layers"] = SIZES["num_decoder_layers"] - 1
    assert np.abs(reference(**batch).numpy() - expected).max() > 1e-2
