// What is shown beside the answer: the best answers with their scores, and notes in plain words.

import { element, labelOf } from "./options.js";

const NOTES = {
  text_truncated: "The text was too long and was cut.",
  text_repaired: "The text held bytes that are no text. They were replaced.",
  unfinished: "The answer reached the most tokens it may have before it came to an end.",
  image_not_decoded: "This is no JPEG or PNG file, or a damaged one.",
  image_too_large: "The image is too large.",
  source_truncated: "The text was too long and was cut.",
  source_repaired: "The text held bytes that are no text. They were replaced.",
  prompt_truncated: "The prompt was too long. Its beginning was left out.",
  prompt_repaired: "The prompt held bytes that are no text. They were replaced.",
  prefix_truncated: "The text to begin with was too long and was cut.",
  prefix_repaired: "The text to begin with held bytes that are no text. They were replaced.",
};
const PATTERNS = [
  [/^(.*)_clamped$/, (name) => `${labelOf(name)} was out of range. The nearest value that is allowed was taken.`],
  [/^(.*)_is_nan$/, (name) => `${labelOf(name)} was no number. The value that changes nothing was taken.`],
  [/^(.*)_truncated$/, (name) => `${labelOf(name)} was too long and was cut.`],
  [/^(.*)_repaired$/, (name) => `${labelOf(name)} held what is not allowed there, and was repaired.`],
  [/^(.*)$/, (name) => `The model notes: ${name.replaceAll("_", " ")}.`],
];

export function noteOf(status) {
  if (NOTES[status]) return NOTES[status];
  const [pattern, sentence] = PATTERNS.find(([each]) => each.test(status));
  return sentence(pattern.exec(status)[1]);
}

export function showNotes(list, statuses) {
  list.replaceChildren(...statuses.map((status) => element("li", { textContent: noteOf(status), title: status })));
}

/** A line for each answer: its text, a bar whose length, at most 1, is a function of its score, and the score. */
export function showBest(list, answers, lengthOf) {
  list.replaceChildren(...answers.map(({ text, score }) => {
    const fill = element("span", { className: "fill" });
    fill.style.width = `${100 * Math.min(1, Math.max(0, lengthOf(score)))}%`;
    const bar = element("span", { className: "bar" }, fill);
    bar.setAttribute("aria-hidden", "true");
    const number = element("span", { className: "score", textContent: score.toFixed(3).replace("-", "−") });
    return element("li", {}, element("bdi", { textContent: text || "(empty)" }), bar, number);
  }));
}
