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

// Of how well two lines of words fit together: a link from one to another costs 1, and an empty line so much.
const EMPTY_LINE = 5;

/**
 * Splits the words of two texts into bands, a line of each, so that few links lead from one band to another:
 * the numbers of words in each band, [of the source, of the target]. `widths` are those of the words, `room` that of a line.
 */
export function bandsOf(widths, links, room) {
  const bands = [];
  let [from, to] = [0, 0];
  while (from < widths[0].length || to < widths[1].length) {
    const sources = prefixes(widths[0], from, room);
    const targets = prefixes(widths[1], to, room);
    const isLast = sources.length > widths[0].length - from && targets.length > widths[1].length - to;
    let best = { cost: Infinity };
    sources.forEach((sourceShare, i) => targets.forEach((targetShare, j) => {
      if (i + j === 0) return;
      const cut = links.filter(([source, target]) => source >= from && target >= to && (source < from + i) !== (target < to + j));
      const cost = cut.length + EMPTY_LINE * (2 - sourceShare - targetShare);
      if (cost < best.cost) best = { cost, band: [i, j] };
    }));
    bands.push(isLast ? [sources.length - 1, targets.length - 1] : best.band);
    from += bands.at(-1)[0];
    to += bands.at(-1)[1];
  }
  return bands;
}

/** For 0, 1, 2, ... words from a place on, which share of a line they take; a line has one word at least. */
function prefixes(widths, from, room) {
  const shares = [0];
  let width = 0;
  for (let word = from; word < widths.length; word++) {
    width += widths[word];
    if (width > room && word > from) break;
    shares.push(Math.min(width / room, 1));
  }
  return shares;
}

/** Shows words and links in `parts` = {box, lines, source, target}, four elements of the page. */
export class AlignmentView {
  constructor(parts) {
    this.parts = parts;
    this.links = [];
    this.words = [[], []]; // the buttons of the source's words and of the target's
    this.bands = [];
    new ResizeObserver(() => this.#arrange()).observe(parts.box);
    [parts.source, parts.target].forEach((row, side) => row.addEventListener("keydown", (event) => goThrough(this.words[side], event)));
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
    this.words = [
      buttonsOf(source, (number) => `read for ${readFor(number).join(", ") || "nothing"}`, this.#marker(0)),
      buttonsOf(target, (number) => `from ${readFrom(number).join(", ") || "nothing"}`, this.#marker(1)),
    ];
    this.arrangedFor = null;
    this.#arrange();
    return this.links.length > 0;
  }

  /** A function that marks a word of a side (0 the source, 1 the target) with all that it is linked to; null unmarks. */
  #marker(side) {
    return (number) => {
      const active = this.links.map((link) => link[side] === number);
      for (const [other, buttons] of this.words.entries()) {
        const marked = new Set(this.links.filter((_, index) => active[index]).map((link) => link[other]));
        if (other === side && number !== null) marked.add(number);
        buttons.forEach((word, index) => word.classList.toggle("active", marked.has(index)));
      }
      [...this.parts.lines.children].forEach((line, index) => line.classList.toggle("active", active[index]));
      this.parts.box.classList.toggle("pointing", number !== null);
    };
  }

  /** Puts the words into lines, those of both texts by turns where one line does not hold them, and draws the links. */
  #arrange() {
    const { box, source, target } = this.parts;
    if (this.arrangedFor === box.clientWidth) return; // a change of its height alone
    this.arrangedFor = box.clientWidth;
    const sides = [source, target];
    // Words that stand in one line tell their widths and, all together, the direction of writing.
    sides.forEach((row, side) => row.replaceChildren(element("div", { className: "line", dir: "auto" }, ...this.words[side])));
    const widths = this.words.map((buttons) => buttons.map(widthOf));
    const directions = sides.map((row) => getComputedStyle(row.firstChild).direction);
    this.bands = bandsOf(widths, this.links, box.clientWidth);
    sides.forEach((row, side) => {
      let begin = 0;
      const rows = this.bands.map((counts, band) => {
        const words = this.words[side].slice(begin, (begin += counts[side]));
        const line = element("div", { className: "line", dir: directions[side] }, ...words);
        line.style.gridRow = 2 * band + side + 1;
        return line;
      });
      row.replaceChildren(...rows);
    });
    this.#drawLines();
  }

  #drawLines() {
    const { box, lines } = this.parts;
    const frame = box.getBoundingClientRect();
    lines.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
    lines.replaceChildren(...this.links.map(([from, to, share]) => {
      const source = this.words[0][from].getBoundingClientRect();
      const target = this.words[1][to].getBoundingClientRect();
      const isAbove = source.bottom <= target.top; // else the target's word stands in a band above
      const x1 = source.left + source.width / 2 - frame.left;
      const y1 = (isAbove ? source.bottom : source.top) - frame.top;
      const x2 = target.left + target.width / 2 - frame.left;
      const y2 = (isAbove ? target.top : target.bottom) - frame.top;
      const middle = (y1 + y2) / 2;
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("d", `M${x1} ${y1} C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`);
      path.setAttribute("stroke-width", (1 + 2 * share).toFixed(2));
      path.classList.toggle("far", this.#bandOf(0, from) !== this.#bandOf(1, to));
      return path;
    }));
  }

  #bandOf(side, word) {
    let end = 0;
    return this.bands.findIndex((counts) => word < (end += counts[side]));
  }
}

function widthOf(button) {
  const { marginInlineStart } = getComputedStyle(button);
  return button.getBoundingClientRect().width + parseFloat(marginInlineStart);
}

function buttonsOf(words, meaning, mark) {
  return words.map((word, number) => {
    const button = element("button", { type: "button", tabIndex: number ? -1 : 0 }, word.text);
    button.setAttribute("aria-label", `${word.text}, ${meaning(number)}`);
    button.classList.toggle("glued", !word.startsWord && number > 0);
    button.classList.toggle("end", Boolean(word.isEnd));
    for (const event of ["pointerenter", "focus", "click"]) button.addEventListener(event, () => mark(number));
    button.addEventListener("blur", () => mark(null));
    button.addEventListener("pointerleave", () => document.activeElement === button || mark(null));
    return button;
  });
}

/** The arrow keys go through the words of a text, which are one stop of the Tab key. */
function goThrough(words, event) {
  const next = elementAtKey(words, event);
  if (!next) return;
  event.preventDefault();
  moveFocus(document.activeElement, next);
}
