"""What each family's attention is, from the fields of its configuration: model_type -> one (kind, description) per layer.

A reader takes the Fields of a configuration and returns a list of pairs, first layer first. It says what the family's module in
transformers computes, which is not always what the fields suggest: Qwen2's biases have no field, Falcon's multi-query layers have one
key head whatever num_kv_heads says.
"""

from ..checks import require
from ..layer.attention import Attention
from ..layer.latents import LatentAttention
from .configurations import rope, rotary_angles

KINDS = ("full_attention", "sliding_attention")


def sizes(
    fields, *, hidden="hidden_size", heads="num_attention_heads", groups="num_key_value_heads"
):
    """The sizes that `Attention` takes, by its names. A head's width is hidden / heads where head_dim is absent or null.

    Families without groups (None) have neither field, and transformers does not look at them.
    """
    E, H = fields.size(hidden), fields.size(heads)
    G = fields.size(groups, H) if groups else H
    require(H % G == 0, groups, G, f"does not divide {heads}={H}")
    if groups is None or fields.get("head_dim") is None:
        require(E % H == 0, hidden, E, f"is not divisible by {heads}={H}, and there is no head_dim")
        D = E // H
    else:
        D = fields.size("head_dim")
    return {"embed_dim": E, "heads": H, "kv_heads": G, "head_dim": D}


def layers(fields, name="num_hidden_layers"):
    return range(fields.size(name))


def kinds(fields, pattern):
    """Sliding or full, for each layer: what layer_types lists, or full at every `pattern`-th layer and sliding elsewhere."""
    number, listed = fields.size("num_hidden_layers"), fields.get("layer_types")
    if fields.get("sliding_window") is not None:
        fields.size(
            "sliding_window", least=2
        )  # a window of one token would leave the scores without effect
    if listed is None:
        return [KINDS[0] if (i + 1) % pattern == 0 else KINDS[1] for i in range(number)]
    good = (
        isinstance(listed, list) and len(listed) == number and all(kind in KINDS for kind in listed)
    )
    require(good, "layer_types", listed, f"must list one of {KINDS} for each of {number} layers")
    return listed


def angles(fields, head_dim, kind=None, part=1.0):
    """The angles of the first `part` of a head's coordinates, by the configuration's base and scaling."""
    base, scaling = rope(fields, kind)
    return rotary_angles(fields, int(head_dim * part), base, scaling)


def partial(fields, name, default):
    """The share of a head's coordinates that turns: a field of its own in old files, one of rope_parameters in new ones."""
    new = fields.within("rope_parameters")
    moved = new is not None and "partial_rotary_factor" in new.config
    part = new.number("partial_rotary_factor") if moved else fields.number(name, default)
    require(part <= 1, name, part, "a head cannot turn more than all of its coordinates")
    return part


def bert(fields):
    place = fields.get("position_embedding_type", "absolute")
    require(
        place == "absolute",
        "position_embedding_type",
        place,
        "positions that enter the scores are not described",
    )
    fields.refuse("add_cross_attention", "attention to another model is not described")
    layer = Attention(**sizes(fields, groups=None), bias="qkvo", causal=fields.flag("is_decoder"))
    return [("self", layer) for _ in layers(fields)]


def gpt2(fields):
    fields.refuse("add_cross_attention", "attention to another model is not described")
    layer = Attention(**sizes(fields, hidden="n_embd", heads="n_head", groups=None), bias="qkvo")
    return [("self", layer) for _ in layers(fields, "n_layer")]


def gpt_neox(fields):
    """Pythia's: a quarter of each head turns. The base is rotary_emb_base in old files."""
    size = sizes(fields, groups=None)
    base, scaling = rope(fields)
    base = fields.number("rotary_emb_base", base)
    turned = rotary_angles(
        fields, int(size["head_dim"] * partial(fields, "rotary_pct", 0.25)), base, scaling
    )
    layer = Attention(
        **size, bias="qkvo" if fields.flag("attention_bias", True) else "", rotary=turned
    )
    return [("self", layer) for _ in layers(fields)]


def llama(fields, *, bias=None, part=1.0, **options):
    """All heads turn. `bias` says which maps have one; by default attention_bias decides for all four."""
    size = sizes(fields)
    if bias is None:
        bias = "qkvo" if fields.flag("attention_bias") else ""
    layer = Attention(
        **size, bias=bias, rotary=angles(fields, size["head_dim"], part=part), **options
    )
    return [("self", layer) for _ in layers(fields)]


def mistral(fields):
    if fields.get("sliding_window") is not None:
        fields.size("sliding_window", least=2)
    return llama(fields, bias="")


def qwen2(fields):
    return llama(fields, bias="qkv")


def qwen3(fields):
    return llama(fields, qk_norm="head_gain")


def olmo2(fields):
    return llama(fields, qk_norm="layer_gain")


def phi(fields):
    fields.refuse(
        "qk_layernorm", "a LayerNorm of queries and keys, which also centres them, is not described"
    )
    return llama(fields, bias="qkvo", part=partial(fields, "partial_rotary_factor", 0.5))


def phi3(fields):
    return llama(fields, bias="", part=partial(fields, "partial_rotary_factor", 1.0))


def gemma2(fields):
    """Soft-capped scores; every other layer sees a window only."""
    score = "softmax" if fields.get("attn_logit_softcapping") is None else "softcap"
    layer = llama(fields, score=score)[0][1]
    return [(kind.removesuffix("_attention"), layer) for kind in kinds(fields, 2)]


def gemma3(fields):
    """Queries and keys normalised; layers with a window turn by another base, and unscaled."""
    size, listed = sizes(fields), kinds(fields, fields.size("sliding_window_pattern", 6))
    capped = fields.get("attn_logit_softcapping") is not None
    options = {
        "bias": "qkvo" if fields.flag("attention_bias") else "",
        "qk_norm": "head_gain",
        "score": "softcap" if capped else "softmax",
        "causal": not fields.flag("use_bidirectional_attention"),
    }
    turned = {"full_attention": angles(fields, size["head_dim"], "full_attention")}
    if fields.get("rope_parameters") is not None:
        turned["sliding_attention"] = angles(fields, size["head_dim"], "sliding_attention")
    else:
        turned["sliding_attention"] = rotary_angles(
            fields, size["head_dim"], fields.number("rope_local_base_freq", 10000.0)
        )
    described = {kind: Attention(**size, rotary=turned[kind], **options) for kind in KINDS}
    return [(kind.removesuffix("_attention"), described[kind]) for kind in listed]


def gpt_oss(fields):
    """Each head has a learned sink, and every map a bias unless attention_bias is false."""
    bias = "qkvo" if fields.flag("attention_bias", True) else ""
    layer = llama(fields, bias=bias, score="sink")[0][1]
    return [(kind.removesuffix("_attention"), layer) for kind in kinds(fields, 2)]


def falcon(fields):
    """Three layouts: grouped (new_decoder_architecture), one key head (multi_query), or one for each head, often with ALiBi."""
    size = sizes(fields, groups=None)
    if fields.flag("new_decoder_architecture"):
        G = fields.size("num_kv_heads", size["heads"])
        require(
            size["heads"] % G == 0,
            "num_kv_heads",
            G,
            f"does not divide num_attention_heads={size['heads']}",
        )
        size["kv_heads"] = G
    elif fields.flag("multi_query", True):
        size["kv_heads"] = 1
    options = (
        {"score": "alibi"} if fields.flag("alibi") else {"rotary": angles(fields, size["head_dim"])}
    )
    layer = Attention(**size, bias="qkvo" if fields.flag("bias") else "", **options)
    return [("self", layer) for _ in layers(fields)]


def deepseek(fields):
    """Latent attention with a turned part of its own. q_lora_rank null means that queries have no latent."""
    fields.refuse("attention_bias", "biases of latent attention are not described")
    base, scaling = rope(fields)
    rank = fields.get("q_lora_rank")
    layer = LatentAttention(
        fields.size("hidden_size"),
        fields.size("num_attention_heads"),
        fields.size("kv_lora_rank"),
        fields.size("qk_nope_head_dim"),
        fields.size("v_head_dim"),
        rotary=rotary_angles(fields, fields.size("qk_rope_head_dim"), base, scaling),
        query_rank=None if rank is None else fields.size("q_lora_rank"),
    )
    return [("self", layer) for _ in layers(fields)]


def whisper(fields):
    """An encoder, and a decoder whose layers attend twice: to themselves, and to what the encoder put out. No key bias.

    Where keys and values read other tokens than queries do, as many parameters are idle as in attention without a mask.
    """
    encoder = sizes(fields, hidden="d_model", heads="encoder_attention_heads", groups=None)
    decoder = sizes(fields, hidden="d_model", heads="decoder_attention_heads", groups=None)
    free = Attention(**encoder, bias="qvo", causal=False)
    pair = [
        ("decoder", Attention(**decoder, bias="qvo")),
        ("cross", Attention(**decoder, bias="qvo", causal=False)),
    ]
    return [("encoder", free) for _ in layers(fields, "encoder_layers")] + [
        each for _ in layers(fields, "decoder_layers") for each in pair
    ]


def vit(fields):
    layer = Attention(
        **sizes(fields, groups=None),
        bias="qkvo" if fields.flag("qkv_bias", True) else "o",
        causal=False,
    )
    return [("self", layer) for _ in layers(fields)]


# what transformers takes for fields that published files leave out
DEFAULTS = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "attn_logit_softcapping": 50.0},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rope_theta": 1e6,
    },
    "gpt_oss": {"head_dim": 64, "num_key_value_heads": 8, "rope_theta": 150000.0},
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8, "rope_theta": 1e6},
    "qwen3": {"head_dim": 128},
    "deepseek_v2": {"q_lora_rank": 1536},
    "deepseek_v3": {"q_lora_rank": 1536},
}

FAMILIES = {
    "bert": bert,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "llama": llama,
    "mistral": mistral,
    "mixtral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3_moe": qwen3,
    "gemma": llama,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "olmo2": olmo2,
    "phi": phi,
    "phi3": phi3,
    "falcon": falcon,
    "gpt_oss": gpt_oss,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "whisper": whisper,
    "vit": vit,
}
