// The options of a signature as labelled sliders and boxes.

// What the page knows of options beyond what the server says. `zero` is the word for the value 0.
const KNOWN = {
  target_prefix: { label: "Begin with" },
  contexts: { label: "Context" },
  num_beams: { label: "Beams", range: [1, 8, 1], zero: "the most" },
  length_penalty: { label: "Length penalty", range: [0, 2, 0.1] },
  min_length: { label: "Fewest tokens", least: 0, zero: "none" },
  max_length: { label: "Most tokens", least: 0, zero: "default" },
  no_repeat_ngram_size: { label: "Repeat no n-grams of", range: [0, 4, 1], zero: "off" },
  repetition_penalty: { label: "Repetition penalty", range: [1, 3, 0.05] },
  temperature: { label: "Temperature", range: [0, 2, 0.05] },
  top_k: { label: "Top k", least: 0, zero: "all tokens" },
  top_p: { label: "Top p", range: [0, 1, 0.01] },
  min_p: { label: "Min p", range: [0, 0.5, 0.01] },
  seed: { label: "Seed", zero: "0" },
};

export function labelOf(name) {
  const words = name.replaceAll("_", " ");
  return KNOWN[name]?.label ?? words.charAt(0).toUpperCase() + words.slice(1);
}

/** The names of a signature's options: one value a text, with a value that changes nothing. */
export function optionsOf(model, signatureName) {
  const { inputs } = model.signatures[signatureName];
  const names = Object.keys(inputs).filter((name) => ["string", "number"].includes(typeof model.neutral[name]));
  const order = Object.keys(KNOWN);
  const place = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
  return names.sort((one, other) => place(one) - place(other));
}

/** A value of an option from text, or undefined if it is the neutral one or none. */
export function parsedOption(model, name, text) {
  const neutral = model.neutral[name];
  const value = typeof neutral === "number" ? Number(text) : text;
  if (text === "" || value === neutral || (typeof value === "number" && !Number.isFinite(value))) return undefined;
  return value;
}

/** Fills `box` with the options of a signature; calls `changed(name, value or undefined)`. */
export function showOptions(box, model, signatureName, values, changed) {
  const { outputs } = model.signatures[signatureName];
  box.replaceChildren(...optionsOf(model, signatureName).map((name) => {
    const known = { ...KNOWN[name] };
    const most = outputs.outputs?.shape?.[1];
    if (name === "num_beams" && most > 0) Object.assign(known, { range: [1, most, 1], zero: String(most) });
    if (known.range && known.range[0] === known.range[1]) delete known.range;
    return control(name, model, known, values[name], (value) => changed(name, value));
  }));
}

function control(name, model, known, value, changed) {
  const neutral = model.neutral[name];
  const isNumber = typeof neutral === "number";
  const row = element("div", { className: "option" });
  const input = element("input", { id: `option-${name}`, name, dir: isNumber ? "" : "auto", autocomplete: "off" });
  const label = element("label", { htmlFor: input.id, textContent: labelOf(name), title: name });
  const shown = element("output", { htmlFor: input.id });
  const hint = element("p", { className: "hint", id: `${input.id}-meaning`, textContent: model.meanings[name] ?? "" });
  input.setAttribute("aria-describedby", hint.id);
  const word = (number) => (number === 0 && known.zero ? known.zero : String(number));

  if (known.range) {
    [input.min, input.max, input.step] = known.range;
    input.type = "range";
    // The neutral 0 of a slider that begins at 1 stands for the most there can be.
    input.value = value ?? (neutral < known.range[0] ? known.range[1] : neutral);
    const show = (number) => {
      shown.value = word(number);
      input.setAttribute("aria-valuetext", shown.value);
    };
    show(value ?? neutral);
    input.addEventListener("input", () => {
      show(Number(input.value));
      changed(parsedOption(model, name, input.value));
    });
  } else {
    input.type = isNumber ? "number" : "text";
    input.step = isInteger(model, name) ? "1" : "any";
    if (known.least !== undefined) input.min = known.least;
    input.placeholder = isNumber ? word(neutral) : "";
    input.value = value ?? "";
    input.addEventListener("input", () => changed(parsedOption(model, name, input.value)));
  }
  row.classList.toggle("boxed", !known.range);
  row.append(label, shown, input, hint);
  return row;
}

function isInteger(model, name) {
  return Object.values(model.signatures).some((signature) => /int/i.test(signature.inputs[name]?.dtype ?? ""));
}

export function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
