// The words of a text and of its answer, with lines from each word to those that it came from.

import { element, elementAtKey, moveFocus } from "./dom.js";
import { unitsOfWords } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

/** Tokens joined to words {text, startsWord, tokens}. */
export function wordsOf(tokens) {
  return unitsOfWords(tokens, []).filter((word) => !word.isSpace);
}

/** Links [source word, target word, share of the target word's tokens]. */
function linksOf(source, target, alignment) {
  const wordOfToken = new Map(source.flatMap((word, number) => word.tokens.map((token) => [token, number])));
  const links = [];
  target.forEach((word, number) => {
    const counts = new Map();
    for (const token of word.tokens) {
      const attended = wordOfToken.get(alignment[token]);
      if (attended !== undefined) counts.set(attended, (counts.get(attended) ?? 0) + 1);
    }
    for (const [attended, count] of counts) links.push([attended, number, count / word.tokens.length]);
  });
  return links;
}

/** Shows words and links in `parts` = {box, lines, source, target}, four elements of the page. */
export class AlignmentView {
  constructor(parts) {
    this.parts = parts;
    this.links = [];
    new ResizeObserver(() => this.#drawLines()).observe(parts.box);
    for (const row of [parts.source, parts.target]) row.addEventListener("keydown", (event) => goThrough(row, event));
  }

  /** `answer` holds source_tokens, target_tokens and alignment; returns whether there is anything to show. */
  show(answer, isFinished) {
    const { source_tokens: sources = [], target_tokens: targets = [], alignment = [] } = answer;
    const end = sources.findLastIndex((token) => token !== "");
    const source = wordsOf(sources.slice(0, end));
    const length = targets.findLastIndex((token) => token !== "") + 1;
    const target = wordsOf(targets.slice(0, isFinished ? length - 1 : length));
    if (alignment.slice(0, length).includes(end)) source.push({ text: "end", startsWord: true, tokens: [end], isEnd: true });
    this.links = linksOf(source, target, alignment);
    const readFrom = (number) => this.links.filter((link) => link[1] === number).map((link) => source[link[0]].text);
    const readFor = (number) => this.links.filter((link) => link[0] === number).map((link) => target[link[1]].text);
    fill(this.parts.source, source, (number) => `read for ${readFor(number).join(", ") || "nothing"}`, this.#marker(0));
    fill(this.parts.target, target, (number) => `from ${readFrom(number).join(", ") || "nothing"}`, this.#marker(1));
    this.#drawLines();
    return this.links.length > 0;
  }

  /** A function that marks a word of a side (0 the source, 1 the target) with all that it is linked to; null unmarks. */
  #marker(side) {
    return (number) => {
      const active = this.links.map((link) => link[side] === number);
      for (const [other, row] of [this.parts.source, this.parts.target].entries()) {
        const words = new Set(this.links.filter((_, index) => active[index]).map((link) => link[other]));
        if (other === side && number !== null) words.add(number);
        [...row.children].forEach((word, index) => word.classList.toggle("active", words.has(index)));
      }
      [...this.parts.lines.children].forEach((line, index) => line.classList.toggle("active", active[index]));
      this.parts.box.classList.toggle("pointing", number !== null);
    };
  }

  #drawLines() {
    const { box, lines, source, target } = this.parts;
    const frame = box.getBoundingClientRect();
    lines.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
    lines.replaceChildren(...this.links.map(([from, to, share]) => {
      const above = source.children[from].getBoundingClientRect();
      const below = target.children[to].getBoundingClientRect();
      const x1 = above.left + above.width / 2 - frame.left;
      const y1 = above.bottom - frame.top;
      const x2 = below.left + below.width / 2 - frame.left;
      const y2 = below.top - frame.top;
      const middle = (y1 + y2) / 2;
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("d", `M${x1} ${y1} C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`);
      path.setAttribute("stroke-width", (1 + 2 * share).toFixed(2));
      return path;
    }));
    const wraps = (row) => row.lastElementChild && row.lastElementChild.offsetTop > row.firstElementChild.offsetTop;
    box.classList.toggle("wrapped", Boolean(wraps(source) || wraps(target)));
  }
}

function fill(row, words, meaning, mark) {
  row.replaceChildren(...words.map((word, number) => {
    const button = element("button", { type: "button", tabIndex: number ? -1 : 0 }, word.text);
    button.setAttribute("aria-label", `${word.text}, ${meaning(number)}`);
    button.classList.toggle("glued", !word.startsWord && number > 0);
    button.classList.toggle("end", Boolean(word.isEnd));
    for (const event of ["pointerenter", "focus", "click"]) button.addEventListener(event, () => mark(number));
    button.addEventListener("blur", () => mark(null));
    button.addEventListener("pointerleave", () => document.activeElement === button || mark(null));
    return button;
  }));
}

/** The arrow keys go through a row, which is one stop of the Tab key. */
function goThrough(row, event) {
  const next = elementAtKey([...row.children], event);
  if (!next) return;
  event.preventDefault();
  moveFocus(document.activeElement, next);
}
