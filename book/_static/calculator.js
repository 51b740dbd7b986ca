// The form of the calculator: reads a description, shows what attnid.count (count.js) finds, names what is impossible.
"use strict";

(() => {
  const at = (id) => document.getElementById(id);
  const form = at("calculator-form");
  if (!form) return;

  const SIZES = ["embed_dim", "heads", "kv_heads", "head_dim", "value_dim"];
  const CHOICES = ["qk_norm", "score", "gate", "relative", "inputs"];

  // one attention layer of each; fields that are left out have the form's default
  const KNOWN = {
    "Transformer, base (2017)": {embed_dim: 512, heads: 8},
    "BERT, base": {embed_dim: 768, heads: 12, bias: "qkvo"},
    "GPT-2, small": {embed_dim: 768, heads: 12, bias: "qkvo"},
    "nanoGPT, characters (the paper's runs)": {embed_dim: 384, heads: 6, bias: "qkvo"},
    "BLOOM 7B1 (ALiBi)": {embed_dim: 4096, heads: 32, bias: "qkvo", score: "alibi"},
    "Pythia 1.4B (a quarter of each head turns)": {embed_dim: 2048, heads: 16, bias: "qkvo", turning: "part", planes: 16},
    "Llama 2 7B": {embed_dim: 4096, heads: 32, turning: "all"},
    "Llama 2 70B": {embed_dim: 8192, heads: 64, kv_heads: 8, turning: "all"},
    "Llama 3 8B": {embed_dim: 4096, heads: 32, kv_heads: 8, turning: "all"},
    "Qwen2 7B": {embed_dim: 3584, heads: 28, kv_heads: 4, bias: "qkv", turning: "all"},
    "Qwen3 8B (normalised heads)": {embed_dim: 4096, heads: 32, kv_heads: 8, turning: "all", qk_norm: "head_gain"},
    "OLMo 2 7B (normalised layer)": {embed_dim: 4096, heads: 32, turning: "all", qk_norm: "layer_gain"},
    "Gemma 2 9B (soft-capped)": {embed_dim: 3584, heads: 16, kv_heads: 8, head_dim: 256, turning: "all", score: "softcap"},
    "gpt-oss 20B (sinks)": {embed_dim: 2880, heads: 64, kv_heads: 8, head_dim: 64, bias: "qkvo", turning: "all", score: "sink"},
  };

  // why the directions of a term change nothing, and the chapter that shows it, where one does
  const REASONS = {
    "query-key maps": ["scores see W_K only multiplied by the W_Q of its own queries, plane by plane where planes turn", "02_query_key_invariance"],
    "key bias": ["it shifts the scores of a query by one constant, which the softmax takes out", "06_biases"],
    "value-output maps": ["outputs see W_V only multiplied by the W_O that read it", "05_many_heads"],
    "channel scales": ["a gate of its own tells each channel apart: its values can go up as the outputs that read it go down", "19_gates_and_relative_biases"],
    "offset bias shift": ["all of a head's offset biases moved alike shift the scores of a query by one constant", "19_gates_and_relative_biases"],
    "offset key shift": ["all learned keys of offsets moved alike shift the scores of a query by one constant", "19_gates_and_relative_biases"],
    "offset exchange": ["biases can move as learned keys and queries of offsets move back, and these against each other where a token meets itself", "19_gates_and_relative_biases"],
    "value bias": ["attention weights sum to one, so it only adds a constant to the output, like an output bias", "06_biases"],
    "centred inputs": ["the entries of an input sum to zero, so each row of W_Q, W_K, W_V and of a gate's W_G has a direction that is never met", "06_biases"],
    "sink against constant scores": ["a head wider than its inputs can move all scores at once, and its sink can follow"],
    "query scales": ["a normalised query does not feel its own scale", "15_an_atlas"],
    "key scales": ["a normalised key does not feel its own scale", "15_an_atlas"],
    "gain exchange": ["a gain of the queries can go up as that of the keys goes down", "15_an_atlas"],
    "rotations": ["a rotation of queries and keys alike that commutes with their turning keeps products and lengths"],
    "signs only": ["a single number, normalised, is only a sign, and small changes keep signs"],
    "wide heads": ["there are more query heads than squared lengths to tell apart"],
  };

  const number = (value) => value.toLocaleString("en-US");

  // to four digits, or to as many as it takes to tell a share from all
  function percent(part, whole) {
    let digits = 4;
    while (part < whole && Number(((100 * part) / whole).toPrecision(digits)) === 100) digits += 1;
    return `${((100 * part) / whole).toPrecision(digits)}%`;
  }

  // what was typed: nothing, a number where it reads as one, or the text as it stands
  function typed(id) {
    const text = at(id).value.trim();
    if (text === "") return null;
    return Number.isNaN(Number(text)) ? text : Number(text);
  }

  // n different angles between 0 and pi
  function distinctAngles(n) {
    return Array.from({length: n}, (_, i) => (Math.PI * (i + 1)) / (n + 1));
  }

  function rotary(headDim) {
    const turning = at("turning").value;
    if (turning === "all") return distinctAngles(Math.floor(headDim / 2));
    if (turning === "list") return at("rotary").value.split(",").map((part) => (part.trim() === "" ? NaN : Number(part)));
    if (turning === "none") return [];
    const planes = typed("planes");
    if (!Number.isInteger(planes) || planes < 0) throw new Error(`planes=${planes ?? "None"}: must be an integer of at least 0`);
    if (2 * planes > headDim) throw new Error(`planes=${planes}: is more planes than head_dim=${headDim} holds`);
    return distinctAngles(planes);
  }

  function description() {
    const fields = Object.fromEntries(SIZES.map((id) => [id, typed(id)]));
    CHOICES.forEach((id) => { fields[id] = at(id).value || null; });
    fields.bias = [...form.elements.bias].filter((box) => box.checked).map((box) => box.value).join("");
    if (fields.relative) fields.span = typed("span");
    attnid.count({...fields, qk_norm: null});   // sizes are sound before planes are drawn from them
    return {...fields, rotary: rotary(fields.head_dim ?? fields.embed_dim / fields.heads)};
  }

  function element(name, content, attributes = {}) {
    const made = Object.assign(document.createElement(name), attributes);
    made.append(...[content].flat());
    return made;
  }

  // "W_K" with its index set low
  function withIndices(text) {
    return text.split(/(W_[A-Z])/).map((part) => (part.startsWith("W_") ? element("var", ["W", element("sub", part[2])]) : part));
  }

  function table(caption, heads, rows) {
    const cell = (content, column) => element(column ? "td" : "th", content, column ? {} : {scope: "row"});
    const head = element("tr", heads.map((text) => element("th", text, {scope: "col"})));
    const body = rows.map((row) => element("tr", row.map(cell)));
    const made = element("table", [element("caption", caption), element("thead", head), element("tbody", body)], {className: "table"});
    const frame = element("div", made, {className: "calculator-table", tabIndex: 0});
    frame.setAttribute("role", "region");
    frame.setAttribute("aria-label", caption);
    return frame;
  }

  function termRow({name, circuit, dimension, working}) {
    const [why, chapter] = REASONS[name];
    const link = chapter ? [" (", element("a", `chapter ${Number(chapter.slice(0, 2))}`, {href: `../notebooks/${chapter}.html`}), ")"] : [];
    return [name, circuit, number(dimension), working, [...withIndices(why), ...link]];
  }

  function circuitRow({name, parameters, unidentified}) {
    return [name, number(parameters), number(unidentified), number(parameters - unidentified), percent(parameters - unidentified, parameters)];
  }

  // the description as a call in Python; angles of whole sets of planes are written as the rule that makes them
  function inPython(fields) {
    const sizes = SIZES.filter((id) => fields[id] !== null).map((id) => `${id}=${fields[id]}`);
    const quoted = Object.entries({bias: "", qk_norm: null, score: "softmax", gate: null, relative: null, inputs: "free"})
      .filter(([id, usual]) => fields[id] !== usual).map(([id]) => `${id}="${fields[id]}"`);
    if (fields.relative) quoted.push(`span=${fields.span}`);
    const n = fields.rotary.length;
    const angles = at("turning").value === "list" ? `(${fields.rotary.map((angle) => `${angle}, `).join("").trim()})`
      : `[math.pi * i / ${n + 1} for i in range(1, ${n + 1})]`;
    return `count(Attention(${[...sizes, ...quoted, ...(n ? [`rotary=${angles}`] : [])].join(", ")}))`;
  }

  function show(fields, found) {
    const {parameters, identified, unidentified} = found;
    at("calculator-answer").textContent = `Of ${number(parameters)} parameters ${number(unidentified)} are unidentified and `
      + `${number(identified)} identified: a share of ${percent(identified, parameters)}.`;
    at("calculator-tables").replaceChildren(
      table("By circuit", ["Circuit", "Parameters", "Unidentified", "Identified", "Share"], found.circuits.map(circuitRow)),
      table("By reason", ["Term", "Circuit", "Unidentified", "Working", "Why"], found.terms.map(termRow)));
    at("calculator-python").textContent = inPython(fields);
  }

  // "heads=0: why" stands below the form, and marks the field that it names
  function refuse(message) {
    const field = message.split("=")[0];
    at("calculator-error").textContent = message;
    at("calculator-answer").textContent = "";
    at("calculator-tables").replaceChildren();
    if (at(field)) at(field).setAttribute("aria-invalid", "true");
  }

  function update() {
    for (const part of form.querySelectorAll("[data-for]")) part.hidden = part.dataset.for !== at("turning").value;
    at("span").parentElement.hidden = !at("relative").value;
    form.querySelectorAll("[aria-invalid]").forEach((input) => input.removeAttribute("aria-invalid"));
    let refused = true;
    try {
      const fields = description();
      show(fields, attnid.count(fields));
      at("calculator-error").textContent = "";
      refused = false;
    } catch (error) {
      refuse(error.message);
    }
    at("calculator-python-text").hidden = refused;
  }

  function fill(fields) {
    for (const id of [...SIZES, ...CHOICES, "planes"]) at(id).value = fields[id] ?? at(id).defaultValue ?? "";
    at("score").value = fields.score ?? "softmax";
    at("inputs").value = "free";
    at("span").value = fields.span ?? at("span").defaultValue;
    at("turning").value = fields.turning ?? "none";
    for (const box of form.elements.bias) box.checked = (fields.bias ?? "").includes(box.value);
  }

  at("known").append(...Object.keys(KNOWN).map((name) => new Option(name)));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    if (event.target !== at("known")) at("known").value = "";
    else if (KNOWN[at("known").value]) fill(KNOWN[at("known").value]);
    update();
  });
  update();
})();
