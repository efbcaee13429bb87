// All heads at a glance: thumbnails by layer and head, or sorted by a kind of head.

import { inflated, largestOf, shareOf } from "./maps.js";
import { stepOf } from "./drawing.js";
import { element, elementAtKey, percent } from "./dom.js";

export const KIND_NAMES = {
  previous: "token before",
  next: "token after",
  own: "itself",
  local: "neighbours",
  diagonal: "same place",
  first: "first token",
  special: "special tokens",
  induction: "induction",
  broad: "many alike",
  mixed: "no clear pattern",
};

/** What a head of a kind does, in words; `unit` is "token", "word" or "patch". */
export const HABITS = {
  previous: (unit) => `each ${unit} looks at the ${unit} before it`,
  next: (unit) => `each ${unit} looks at the ${unit} after it`,
  own: (unit) => `each ${unit} looks at itself`,
  local: (unit) => `each ${unit} looks at its neighbours, at most two away`,
  diagonal: (unit) => `each ${unit} looks at the same place in the other text`,
  first: (unit) => `each ${unit} looks at the first ${unit}`,
  special: (unit) => `each ${unit} looks at special tokens, such as the end`,
  induction: (unit) => `each ${unit} looks at what came after it the last time`,
  broad: (unit) => `each ${unit} looks at many others alike`,
  mixed: () => "no single pattern",
};

// How much a head of a kind tells a person. Of the others, the sharpest tell most.
const WORTH = { induction: 1.2, previous: 1, next: 1, diagonal: 1, own: 0.7, local: 0.6, first: 0.1, special: 0.1, broad: 0 };
const WORTH_OF_SHARPNESS = 0.5;

/** How much a head tells at first sight, by its kind. */
export function worthOf({ kind, scores }) {
  if (kind in WORTH) return WORTH[kind] * scores[kind];
  return WORTH_OF_SHARPNESS * (1 - (scores.broad ?? 1));
}

export class Overview {
  constructor(parts, data, choose) {
    this.parts = parts; // {grid, chips}
    this.data = data;
    this.choose = choose;
    this.decoded = new Map();
    this.shown = "";
    parts.grid.addEventListener("keydown", (event) => this.#move(event));
  }

  /** Shows a state {model, group, layer, head, sort, kind, search} in these colours. */
  async show(state, colours) {
    const form = JSON.stringify([state.model, state.group, state.sort, state.kind, state.search, colours.scale[0]]);
    if (form !== this.shown) {
      this.shown = form;
      const layers = await this.#thumbnails(state.model, state.group);
      if (form !== this.shown) return;
      this.#build(state, layers, colours);
    }
    for (const button of this.parts.grid.querySelectorAll("button")) {
      const isChosen = button.dataset.place === `${state.layer}.${state.head}`;
      button.setAttribute("aria-pressed", isChosen);
      button.tabIndex = isChosen ? 0 : -1;
    }
    const { grid } = this.parts;
    if (!grid.querySelector('[tabindex="0"]')) grid.querySelector("button")?.setAttribute("tabindex", 0);
  }

  async #thumbnails(model, group) {
    const place = `${model}.${group}`;
    if (!this.decoded.has(place)) {
      const withCodes = async (layer) => layer && { ...layer, codes: await inflated(layer.thumbnails) };
      this.decoded.set(place, Promise.all(this.data.groups[group].seen[model].map(withCodes)));
    }
    return this.decoded.get(place);
  }

  #build(state, layers, colours) {
    this.#showChips(state, layers);
    const isSorted = state.sort !== "layer";
    const heads = layers.flatMap((layer, l) => layer?.heads.map((head, h) => ({ ...head, layer: l, head: h })) ?? []);
    const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (head) => {
      const l = head.layer + 1;
      const h = head.head + 1;
      const text = `layer ${l} head ${h} l${l}h${h} ${head.kind} ${KIND_NAMES[head.kind]} ${layers[head.layer].path}`.toLowerCase();
      return (!state.kind || head.kind === state.kind) && words.every((word) => text.includes(word));
    };
    const { grid } = this.parts;
    grid.classList.toggle("sorted", isSorted);
    if (isSorted) {
      const score = (head) => head.scores[state.sort] ?? 0;
      const shown = heads.filter(matches).sort((a, b) => score(b) - score(a));
      grid.replaceChildren(...shown.map((head) => this.#button(head, layers, colours, state.sort)));
      if (!shown.length) grid.append(element("p", { className: "hint" }, "No head is like this."));
      return;
    }
    const most = Math.max(1, ...layers.map((layer) => layer?.heads.length ?? 0));
    grid.style.setProperty("--columns", most + 1);
    const rows = layers.map((layer, l) => {
      const row = element("div", { className: "layer" });
      row.setAttribute("role", "group");
      row.setAttribute("aria-label", `Layer ${l + 1}`);
      const label = element("span", { className: "layer-name" }, String(l + 1));
      label.title = this.data.groups[state.group].paths[l];
      if (!layer) {
        row.append(label, element("span", { className: "hint absent" }, `not in ${this.data.models[state.model]}`));
        return row;
      }
      label.title = layer.path;
      const cells = layer.heads.map((kind, h) => {
        const head = { ...kind, layer: l, head: h };
        const button = this.#button(head, layers, colours, null);
        button.classList.toggle("other", !matches(head));
        return button;
      });
      const mean = this.#button({ layer: l, head: -1, kind: null, scores: {} }, layers, colours, null);
      row.append(label, ...cells, mean);
      return row;
    });
    const numbers = Array.from({ length: most }, (_, h) => element("span", {}, String(h + 1)));
    const corner = element("span", { className: "layer-name" });
    const names = element("div", { className: "layer names" }, corner, ...numbers, element("span", {}, "all"));
    names.setAttribute("aria-hidden", "true");
    grid.replaceChildren(names, ...rows);
  }

  #showChips(state, layers) {
    const counts = {};
    for (const { kind } of layers.flatMap((layer) => layer?.heads ?? [])) counts[kind] = (counts[kind] ?? 0) + 1;
    const kinds = Object.keys(KIND_NAMES).filter((kind) => counts[kind]);
    this.parts.chips.replaceChildren(
      ...kinds.map((kind) => {
        const heads = `${counts[kind]} ${counts[kind] === 1 ? "head" : "heads"}`;
        const chip = element("button", { className: "chip", type: "button", title: HABITS[kind]("token") }, `${KIND_NAMES[kind]}: `);
        chip.append(element("span", { className: "count" }, heads));
        chip.setAttribute("aria-pressed", state.kind === kind);
        chip.addEventListener("click", () => this.choose({ kind: state.kind === kind ? "" : kind }));
        return chip;
      }),
    );
  }

  #button(head, layers, colours, sort) {
    const button = element("button", { className: "thumbnail" });
    button.type = "button";
    button.dataset.place = `${head.layer}.${head.head}`;
    const part = head.head < 0 ? "mean of its heads" : `head ${head.head + 1}`;
    const kind = head.kind ? `: ${KIND_NAMES[head.kind]}` : "";
    button.title = `Layer ${head.layer + 1}, ${part}${kind}`;
    button.setAttribute("aria-label", button.title);
    button.append(picture(layers[head.layer], head.head, colours));
    if (sort) {
      const caption = `${head.layer + 1}·${head.head + 1}  ${percent(head.scores[sort] ?? 0)}`;
      button.append(element("span", { className: "caption" }, caption));
    }
    button.addEventListener("click", () => this.choose({ layer: head.layer, head: head.head }));
    return button;
  }

  /** The arrow keys go through the thumbnails, which are one stop of the Tab key. */
  #move(event) {
    const buttons = [...this.parts.grid.querySelectorAll("button")];
    if (!buttons.length) return;
    const top = (button) => button.getBoundingClientRect().top;
    const columns = buttons.filter((button) => Math.abs(top(button) - top(buttons[0])) < 2).length;
    const next = elementAtKey(buttons, event, columns);
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  }
}

function picture(layer, head, colours) {
  const [height, width] = layer.size;
  const canvas = element("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const plane = width * height;
  const count = layer.heads.length;
  const shares = new Float32Array(plane);
  for (let place = 0; place < plane; place++) {
    if (head >= 0) shares[place] = shareOf(layer.codes[head * plane + place]);
    else for (let other = 0; other < count; other++) shares[place] += shareOf(layer.codes[other * plane + place]) / count;
  }
  const largest = largestOf(shares);
  shares.forEach((share, place) => image.data.set([...colours.bytes[stepOf(share, largest)], 255], 4 * place));
  context.putImageData(image, 0, 0);
  return canvas;
}
