// How an answer is shown: itself, the best answers with their scores, notes in plain words, and the attention.

import { element, percent } from "./dom.js";
import { textOf } from "./requests.js";

const UNFOUND_SCORE = -1e29; // a search that found fewer answers fills up with -1e30
const SHOWN_NUMBERS = 6;

/**
 * An answer in the view that its signature declares: {nodes, bars, lengthOf, title}. `nodes` is what the answer's box holds, `bars`
 * are [{text, score}], and `lengthOf` gives the length of a bar, from 0 to 1; without it, that is the score. `title` stands above
 * the bars. `others` are what else was asked about: the second text, or the texts to compare with, a list.
 */
export function viewOf(signature, answer, text, others) {
  const view = VIEWS[signature.view];
  if (!view) throw new Error(`The page has no view ${signature.view}, which the export declares for this signature.`);
  return view(answer, text, others);
}

function bestFirst({ outputs, scores }) {
  const texts = [outputs].flat().map(textOf);
  const bars = [scores ?? []].flat().map((score, rank) => ({ text: texts[rank], score }));
  return { nodes: [texts[0]], bars: bars.filter(({ score }) => score > UNFOUND_SCORE), lengthOf: Math.exp };
}

const VIEWS = {
  answers: bestFirst,
  text: bestFirst,

  continuation: (answer, prompt) => {
    const { nodes, ...rest } = bestFirst(answer);
    return { nodes: [element("span", { className: "prompt" }, prompt), ...nodes], ...rest };
  },

  labels: ({ labels, scores }) => {
    const best = textOf(labels[0]);
    if (!best) return { nodes: [], bars: [] }; // an image that cannot be read
    return { nodes: [best], bars: labels.map((label, rank) => ({ text: textOf(label), score: scores[rank] })) };
  },

  spans: ({ labels, scores, starts, ends }, text) => {
    const spans = labels.map((label, rank) => ({
      label: textOf(label), score: scores[rank], start: starts[rank], end: ends[rank],
    }));
    return { nodes: marked(text, spans.filter(({ start }) => start >= 0)), bars: [] };
  },

  fills: ({ outputs, tokens, scores }) => {
    const bars = tokens.flatMap((best, mask) => {
      const number = tokens.length > 1 ? `${mask + 1}: ` : "";
      return best.map((token, rank) => ({ text: number + textOf(token), score: scores[mask][rank] }));
    });
    return { nodes: [textOf(outputs)], bars: bars.filter(({ score }) => score > 0) };
  },

  span_of_second: ({ outputs, scores, starts, ends }, _, context) => {
    const span = { label: percent(scores), score: scores, start: starts, end: ends };
    const nodes = marked(context, ends > starts ? [span] : []);
    return { nodes: [textOf(outputs), element("p", { className: "context" }, ...nodes)], bars: [] };
  },

  vector: ({ outputs, others }, _, texts) => {
    if (others) {
      const bars = texts.map((text, rank) => ({ text, score: cosine(outputs, others[rank].outputs) }));
      bars.sort((a, b) => b.score - a.score);
      const nodes = bars.length > 1 ? [bars[0].text] : [`Cosine ${shown(bars[0].score)}`];
      return { nodes, bars, title: "Closest first, by the cosine of the vectors: 1 is the same direction" };
    }
    const length = Math.hypot(...outputs).toFixed(3);
    const first = outputs.slice(0, SHOWN_NUMBERS).map((number) => number.toFixed(4)).join(", ");
    const more = outputs.length > SHOWN_NUMBERS ? ", …" : "";
    return { nodes: [`${outputs.length} numbers, length ${length}: ${first}${more}`], bars: [] };
  },
};

function cosine(one, other) {
  const product = one.reduce((sum, number, place) => sum + number * other[place], 0);
  return product / (Math.hypot(...one) * Math.hypot(...other)) || 0;
}

function shown(score) {
  return score.toFixed(3).replace("-", "−");
}

/** Nodes of a text with its spans in `mark` elements. Places are counted in characters, not in UTF-16 units. */
function marked(text, spans) {
  const characters = [...text];
  const nodes = [];
  let end = 0;
  for (const span of spans) {
    nodes.push(characters.slice(end, span.start).join(""));
    const inside = element("bdi", {}, characters.slice(Math.max(span.start, end), span.end).join(""));
    const label = element("span", { className: "label" }, span.label);
    nodes.push(element("mark", { title: percent(span.score) }, inside, " ", label));
    end = Math.max(end, span.end);
  }
  nodes.push(characters.slice(end).join(""));
  return nodes;
}

/** A line for each answer: its text, a bar, and its score. */
export function showBest(list, { bars, lengthOf = (score) => score }) {
  list.replaceChildren(...bars.map(({ text, score }) => {
    const fill = element("span", { className: "fill" });
    fill.style.width = `${100 * Math.min(1, Math.max(0, lengthOf(score)))}%`;
    const bar = element("span", { className: "bar" }, fill);
    bar.setAttribute("aria-hidden", "true");
    const number = element("span", { className: "score" }, shown(score));
    return element("li", {}, element("bdi", {}, text || "(empty)"), bar, number);
  }));
}

// Statuses that are made of an option's name.
const OPTION_STATUSES = {
  clamped: (label) => `${label} was out of range. The nearest value that is allowed was taken.`,
  is_nan: (label) => `${label} was no number. The value that changes nothing was taken.`,
  truncated: (label) => `${label} was too long and was cut.`,
  repaired: (label) => `${label} held what is not allowed there, and was repaired.`,
};

export function showNotes(list, task, statuses) {
  list.replaceChildren(...statuses.map((status) => element("li", { title: status }, noteOf(task, status))));
}

function noteOf(task, status) {
  const [, counted, ...numbers] = /^(.*)_(\d+)_of_(\d+)$/.exec(status) ?? [];
  if (counted && Object.hasOwn(task.statuses, counted)) {
    return numbers.reduce((sentence, number) => sentence.replace("{}", number), task.statuses[counted]);
  }
  if (Object.hasOwn(task.statuses, status)) return task.statuses[status];
  const [, name, what] = /^(.*)_(clamped|is_nan|truncated|repaired)$/.exec(status) ?? [];
  if (what) return OPTION_STATUSES[what](labelOf(task, name));
  return `The model notes: ${status.replaceAll("_", " ")}.`;
}

/** The label of an option. */
function labelOf(task, name) {
  for (const { inputs } of Object.values(task.signatures)) {
    const label = inputs[name]?.widget?.label;
    if (label) return label;
  }
  const words = name.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

const WAITING = "The attention is being computed. The first time takes a while.";
const HOW_TO =
  "This export does not tell its attention. Export it again with the signature attention, " +
  "keras-attn export TASK FOLDER --attention, or serve the run or the saved task itself.";

/**
 * The panel in which the attention for the text is explored: a page of the server's, in a frame that can reach nothing else.
 * One page is loaded at a time, the newest that was wanted, and only while the panel is open.
 */
export class AttentionPanel {
  constructor({ panel, note, frame, link }) {
    Object.assign(this, { panel, note, frame, link });
    this.wanted = null; // addresses of pages
    this.shown = null;
    this.isLoading = false;
  }

  /** Wants the page of what was asked: `text`, with `pair` if the model reads two texts, or `image`, its name at the server. */
  want(model, asked) {
    if (!model.shows_attention) return this.clear(HOW_TO);
    const given = new URLSearchParams({ model: model.name });
    for (const [name, value] of Object.entries(asked)) if (value !== undefined) given.set(name, value);
    this.wanted = `/page/attention?${given}`;
    this.link.href = this.wanted;
    this.link.hidden = false;
    this.note.textContent = this.wanted === this.shown ? "" : WAITING;
    this.load();
  }

  /** Shows a note instead of a page. */
  clear(note = "") {
    this.wanted = null;
    this.shown = null;
    this.isLoading = false;
    this.link.hidden = true;
    this.frame.replaceChildren();
    this.note.textContent = note;
  }

  load() {
    if (this.isLoading || this.panel.hidden || this.wanted === null || this.wanted === this.shown) return;
    const address = this.wanted;
    const frame = element("iframe", {
      title: "The attention, layer by layer and head by head",
      sandbox: "allow-scripts allow-downloads",
      referrerPolicy: "no-referrer",
      src: address,
    });
    this.isLoading = true;
    frame.addEventListener("load", () => frame.isConnected && this.#loaded(address), { once: true });
    this.frame.replaceChildren(frame);
  }

  #loaded(address) {
    this.isLoading = false;
    this.shown = address;
    if (this.wanted === address) this.note.textContent = "";
    this.load();
  }
}
