"""One attention layer of each family as transformers runs it: tiny, with random weights, in float64."""

import sys

import torch
from torch import nn

from attnid.models.architectures import read_architecture

BIG = {
    "hidden_size": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "num_hidden_layers": 1,
    "intermediate_size": 8,
    "vocab_size": 10,
    "pad_token_id": 0,
    "rope_theta": 100.0,
}
SQUARE = BIG | {
    "head_dim": 3,
    "num_key_value_heads": 4,
}  # heads that fill the embedding, for families without groups
LATENT = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 8,
    "vocab_size": 10,
    "pad_token_id": 0,
    "rope_theta": 100.0,
    "kv_lora_rank": 4,
    "q_lora_rank": 5,
    "qk_nope_head_dim": 2,
    "qk_rope_head_dim": 4,
    "v_head_dim": 3,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 1,
    "first_k_dense_replace": 1,
}
WHISPER = {
    "model_type": "whisper",
    "d_model": 8,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "vocab_size": 10,
    "pad_token_id": 0,
}

# id -> (configuration, kind of layer)
CASES = {
    "bert": (SQUARE | {"model_type": "bert"}, "self"),
    "gpt2": (
        {
            "model_type": "gpt2",
            "n_embd": 12,
            "n_head": 3,
            "n_layer": 1,
            "vocab_size": 10,
            "n_positions": 32,
        },
        "self",
    ),
    "gpt_neox": (
        {
            "model_type": "gpt_neox",
            "hidden_size": 12,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
            "intermediate_size": 8,
            "vocab_size": 10,
            "rotary_pct": 0.67,
            "rotary_emb_base": 100,
        },
        "self",
    ),
    "llama": (BIG | {"model_type": "llama"}, "self"),
    "llama, biases": (BIG | {"model_type": "llama", "attention_bias": True}, "self"),
    "llama, null": (
        {
            **BIG,
            "model_type": "llama",
            "num_attention_heads": 3,
            "head_dim": None,
            "num_key_value_heads": None,
        },
        "self",
    ),
    "mistral": (BIG | {"model_type": "mistral"}, "self"),
    "mixtral": (BIG | {"model_type": "mixtral"}, "self"),
    "qwen2": (BIG | {"model_type": "qwen2"}, "self"),
    "qwen3": (BIG | {"model_type": "qwen3"}, "self"),
    "qwen3_moe": (BIG | {"model_type": "qwen3_moe", "num_experts": 2}, "self"),
    "gemma": (BIG | {"model_type": "gemma"}, "self"),
    "gemma2": (
        BIG | {"model_type": "gemma2", "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 4},
        "sliding",
    ),
    "gemma3": (
        BIG
        | {"model_type": "gemma3_text", "query_pre_attn_scalar": 4, "rope_local_base_freq": 50.0},
        "sliding",
    ),
    "gemma3, full": (
        BIG
        | {
            "model_type": "gemma3_text",
            "query_pre_attn_scalar": 4,
            "layer_types": ["full_attention"],
        },
        "full",
    ),
    "olmo2": ({**BIG, "model_type": "olmo2", "hidden_size": 16}, "self"),
    "phi": (
        {**BIG, "model_type": "phi", "num_key_value_heads": 4, "partial_rotary_factor": 0.5},
        "self",
    ),
    "phi3": (BIG | {"model_type": "phi3", "partial_rotary_factor": 0.5}, "self"),
    "falcon, one key head": (
        {
            "model_type": "falcon",
            "hidden_size": 12,
            "num_attention_heads": 3,
            "num_kv_heads": 3,
            "num_hidden_layers": 1,
            "vocab_size": 10,
            "rope_theta": 100.0,
            "multi_query": True,
        },
        "self",
    ),
    "falcon, groups": (
        {
            "model_type": "falcon",
            "hidden_size": 8,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "num_hidden_layers": 1,
            "vocab_size": 10,
            "rope_theta": 100.0,
            "new_decoder_architecture": True,
        },
        "self",
    ),
    "falcon, alibi": (
        {
            "model_type": "falcon",
            "hidden_size": 12,
            "num_attention_heads": 3,
            "num_hidden_layers": 1,
            "vocab_size": 10,
            "alibi": True,
            "bias": True,
            "multi_query": False,
        },
        "self",
    ),
    "gpt_oss": (
        BIG | {"model_type": "gpt_oss", "rope_scaling": None, "num_local_experts": 2},
        "sliding",
    ),
    "deepseek_v2": (LATENT | {"model_type": "deepseek_v2", "topk_method": "greedy"}, "self"),
    "deepseek_v2, no query latent": (
        {**LATENT, "model_type": "deepseek_v2", "q_lora_rank": None, "topk_method": "greedy"},
        "self",
    ),
    "deepseek_v3": (LATENT | {"model_type": "deepseek_v3"}, "self"),
    "whisper, encoder": (WHISPER, "encoder"),
    "whisper, decoder": (WHISPER, "decoder"),
    "whisper, cross": (WHISPER, "cross"),
    "vit": (
        {
            "model_type": "vit",
            "hidden_size": 12,
            "num_attention_heads": 3,
            "num_hidden_layers": 1,
            "intermediate_size": 8,
        },
        "self",
    ),
    "vit, no biases": (
        {
            "model_type": "vit",
            "hidden_size": 12,
            "num_attention_heads": 3,
            "num_hidden_layers": 1,
            "intermediate_size": 8,
            "qkv_bias": False,
        },
        "self",
    ),
}


class Double:
    """`torch`, as a module of transformers sees it, with float64 wherever it would round to float32."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def in_double(monkeypatch, layer):
    """Keep float64 throughout the forward pass of a layer, where transformers rounds softmax, norms and angles to float32."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    for name in {
        type(part).__module__
        for part in layer.modules()
        if type(part).__module__.startswith("transformers.models")
    }:
        monkeypatch.setattr(sys.modules[name], "torch", Double())


class Layer(nn.Module):
    """Parts of a model, and the function of the inputs (B, L, E) that they make together."""

    def __init__(self, call, *parts):
        super().__init__()
        self.call, self.parts = call, nn.ModuleList(parts)

    def forward(self, x):
        return self.call(*self.parts, x)


def causal(x):
    length = x.shape[1]
    return torch.full((1, 1, length, length), -torch.inf, dtype=x.dtype).triu(1)


def angles(rotary, x):
    return rotary(x, torch.arange(x.shape[1])[None])


def bert(model):
    part = model.encoder.layer[0].attention
    return Layer(lambda attention, dense, x: dense(attention(x)[0]), part.self, part.output.dense)


def vit(model):
    part = model.encoder.layer[0].attention
    return Layer(
        lambda attention, dense, x: dense(attention(x)[0]), part.attention, part.output.dense
    )


def gpt2(model):
    return Layer(lambda attention, x: attention(x, attention_mask=causal(x))[0], model.h[0].attn)


def falcon(model):
    def call(attention, x):
        if not model.config.alibi:
            return attention(x, None, causal(x), position_embeddings=angles(model.rotary_emb, x))[0]
        alibi = sys.modules[type(model).__module__].build_alibi_tensor(
            torch.ones(x.shape[:2]), model.config.num_attention_heads, x.dtype
        )
        return attention(x, alibi, causal(x))[0]

    return Layer(call, model.h[0].self_attention)


def whisper(model, kind):
    if kind == "encoder":
        return Layer(lambda attention, x: attention(x)[0], model.encoder.layers[0].self_attn)
    if kind == "decoder":
        return Layer(
            lambda attention, x: attention(x, attention_mask=causal(x))[0],
            model.decoder.layers[0].self_attn,
        )
    # the other half of the tokens stands for what the encoder puts out
    half = lambda attention, x: attention(x[:, ::2], key_value_states=x[:, 1::2])[0]
    return Layer(half, model.decoder.layers[0].encoder_attn)


def decoder(model, kind):
    block = model.layers[0]
    part = block.attention if hasattr(block, "attention") else block.self_attn
    rotary = (
        model.rotary_emb_local
        if kind == "sliding" and hasattr(model, "rotary_emb_local")
        else model.rotary_emb
    )
    return Layer(
        lambda attention, x: attention(
            hidden_states=x, attention_mask=causal(x), position_embeddings=angles(rotary, x)
        )[0],
        part,
    )


def one_layer(config, kind):
    """The configuration with one layer of that kind, and small where that bears on no attention."""
    config = dict(config.get("text_config", config))
    layers = (
        {"encoder_layers", "decoder_layers"}
        if config["model_type"] == "whisper"
        else {"n_layer", "num_hidden_layers"} & set(config)
    )
    if "layer_types" in config or config["model_type"] == "gemma3_text":
        config["layer_types"] = [f"{kind}_attention"]
    return config | dict.fromkeys(layers, 1)


def build(config, kind):
    """The layer of that kind in a model of this configuration."""
    from transformers import AutoConfig, AutoModel  # slow to import, so only where a model is built

    options = dict(config)
    model = (
        AutoModel.from_config(
            AutoConfig.for_model(options.pop("model_type"), **options), attn_implementation="eager"
        )
        .double()
        .eval()
    )
    special = {"bert": bert, "vit": vit, "gpt2": gpt2, "falcon": falcon}
    family = config["model_type"]
    if family in special:
        return special[family](model)
    return whisper(model, kind) if family == "whisper" else decoder(model, kind)


def fill(layer, seed, *, eps=0.0):
    """Random parameters and an epsilon for every norm inside."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        matrix = parameter.ndim == 2
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = drawn / 12**0.5 if matrix else 1 + 0.5 * drawn
    for part in layer.modules():
        for name in ("eps", "variance_epsilon"):
            if hasattr(part, name):
                setattr(part, name, eps)


def spectrum(layer, embed_dim, *, seed=1, length=10):
    """Singular values of the Jacobian of the outputs in all parameters, over twice as many rows as columns."""
    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    columns = sum(p.numel() for p in parameters.values())
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(
        2 * columns // (length * embed_dim) + 2,
        length,
        embed_dim,
        generator=generator,
        dtype=torch.float64,
    )
    J = torch.func.jacrev(lambda p: torch.func.functional_call(layer, p, (x,)))(parameters)
    scale = {name: p.square().mean().sqrt() for name, p in parameters.items()}
    return torch.linalg.svdvals(
        torch.cat([scale[name] * J[name].flatten(0, 2).flatten(1) for name in parameters], 1)
    )


LLAMA = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}


def layer_of(config, kind):
    return dict(read_architecture(config).layers)[kind]
