// How the answers of encoders are shown: labels and fills as bars, spans in their text, vectors in short.

import { textOf } from "./asking.js";
import { element } from "./options.js";

const SHOWN_NUMBERS = 6;

/** {nodes: what the answer's box holds, bars: [{text, score}] with scores from 0 to 1}; undefined for other kinds. */
export function viewOf(kind, text, options, answer) {
  return VIEWS[kind]?.(answer, text, options);
}

const labelled = ({ labels, scores }) => ({
  nodes: [textOf(labels[0])],
  bars: labels.map((label, rank) => ({ text: textOf(label), score: scores[rank] })),
});

const VIEWS = {
  text_classifier: labelled,
  // An image that cannot be read has empty labels.
  image_classifier: (answer) => (textOf(answer.labels[0]) ? labelled(answer) : { nodes: [], bars: [] }),
  token_classifier: ({ labels, scores, starts, ends }, text) => {
    const spans = labels.map((label, rank) => ({
      label: textOf(label), score: scores[rank], start: starts[rank], end: ends[rank],
    }));
    return { nodes: marked(text, spans.filter(({ start }) => start >= 0)), bars: [] };
  },
  mask_filler: ({ outputs, tokens, scores }) => ({
    nodes: [textOf(outputs)],
    bars: tokens.flatMap((ofMask, mask) => ofMask.map((token, rank) => ({
      text: tokens.length > 1 ? `${mask + 1}: ${textOf(token)}` : textOf(token), score: scores[mask][rank],
    }))).filter(({ score }) => score > 0),
  }),
  question_answerer: ({ outputs, scores, starts, ends }, question, { contexts = "" }) => {
    const span = { label: percent(scores), score: scores, start: starts, end: ends };
    const context = element("p", { className: "context" }, ...marked(contexts, ends > starts ? [span] : []));
    return { nodes: [textOf(outputs), context], bars: [] };
  },
  text_embedder: ({ outputs }) => {
    const length = Math.hypot(...outputs).toFixed(3);
    const first = outputs.slice(0, SHOWN_NUMBERS).map((number) => number.toFixed(4)).join(", ");
    return { nodes: [`${outputs.length} numbers, length ${length}: ${first}${outputs.length > SHOWN_NUMBERS ? ", …" : ""}`], bars: [] };
  },
};

/** Nodes of a text with its spans in `mark` elements. Places are counted in characters, not in UTF-16 units. */
function marked(text, spans) {
  const characters = [...text];
  const nodes = [];
  let end = 0;
  for (const span of spans) {
    nodes.push(characters.slice(end, span.start).join(""));
    const label = element("span", { className: "label", textContent: span.label });
    const inside = characters.slice(Math.max(span.start, end), span.end).join("");
    nodes.push(element("mark", { title: percent(span.score) }, element("bdi", { textContent: inside }), " ", label));
    end = Math.max(end, span.end);
  }
  return [...nodes, characters.slice(end).join("")];
}

function percent(score) {
  return `${(100 * score).toFixed(1)} %`;
}
