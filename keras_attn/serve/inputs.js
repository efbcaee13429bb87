// What a person gives to a model: options as sliders and boxes, an image, or a request in JSON.

import { element } from "./dom.js";

const OPTIONS = new Set(["second_text", "box", "number", "slider", "seed"]); // kinds of widgets
const IMAGE_TYPES = ["image/png", "image/jpeg"];

/** The inputs of a signature that the page shows as options: [name, input] each. */
export function optionsOf(model, signatureName) {
  const { inputs } = model.task.signatures[signatureName];
  return Object.entries(inputs).filter(([, input]) => OPTIONS.has(input.widget?.kind));
}

/** The name of the first input of a signature with a widget of a kind, or undefined. */
export function inputOfKind(model, signatureName, kind) {
  const inputs = Object.entries(model.task.signatures[signatureName].inputs);
  return inputs.find(([, input]) => input.widget?.kind === kind)?.[0];
}

/** A value of an option from text, or undefined if it is the neutral one or none. */
export function parsedOption(input, text) {
  const isNumber = typeof input.neutral === "number";
  const value = isNumber ? Number(text) : text;
  if (text === "" || value === input.neutral || (isNumber && !Number.isFinite(value))) return undefined;
  return value;
}

/** Fills `box` with the options of a signature; calls `changed(name, value or undefined)`. */
export function showOptions(box, model, signatureName, values, changed) {
  const { inputs } = model.signatures[signatureName];
  box.replaceChildren(...optionsOf(model, signatureName).map(([name, input]) => {
    const isInteger = inputs[name].dtype.startsWith("int");
    return control(name, input, isInteger, values[name], (text) => changed(name, parsedOption(input, text)));
  }));
}

function control(name, { widget, neutral, meaning }, isInteger, value, changed) {
  const isNumber = typeof neutral === "number";
  const isSlider = widget.kind === "slider";
  const box = element("input", { id: `option-${name}`, name, dir: isNumber ? "" : "auto", autocomplete: "off" });
  const label = element("label", { htmlFor: box.id, title: name }, widget.label);
  const shown = element("output", { htmlFor: box.id });
  const hint = element("p", { className: "hint", id: `${box.id}-meaning` }, widget.hint ?? meaning);
  box.setAttribute("aria-describedby", hint.id);
  const wordFor = (number) => (number === 0 && widget.zero ? widget.zero : String(number));

  if (isSlider) {
    const [least, most, step] = widget.range;
    Object.assign(box, { type: "range", min: least, max: most, step });
    // The neutral 0 of a slider that begins at 1 stands for the most there can be.
    box.value = value ?? (neutral < least ? most : neutral);
    const show = (number) => {
      shown.value = wordFor(number);
      box.setAttribute("aria-valuetext", shown.value);
    };
    show(value ?? neutral);
    box.addEventListener("input", () => show(Number(box.value)));
  } else {
    box.type = isNumber ? "number" : "text";
    box.step = isInteger ? "1" : "any";
    if (widget.least !== undefined) box.min = widget.least;
    if (isNumber) box.placeholder = wordFor(neutral);
    box.value = value ?? "";
  }
  box.addEventListener("input", () => changed(box.value));
  return element("div", { className: isSlider ? "option" : "option boxed" }, label, shown, box, hint);
}

/** The image that a model is asked about: chosen, dropped or pasted, and shown. */
export class ImageBox {
  /** `changed` is called when there is another image. */
  constructor({ box, input, shown, paste }, changed) {
    Object.assign(this, { box, input, shown, changed });
    this.file = null;
    this.content = null; // what a request holds of the file
    input.accept = IMAGE_TYPES.join(",");
    input.addEventListener("change", () => this.take(input.files[0]));
    box.addEventListener("dragover", (event) => event.preventDefault());
    box.addEventListener("drop", (event) => {
      event.preventDefault();
      this.take(event.dataTransfer.files[0]);
    });
    paste.addEventListener("paste", (event) => {
      if (box.checkVisibility()) this.take([...event.clipboardData.files].find(({ type }) => IMAGE_TYPES.includes(type)));
    });
  }

  async take(file) {
    if (!file) return;
    this.file = file;
    const url = await dataUrlOf(file);
    if (this.file !== file) return; // another one was chosen
    this.content = { b64: url.slice(url.indexOf(",") + 1) };
    this.shown.replaceChildren(element("img", { src: url, alt: file.name }));
    this.changed();
  }
}

function dataUrlOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

/** Shows the signatures of a model that the page has no better way to ask, and a request to start from. */
export function showSignatures(box, body, model) {
  const names = Object.keys(model.signatures);
  box.replaceChildren(...names.map((name) => {
    const { inputs, outputs } = model.signatures[name];
    const use = element("button", { type: "button" }, "Use");
    use.setAttribute("aria-label", `Write a request for ${name}`);
    use.addEventListener("click", () => (body.value = exampleRequest(model, name)));
    const heading = element("div", { className: "heading" }, element("h3", {}, name), use);
    return element("div", { className: "signature" }, heading, tensors("takes", inputs), tensors("gives", outputs));
  }));
  const first = names.includes("serving_default") ? "serving_default" : names[0];
  body.value = first === undefined ? "" : exampleRequest(model, first);
}

function tensors(title, infos) {
  const lines = Object.entries(infos).map(([name, { dtype, shape }]) => {
    const sizes = shape ? `[${shape.map((size) => size ?? "?").join(", ")}]` : "any shape";
    return element("li", {}, element("code", {}, name), ` ${dtype} ${sizes}`);
  });
  return element("div", {}, element("span", { className: "hint" }, title), element("ul", {}, ...lines));
}

function exampleRequest(model, signatureName) {
  const instance = {};
  for (const [name, info] of Object.entries(model.signatures[signatureName].inputs)) {
    instance[name] = model.neutral[name] ?? emptyValue(info);
  }
  return JSON.stringify({ signature_name: signatureName, instances: [instance] }, null, 2);
}

/** A value of a dtype and shape, without the batch axis. */
function emptyValue({ dtype, shape }) {
  let value = 0;
  if (dtype === "string") value = "";
  if (dtype === "bool") value = false;
  const sizes = (shape ?? []).slice(1);
  return sizes.reduceRight((inner, size) => Array(Math.max(size ?? 1, 1)).fill(inner), value);
}
