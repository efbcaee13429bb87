"""The architectures that are known, by the `model_type` of a config."""

from keras_attn.huggingface.albert import albert
from keras_attn.huggingface.bart import bart
from keras_attn.huggingface.bert import bert
from keras_attn.huggingface.distilbert import distilbert
from keras_attn.huggingface.gemma import gemma
from keras_attn.huggingface.gpt2 import gpt2
from keras_attn.huggingface.llama import llama
from keras_attn.huggingface.modernbert import modernbert
from keras_attn.huggingface.mpnet import mpnet
from keras_attn.huggingface.swin import swin
from keras_attn.huggingface.t5 import t5
from keras_attn.huggingface.vit import dinov2, vit

ARCHITECTURES = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra"), bert),
    "distilbert": distilbert,
    "albert": albert,
    "mpnet": mpnet,
    "modernbert": modernbert,
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), llama),
    "gpt2": gpt2,
    **dict.fromkeys(("gemma2", "gemma3_text"), gemma),
    **dict.fromkeys(("t5", "mt5"), t5),
    **dict.fromkeys(("bart", "mbart", "pegasus", "m2m_100", "marian"), bart),
    **dict.fromkeys(("vit", "deit"), vit),
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), dinov2),
    "swin": swin,
}
