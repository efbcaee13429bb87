// The signatures of a model that the page knows no better way to ask, and a request to start from.

import { element } from "./options.js";

export function showSignatures(box, body, model) {
  const names = Object.keys(model.signatures);
  box.replaceChildren(...names.map((name) => {
    const { inputs, outputs } = model.signatures[name];
    const use = element("button", { type: "button", textContent: "Use" });
    use.setAttribute("aria-label", `Write a request for ${name}`);
    use.addEventListener("click", () => (body.value = exampleOf(model, name)));
    return element("div", { className: "signature" },
      element("div", { className: "heading" }, element("h3", { textContent: name }), use),
      tensors("takes", inputs), tensors("gives", outputs));
  }));
  body.value = names.length ? exampleOf(model, names.includes("serving_default") ? "serving_default" : names[0]) : "";
}

function tensors(title, infos) {
  const lines = Object.entries(infos).map(([name, { dtype, shape }]) => {
    const sizes = shape ? `[${shape.map((size) => (size === null || size < 0 ? "?" : size)).join(", ")}]` : "any shape";
    return element("li", {}, element("code", { textContent: name }), ` ${dtype} ${sizes}`);
  });
  return element("div", {}, element("span", { className: "hint", textContent: title }), element("ul", {}, ...lines));
}

function exampleOf(model, name) {
  const instance = Object.fromEntries(Object.entries(model.signatures[name].inputs).map(([input, { dtype, shape }]) => {
    const value = model.neutral?.[input] ?? (/string/i.test(dtype) ? "" : /bool/i.test(dtype) ? false : 0);
    const isKnown = model.neutral?.[input] !== undefined;
    return [input, isKnown ? value : (shape ?? []).slice(1).reduceRight((inner, size) => Array(Math.max(size ?? 1, 1)).fill(inner), value)];
  }));
  return JSON.stringify({ signature_name: name, instances: [instance] }, null, 2);
}
