// Tokens joined to words, and the lines between the words of a text and those of its answer.

const SVG = "http://www.w3.org/2000/svg";
const WORD = /[\p{L}\p{N}\p{M}]/u;
// Scripts that write no spaces: each token stays a word of its own.
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}]/u;

/** Tokens as pieces {text, startsWord, tokens}: markers of spaces and of bytes are read, `tokens` are their numbers. */
function piecesOf(tokens) {
  const hasSpaceMarks = tokens.some((token) => token.includes("▁")) || tokens.every((token) => [...token].length < 2);
  const pieces = [];
  let bytes = null;
  tokens.forEach((token, number) => {
    const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(token);
    if (byte) {
      bytes ??= pieces[pieces.push({ bytes: [], tokens: [], startsWord: false }) - 1];
      bytes.bytes.push(parseInt(byte[1], 16));
      bytes.tokens.push(number);
      return;
    }
    bytes = null;
    const continues = token.startsWith("##") && token.length > 2;
    const startsWord = hasSpaceMarks ? token.startsWith("▁") : !continues;
    const text = continues && !hasSpaceMarks ? token.slice(2) : token.replaceAll("▁", "");
    pieces.push({ text, startsWord, tokens: [number] });
  });
  for (const piece of pieces) piece.text ??= new TextDecoder().decode(Uint8Array.from(piece.bytes));
  return pieces;
}

/** Pieces joined to words {text, startsWord, tokens}. Punctuation stands alone, so that "2016-07-04" is five. */
export function wordsOf(tokens) {
  const words = [];
  let space = null; // a space that is a token of its own belongs to the word that follows
  for (const piece of piecesOf(tokens)) {
    if (!piece.text) {
      space = { startsWord: true, tokens: [...(space?.tokens ?? []), ...piece.tokens] };
      continue;
    }
    const startsWord = piece.startsWord || space !== null;
    const last = words.at(-1);
    const isOneWord = last && WORD.test(last.text.at(-1)) && WORD.test(piece.text[0]) && !UNSPACED.test(last.text + piece.text);
    if (isOneWord && !startsWord) {
      last.text += piece.text;
      last.tokens.push(...piece.tokens);
    } else {
      words.push({ text: piece.text, startsWord, tokens: [...(space?.tokens ?? []), ...piece.tokens] });
    }
    space = null;
  }
  return words;
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
    for (const row of [parts.source, parts.target]) row.addEventListener("keydown", (event) => moveFocus(row, event));
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
      const [x1, y1] = [above.left + above.width / 2 - frame.left, above.bottom - frame.top];
      const [x2, y2] = [below.left + below.width / 2 - frame.left, below.top - frame.top];
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
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = word.text;
    button.tabIndex = number ? -1 : 0;
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
function moveFocus(row, event) {
  const words = [...row.children];
  const here = words.indexOf(document.activeElement);
  const forward = getComputedStyle(row).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
  const backward = forward === "ArrowRight" ? "ArrowLeft" : "ArrowRight";
  const next = { [forward]: here + 1, [backward]: here - 1, Home: 0, End: words.length - 1 }[event.key];
  if (here < 0 || !words[next]) return;
  event.preventDefault();
  words[here].tabIndex = -1;
  words[next].tabIndex = 0;
  words[next].focus();
}
