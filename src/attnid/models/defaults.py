"""What a field stands for that is not in a config.json: the default of the class of transformers
that loads the model.

Defaults that all families share are where the fields are read: base 10,000, no scaling, no biases.
A key-value head for each head, or a head of hidden / heads, stands for an absent field only where
the class has no number of its own.
"""


def _sizes(hidden, heads, layers, *, kv_heads=None, head_dim=None, positions=None, **more):
    named = {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": positions,
    }
    return {name: value for name, value in named.items() if value is not None} | more


_SMALL = _sizes(768, 12, 12)
_LATENTS = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}

DEFAULTS = {
    "bert": _SMALL,
    "gpt2": {"n_embd": 768, "n_head": 12, "n_layer": 12},
    "gpt_neox": _sizes(6144, 64, 44, positions=2048),
    "llama": _sizes(4096, 32, 32, positions=2048),
    "mistral": _sizes(4096, 32, 32, kv_heads=8, positions=131072),
    "mixtral": _sizes(4096, 32, 32, kv_heads=8, positions=131072, rope_theta=1e6),
    "qwen2": _sizes(4096, 32, 32, kv_heads=32, positions=32768),
    "qwen3": _sizes(4096, 32, 32, kv_heads=32, head_dim=128, positions=32768),
    "qwen3_moe": _sizes(2048, 32, 24, kv_heads=4, positions=32768),
    "gemma": _sizes(3072, 16, 28, kv_heads=16, head_dim=256, positions=8192),
    "gemma2": _sizes(
        2304, 8, 26, kv_heads=4, head_dim=256, positions=8192, attn_logit_softcapping=50.0
    ),
    "gemma3_text": _sizes(2304, 8, 26, kv_heads=4, head_dim=256, positions=131072, rope_theta=1e6),
    "olmo2": _sizes(4096, 32, 32, positions=2048),
    "phi": _sizes(2048, 32, 24, positions=2048),
    "phi3": _sizes(3072, 32, 32, positions=4096),
    "falcon": _sizes(4544, 71, 32, positions=2048),
    "gpt_oss": _sizes(
        2880,
        64,
        36,
        kv_heads=8,
        head_dim=64,
        positions=131072,
        rope_theta=150000.0,
        rope_scaling=_YARN,
    ),
    "deepseek_v2": _sizes(4096, 32, 32, positions=2048) | _LATENTS,
    "deepseek_v3": _sizes(7168, 128, 61, positions=4096) | _LATENTS,
    "whisper": {
        "d_model": 384,
        "encoder_layers": 4,
        "encoder_attention_heads": 6,
        "decoder_layers": 4,
        "decoder_attention_heads": 6,
    },
    "vit": _SMALL,
}

# other names that the classes take for a field, and which win over the field's own
ALIASES = {
    "gpt2": {
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    "falcon": {"n_embed": "hidden_size"},
    "whisper": {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_key_value_heads": "encoder_attention_heads",
    },
}
