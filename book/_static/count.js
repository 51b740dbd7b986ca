// The count of an attention layer's unidentified parameters: src/attnid/counting.py, with what it uses, in plain JavaScript.
// attnid.count takes the fields of attnid.Attention and throws an Error "field=value: why" where the package does.
"use strict";

const attnid = (() => {
  const MOST = 100000;       // sizes up to here keep every count an exact integer
  const ROUNDING = 16 * Number.EPSILON;   // relative; frequencies that differ by less are equal
  const BIASES = "qkvo";
  const WORDS = {
    qk_norm: [null, "head", "head_gain", "layer_gain"],
    score: ["softmax", "softcap", "alibi", "sink"],
    gate: [null, "head", "channel"],
    relative: [null, "bias", "content"],
    inputs: ["free", "centred"],
    causal: [true, false],
  };
  const CIRCUIT = {"value-output maps": "value-output", "value bias": "value-output", "channel scales": "value-output", "centred inputs": "both"};

  const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

  // a value as Python would print it
  function written(value) {
    if (value === null || value === undefined) return "None";
    if (Array.isArray(value)) return `(${value.map(written).join(", ")}${value.length === 1 ? "," : ""})`;
    if (typeof value === "boolean") return value ? "True" : "False";
    return typeof value === "string" ? `'${value}'` : String(value);
  }

  function require(condition, field, value, why) {
    if (!condition) throw new Error(`${field}=${written(value)}: ${why}`);
  }

  function requireSize(field, value) {
    require(Number.isInteger(value) && value >= 1, field, value, "must be an integer of at least 1");
    require(value <= MOST, field, value, `is more than this page counts with (${MOST})`);
  }

  // the settled description: sizes by the paper's letters, defaults filled in, checked in the package's order
  function describe(fields) {
    const {embed_dim: E, heads: H, bias = "", rotary = [], qk_norm = null, score = "softmax", gate = null, relative = null, inputs = "free", causal = true} = fields;
    requireSize("embed_dim", E);
    requireSize("heads", H);
    const G = fields.kv_heads ?? H;
    requireSize("kv_heads", G);
    require(H % G === 0, "kv_heads", G, `must divide heads=${H}`);
    const given = fields.head_dim ?? null;
    require(given !== null || E % H === 0, "embed_dim", E, `is not divisible by heads=${H}; give head_dim`);
    const D = given ?? E / H;
    requireSize("head_dim", D);
    const C = fields.value_dim ?? D;
    requireSize("value_dim", C);
    for (const [field, value] of Object.entries({qk_norm, score, gate, relative, inputs, causal})) {
      require(WORDS[field].includes(value), field, value, `must be one of ${written(WORDS[field])}`);
    }
    const letters = typeof bias === "string" && [...bias].every((b) => BIASES.includes(b)) && new Set(bias).size === bias.length;
    require(letters, "bias", bias, `must be letters of '${BIASES}', each at most once`);
    require(Array.isArray(rotary) && rotary.every(Number.isFinite), "rotary", rotary, "must list finite angles, in radians per position");
    require(2 * rotary.length <= D, "rotary", rotary, `is more planes than head_dim=${D} holds`);
    const span = fields.span ?? null;
    if (relative === null) {
      require(span === null, "span", span, "goes with relative, which is None");
    } else {
      requireSize("span", span);
      require(relative === "bias" || !(rotary.length || qk_norm), "relative", relative, "goes neither with rotary positions nor with qk_norm");
    }
    require(inputs === "free" || E >= 2, "embed_dim", E, "must be at least 2 with inputs='centred': a single number, centred, is always zero");
    const has = (letter) => Number(bias.includes(letter));
    return {E, H, G, D, C, has, rotary, qk_norm, score, gate, relative, span: span ?? 0, causal, inputs, inputRank: E - Number(inputs === "centred")};
  }

  // how many gates a layer has: rows of W_G
  function gatesOf(a) {
    return {head: a.H, channel: a.H * a.C}[a.gate] ?? 0;
  }

  // how many numbers each circuit has: weights, biases, gains, sinks, gates, learned offsets
  function parametersOf(a) {
    const gains = {head_gain: 2 * a.D, layer_gain: (a.H + a.G) * a.D}[a.qk_norm] ?? 0;
    const sinks = a.score === "sink" ? a.H : 0;
    const offsets = {bias: a.H * a.span, content: (a.H + a.G) * a.span * a.D}[a.relative] ?? 0;
    return {
      "query-key": offsets + (a.H + a.G) * a.D * a.E + a.has("q") * a.H * a.D + a.has("k") * a.G * a.D + gains + sinks,
      "value-output": (a.H + a.G) * a.C * a.E + a.has("v") * a.G * a.C + a.has("o") * a.E + gatesOf(a) * a.E,
    };
  }

  // a frequency modulo 2 pi, in [-pi, pi], and without its direction of turning
  function angleOf(frequency) {
    const turn = Math.abs(frequency % (2 * Math.PI));
    return turn > Math.PI ? 2 * Math.PI - turn : turn;
  }

  // a head's coordinates by how they turn: those that keep still, half turns, then each angle; turning planes are complex numbers
  function isotypes(a) {
    const planes = a.rotary.map((frequency) => ({angle: angleOf(frequency), error: ROUNDING * Math.abs(frequency)}));
    const isStill = (plane) => plane.angle <= (plane.error > ROUNDING ? plane.error : 0);
    const isHalf = (plane) => Math.PI - plane.angle <= Math.max(plane.error, ROUNDING);
    const still = planes.filter(isStill).length;
    const half = planes.filter(isHalf).length;
    const found = [{still: true, size: a.D - 2 * (planes.length - still)}, {size: 2 * half}].filter((isotype) => isotype.size);
    let first = null;
    for (const plane of planes.filter((plane) => !isStill(plane) && !isHalf(plane)).sort((x, y) => x.angle - y.angle)) {
      if (first !== null && plane.angle - first.angle <= Math.max(plane.error, first.error)) {
        found.at(-1).size += 1;
      } else {
        found.push({complex: true, size: 1});
        first = plane;
      }
    }
    return found;
  }

  // what the product of an (a x d) and a (d x b) matrix loses, and how that is worked out
  function pairRankLoss(d, a, b) {
    const p = Math.min(d, a, b);
    return {loss: d * (a + b) - p * (a + b - p), working: p === d ? `${d}²` : `(${d} × ${a + b} − ${p} × ${a + b - p})`};
  }

  // "2 × 1²" three times over is "3 × 2 × 1²"
  function addedUp(workings) {
    const times = new Map();
    workings.forEach((working) => times.set(working, (times.get(working) ?? 0) + 1));
    const parts = [...times].map(([working, n]) => (n === 1 ? working : `${n} × ${working}`));
    return parts.length === 1 ? parts[0] : `(${parts.join(" + ")})`;
  }

  function refuseWhatIsNotGeneric(a) {
    const queryKeyBias = a.has("q") || a.has("k");
    const twoPoints = a.inputs === "centred" && a.E === 2;
    require(!(twoPoints && ((a.qk_norm && queryKeyBias) || (a.score === "softcap" && a.has("k")))), "embed_dim", 2,
      "centred pairs take two values only, and with these biases the count depends on that");
    require(!(twoPoints && a.gate), "embed_dim", 2, "centred pairs take two values only, too few to tell a gate from what it multiplies");
    const lone = a.D === 1 && (["head", "head_gain"].includes(a.qk_norm) || (a.qk_norm === "layer_gain" && a.G === 1));
    require(!(lone && ((a.inputRank === 1 && a.H > 1) || (a.inputs === "centred" && queryKeyBias))), "head_dim", 1,
      "a normalised number is only a sign, and whether two signs ever differ depends on the weights");
  }

  // each of these gives [name, dimension, working] of its terms

  function valueOutput(a) {
    if (a.gate === "channel") return [["channel scales", a.G * a.C, `${a.G} × ${a.C}`]];
    const biasInProduct = a.has("v") && (a.score === "sink" || a.gate) ? 1 : 0;   // told apart by gates, or where rows of attention do not sum to one
    const {loss, working} = pairRankLoss(a.C, a.inputRank + biasInProduct, (a.H / a.G) * a.E);
    const terms = [["value-output maps", a.G * loss, `${a.G} × ${working}`]];
    if (a.has("v") && !biasInProduct) {
      const seen = a.has("o") ? 0 : Math.min(a.E, a.G * a.C);
      terms.push(["value bias", a.G * a.C - seen, `${a.G} × ${a.C}${seen ? ` − ${seen}` : ""}`]);
    }
    return terms;
  }

  // whether one of the learned offsets is that of a token to itself alone
  function ownOffset(a) {
    const own = a.causal ? 0 : Math.floor(a.span / 2);
    return Number(own < a.span - 1 && (a.causal || own > 0));
  }

  // scores with a learned key and a learned query for each offset: see attnid.layer.counting
  function queryKeyAtOffsets(a) {
    const n = a.inputRank, sharing = a.H / a.G, own = ownOffset(a), q = a.has("q"), k = a.has("k");
    require(a.D <= n || !(q || k), "head_dim", a.D, `with learned offsets and biases no head wider than its inputs (${n}) is counted`);
    const unseen = ["softcap", "sink"].includes(a.score) ? 0 : 1, seen = a.span - own - unseen;
    const {loss, working} = pairRankLoss(a.D, n + seen, sharing * n), wide = Math.max(0, a.D - n);
    const alone = own ? a.D - Math.min(a.D, sharing * Math.max(0, n - a.D)) + sharing * wide : 0;
    const constants = q * a.D + (a.score === "sink" ? 1 : 0), ofHead = Math.min(constants, seen + own);
    const ofGroup = Math.min(k * a.D + (q || k) * Math.min(alone, sharing), sharing * (seen + own - ofHead));
    const free = sharing * (constants - ofHead) + k * a.D + alone - ofGroup;
    const more = wide ? ` + ${a.H} × ${a.span - own} × ${wide}` : "";
    return [["query-key maps", a.G * loss + a.H * (a.span - own) * wide, `${a.G} × ${working}${more}`],
      ["offset key shift", unseen * a.G * a.D, `${a.G} × ${a.D}`], ["offset exchange", a.G * free, `${a.G} × ${free}`]];
  }

  function queryKey(a) {
    if (a.relative === "content") return queryKeyAtOffsets(a);
    const shift = a.relative === "bias" ? [["offset bias shift", a.H, `${a.H}`]] : [];
    return [...shift, ...(a.qk_norm ? normalisedQueryKey(a) : plainQueryKey(a))];
  }

  function plainQueryKey(a) {
    const keys = a.inputRank + a.has("k"), queries = a.inputRank + a.has("q");
    const shiftIsSeen = ["softcap", "sink"].includes(a.score);
    const terms = [], workings = [];
    let maps = 0;
    for (const isotype of isotypes(a)) {
      const idle = a.has("k") && isotype.still && !shiftIsSeen ? 1 : 0;
      if (idle) terms.push(["key bias", a.G * isotype.size, `${a.G} × ${isotype.size}`]);
      const {loss, working} = pairRankLoss(isotype.size, keys - idle, (a.H / a.G) * queries);
      maps += a.G * loss * (isotype.complex ? 2 : 1);
      workings.push(isotype.complex ? `2 × ${working}` : working);
      if (a.score === "sink" && a.has("q") && a.has("k") && isotype.still && isotype.size > a.inputRank) {
        terms.push(["sink against constant scores", a.H, `${a.H}`]);
      }
    }
    return [["query-key maps", maps, `${a.G} × ${addedUp(workings)}`], ...terms];
  }

  function normalisedQueryKey(a) {
    const whole = a.qk_norm === "layer_gain";
    const parts = isotypes(a);
    const times = {head: 0, head_gain: 1, layer_gain: a.G}[a.qk_norm], factors = sum(parts.map((part) => part.size));
    const exchange = ["gain exchange", factors * times, `${times} × ${factors}`];
    if ((whole ? a.G * a.D : a.D) === 1) return signsOnly(a, exchange, !whole || a.H * a.D === 1);
    require((whole ? a.H : 1) * a.D <= a.inputRank, "qk_norm", a.qk_norm, "heads wider than their inputs have no closed form with this norm; "
      + "this page does not count them, attnid.count does, from the rank of a derivative, up to 2,000 query-key parameters");
    const scales = [["query scales", whole ? 1 : a.H], ["key scales", whole ? 1 : a.G]].map(([name, n]) => [name, n, `${n}`]);
    if (a.qk_norm !== "head") return [...scales, exchange];
    const rotations = sum(parts.map((part) => (part.complex ? part.size ** 2 : (part.size * (part.size - 1)) / 2)));
    const workings = parts.map((part) => (part.complex ? `${part.size}²` : `${part.size} × ${part.size - 1} / 2`));
    return [...scales, ["rotations", a.G * rotations, `${a.G} × ${addedUp(workings)}`]];
  }

  // a single number, normalised, is a sign: the maps that make it have derivative zero almost everywhere
  function signsOnly(a, exchange, loneQueries) {
    const keys = a.G * a.D * (a.inputRank + a.has("k"));
    const queries = loneQueries ? a.H * a.D * (a.inputRank + a.has("q")) : 0;
    const terms = [["signs only", keys + queries, loneQueries ? `${keys} + ${queries}` : `${keys}`], exchange];
    if (loneQueries) return terms;
    const columns = a.inputRank + a.has("q");   // one key of width one for several query heads, whose lengths then make one form
    const forms = (columns * (columns + 1)) / 2 - (a.inputs === "centred" ? a.has("q") : 0);
    return [...terms, ["query scales", 1, "1"], ["wide heads", Math.max(0, a.H - forms), `${a.H} − ${forms}`]];
  }

  function centred(a) {
    if (a.inputs === "free") return [];
    const gates = gatesOf(a), working = `${a.H} × ${a.D} + ${a.G} × ${a.D} + ${a.G} × ${a.C}${gates ? ` + ${gates}` : ""}`;
    return [["centred inputs", (a.H + a.G) * a.D + a.G * a.C + gates, working]];
  }

  // unidentified directions of each circuit; of what centred inputs never meet, the value maps have G C and the gates one each
  function circuits(a, terms) {
    const within = (circuit) => sum(terms.filter((term) => term.circuit === circuit).map((term) => term.dimension));
    const idleValues = a.inputs === "centred" ? a.G * a.C + gatesOf(a) : 0;
    const unidentified = {"query-key": within("query-key") + within("both") - idleValues, "value-output": within("value-output") + idleValues};
    return Object.entries(parametersOf(a)).map(([name, parameters]) => ({name, parameters, unidentified: unidentified[name]}));
  }

  // {parameters, unidentified, identified, share, terms: [{name, circuit, dimension, working}], circuits: [{name, parameters, unidentified}]}
  function count(fields) {
    const a = describe(fields);
    refuseWhatIsNotGeneric(a);
    const found = [...valueOutput(a), ...queryKey(a), ...centred(a)];
    const terms = found.filter(([, dimension]) => dimension)
      .map(([name, dimension, working]) => ({name, circuit: CIRCUIT[name] ?? "query-key", dimension, working}));
    const parameters = sum(Object.values(parametersOf(a))), unidentified = sum(terms.map((term) => term.dimension));
    const identified = parameters - unidentified;
    return {parameters, unidentified, identified, share: identified / parameters, terms, circuits: circuits(a, terms)};
  }

  return {count};
})();
