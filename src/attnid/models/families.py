"""What each family's attention is, from the fields of its configuration: model_type -> the layers
of the model.

A reader takes the Fields of a configuration and returns a Stack of pairs (kind, description). It
says what the family's module in transformers computes, which is not always what the fields suggest:
Qwen2's biases have no field, Falcon's multi-query layers have one key head whatever num_kv_heads
says.
"""

from ..checks import require
from ..layer.description import Attention
from ..layer.latents import LatentAttention
from .configurations import rope, rotary_angles
from .stacks import Stack

FULL, SLIDING = "full_attention", "sliding_attention"
KINDS = (FULL, SLIDING)


def sizes(
    fields, *, hidden="hidden_size", heads="num_attention_heads", groups="num_key_value_heads"
):
    """The sizes that `Attention` takes, by its names. A head's width is hidden / heads where
    head_dim is absent or null.

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


def alike(fields, layer, number="num_hidden_layers"):
    """As many layers of one description as the field `number` says."""
    return Stack(((("self", layer), fields.size(number)),))


def windowed(fields, full, sliding, period):
    """Layers that see everything or through a window: as layer_types lists them, or full at every
    `period`-th and sliding elsewhere.
    """
    number, listed = fields.size("num_hidden_layers"), fields.get("layer_types")
    if fields.get("sliding_window") is not None:
        fields.size(
            "sliding_window", least=2
        )  # a window of one token would leave the scores without effect
    described = {FULL: ("full", full), SLIDING: ("sliding", sliding)}
    if listed is None:
        turn = Stack(((described[SLIDING], period - 1), (described[FULL], 1)))
        return Stack(((turn, number // period), (described[SLIDING], number % period)))
    good = isinstance(listed, list) and len(listed) == number and all(k in KINDS for k in listed)
    require(good, "layer_types", listed, f"must list one of {KINDS} for each of {number} layers")
    return Stack.of(described[kind] for kind in listed)


def angles(fields, head_dim, kind=None, part=1.0):
    """The angles of the first `part` of a head's coordinates, by the configuration's base and
    scaling.
    """
    base, scaling = rope(fields, kind)
    return rotary_angles(fields, int(head_dim * part), base, scaling)


def partial(fields, name, default):
    """The share of a head's coordinates that turns: a field of its own in old files, one of
    rope_parameters in new ones.
    """
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
    causal = fields.flag("is_decoder")
    return alike(fields, Attention(**sizes(fields, groups=None), bias="qkvo", causal=causal))


def gpt2(fields):
    fields.refuse("add_cross_attention", "attention to another model is not described")
    size = sizes(fields, hidden="n_embd", heads="n_head", groups=None)
    return alike(fields, Attention(**size, bias="qkvo"), "n_layer")


def gpt_neox(fields):
    """Pythia's: a quarter of each head turns. The base is rotary_emb_base in old files."""
    size = sizes(fields, groups=None)
    base, scaling = rope(fields, name="rotary_emb_base")
    width = int(size["head_dim"] * partial(fields, "rotary_pct", 0.25))
    turned = rotary_angles(fields, width, base, scaling)
    bias = "qkvo" if fields.flag("attention_bias", True) else ""
    return alike(fields, Attention(**size, bias=bias, rotary=turned))


def rotary_layer(fields, *, bias=None, part=1.0, **options):
    """All heads turn. `bias` says which maps have one; by default attention_bias decides for all
    four.
    """
    size = sizes(fields)
    if bias is None:
        bias = "qkvo" if fields.flag("attention_bias") else ""
    turned = angles(fields, size["head_dim"], part=part)
    return Attention(**size, bias=bias, rotary=turned, **options)


def llama(fields):
    return alike(fields, rotary_layer(fields))


def mistral(fields):
    if fields.get("sliding_window") is not None:
        fields.size("sliding_window", least=2)
    return alike(fields, rotary_layer(fields, bias=""))


def qwen2(fields):
    return alike(fields, rotary_layer(fields, bias="qkv"))


def qwen3(fields):
    return alike(fields, rotary_layer(fields, qk_norm="head_gain"))


def olmo2(fields):
    return alike(fields, rotary_layer(fields, qk_norm="layer_gain"))


def phi(fields):
    fields.refuse(
        "qk_layernorm", "a LayerNorm of queries and keys, which also centres them, is not described"
    )
    part = partial(fields, "partial_rotary_factor", 0.5)
    return alike(fields, rotary_layer(fields, bias="qkvo", part=part))


def phi3(fields):
    part = partial(fields, "partial_rotary_factor", 1.0)
    return alike(fields, rotary_layer(fields, bias="", part=part))


def gemma2(fields):
    """Soft-capped scores; every other layer sees a window only."""
    score = "softmax" if fields.get("attn_logit_softcapping") is None else "softcap"
    layer = rotary_layer(fields, score=score)
    return windowed(fields, layer, layer, 2)


def gemma3(fields):
    """Queries and keys normalised; layers with a window turn by another base, and unscaled."""
    size = sizes(fields)
    capped = fields.get("attn_logit_softcapping") is not None
    options = {
        "bias": "qkvo" if fields.flag("attention_bias") else "",
        "qk_norm": "head_gain",
        "score": "softcap" if capped else "softmax",
        "causal": not fields.flag("use_bidirectional_attention"),
    }
    if fields.get("rope_parameters") is not None:
        near = angles(fields, size["head_dim"], SLIDING)
    else:
        base = fields.number("rope_local_base_freq", 10000.0)
        near = rotary_angles(fields, size["head_dim"], base)
    full = Attention(**size, rotary=angles(fields, size["head_dim"], FULL), **options)
    sliding = Attention(**size, rotary=near, **options)
    return windowed(fields, full, sliding, fields.size("sliding_window_pattern", 6))


def gpt_oss(fields):
    """Each head has a learned sink, and every map a bias unless attention_bias is false."""
    bias = "qkvo" if fields.flag("attention_bias", True) else ""
    layer = rotary_layer(fields, bias=bias, score="sink")
    return windowed(fields, layer, layer, 2)


def falcon(fields):
    """Three layouts: grouped (new_decoder_architecture), one key head (multi_query), or one for
    each head, often with ALiBi.
    """
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
    return alike(fields, Attention(**size, bias="qkvo" if fields.flag("bias") else "", **options))


def deepseek(fields):
    """Latent attention with a turned part of its own. q_lora_rank null means that queries have no
    latent.
    """
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
    return alike(fields, layer)


def whisper(fields):
    """An encoder, and a decoder whose layers attend twice: to themselves, and to what the encoder
    put out. No key bias.

    Where keys and values read other tokens than queries do, as many parameters are idle as in
    attention without a mask.
    """
    encoder = sizes(fields, hidden="d_model", heads="encoder_attention_heads", groups=None)
    decoder = sizes(fields, hidden="d_model", heads="decoder_attention_heads", groups=None)
    free = Attention(**encoder, bias="qvo", causal=False)
    itself = Attention(**decoder, bias="qvo")
    across = Attention(**decoder, bias="qvo", causal=False)
    pair = Stack(((("decoder", itself), 1), (("cross", across), 1)))
    depths = fields.size("encoder_layers"), fields.size("decoder_layers")
    return Stack(((("encoder", free), depths[0]), (pair, depths[1])))


def vit(fields):
    bias = "qkvo" if fields.flag("qkv_bias", True) else "o"
    return alike(fields, Attention(**sizes(fields, groups=None), bias=bias, causal=False))


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
