// Two columns of tokens and a line for each score: queries on the left, keys on the right.

import { largestOf, lineOf } from "./maps.js";
import { ScrolledCanvas, fitted, strength } from "./drawing.js";
import { percent } from "./dom.js";

const ROW = 22;
const TOP = 34;
const LINE_PIXELS = 14;
const MOST_LINES = 4000;

/** Where things are in a drawing of a width. */
function linesLayout(matrix, width, pen) {
  const widest = (units) => Math.max(40, ...units.slice(0, 400).map((unit) => pen.size(unit.text, LINE_PIXELS)));
  const room = Math.max(width - 90, 120) / 2;
  const left = Math.min(widest(matrix.rows), room, 260) + 12;
  const right = Math.min(widest(matrix.columns), room, 260) + 12;
  const span = Math.min(Math.max(width - left - right, 60), 420);
  const start = Math.max((width - left - right - span) / 2, 0);
  const height = TOP + ROW * Math.max(matrix.rows.length, matrix.columns.length) + 10;
  return { left: start + left, right: start + left + span, leftWidth: left, rightWidth: right, width, height };
}

const middleOf = (unit) => TOP + ROW * unit + ROW / 2;

/** The strongest lines of a matrix, strongest last: at most `MOST_LINES`. */
export function linesOf(matrix, threshold, largest) {
  const counts = new Uint32Array(257);
  const { values } = matrix;
  const width = matrix.columns.length;
  const levelOf = (score) => Math.round(256 * strength(score, largest));
  for (const score of values) if (score > 0 && score >= threshold) counts[levelOf(score)]++;
  let level = 256;
  for (let total = 0; level > 0; level--) if ((total += counts[level]) > MOST_LINES) break;
  const lines = [];
  for (let place = 0; place < values.length && lines.length < 2 * MOST_LINES; place++) {
    const score = values[place];
    if (score > 0 && score >= threshold && levelOf(score) > level) lines.push([Math.floor(place / width), place % width, score]);
  }
  lines.sort((a, b) => a[2] - b[2]);
  return { lines, areAll: level === 0 };
}

/** Draws the part between `top` and `bottom`. */
export function drawLines(pen, matrix, layout, look, lines, { top, bottom }) {
  const { colours, pointing } = look;
  const isSeen = (y1, y2) => Math.max(y1, y2) >= top - ROW && Math.min(y1, y2) <= bottom + ROW;
  const scores = pointing ? lineOf(matrix, pointing) : null;
  let { largest } = matrix;
  if (look.isAbsolute) largest = 1;
  else if (scores) largest = largestOf(scores);
  const draw = (query, key, score) => {
    const y1 = middleOf(query);
    const y2 = middleOf(key);
    if (!isSeen(y1, y2)) return;
    const strong = strength(score, largest);
    pen.curve(layout.left + 6, y1, layout.right - 6, y2, {
      stroke: colours.line,
      alpha: Math.max(scores ? strong : strong ** 1.5 * 0.75, 0.02),
      lineWidth: 0.75 + 2.75 * strong,
    });
  };
  if (scores) {
    scores.forEach((score, other) => {
      if (score <= 0 || score < look.threshold) return;
      if (pointing.side === "q") draw(pointing.unit, other, score);
      else draw(other, pointing.unit, score);
    });
  } else for (const [query, key, score] of lines) draw(query, key, score);

  const sides = [
    ["q", matrix.rows, layout.left, "right", layout.leftWidth],
    ["k", matrix.columns, layout.right, "left", layout.rightWidth],
  ];
  for (const [side, units, x, align, width] of sides) {
    const first = Math.max(0, Math.floor((top - TOP) / ROW) - 1);
    const last = Math.min(units.length, Math.ceil((bottom - TOP) / ROW) + 1);
    for (let unit = first; unit < last; unit++) {
      const y = middleOf(unit);
      const isChosen = pointing?.side === side && pointing.unit === unit;
      const share = scores && pointing.side !== side ? scores[unit] : 0;
      const isQuiet = units[unit].isSpecial || (scores && !isChosen && pointing.side === side);
      const box = [align === "right" ? x - width : x, y - ROW / 2 + 1, width, ROW - 2];
      if (isChosen) pen.box(...box, { stroke: colours.mark, lineWidth: 1.5 });
      if (share > 0 && share >= look.threshold) {
        pen.box(...box, { fill: colours.line, alpha: 0.32 * strength(share, largest) });
      }
      pen.label(fitted(pen, units[unit].text, width - 10, LINE_PIXELS), align === "right" ? x - 5 : x + 5, y, {
        fill: isQuiet ? colours.quiet : colours.ink,
        pixels: LINE_PIXELS,
        align,
        weight: isChosen ? 650 : 400,
      });
      const isStrong = scores && pointing.side !== side && share >= Math.max(largest * 0.05, look.threshold, 0.001);
      if (isStrong && align === "left" && x + width + 44 < layout.width) {
        pen.label(percent(share), x + width + 4, y, { fill: colours.quiet, pixels: 11 });
      }
      if (isStrong && align === "right" && x - width - 44 > 0) {
        pen.label(percent(share), x - width - 4, y, { fill: colours.quiet, pixels: 11, align: "right" });
      }
    }
  }
  pen.label(look.names.q, layout.left - 5, 15, { fill: colours.quiet, pixels: 12, align: "right", weight: 600 });
  pen.label(look.names.k, layout.right + 5, 15, { fill: colours.quiet, pixels: 12, weight: 600 });
}

export class LinesView {
  constructor(box, actions, penOf) {
    this.penOf = penOf;
    this.scrolled = new ScrolledCanvas(box, () => this.#draw());
    const { canvas } = this.scrolled;
    canvas.setAttribute("role", "img");
    canvas.addEventListener("pointermove", (event) => actions.point(this.#unit(event)));
    canvas.addEventListener("pointerleave", () => actions.point(null));
    canvas.addEventListener("click", (event) => actions.pin(this.#unit(event)));
  }

  show(matrix, look) {
    this.matrix = matrix;
    this.lines = null;
    this.draw(look);
  }

  draw(look) {
    this.look = look;
    const form = `${look.threshold} ${look.isAbsolute}`;
    if (this.form !== form) this.lines = null;
    this.form = form;
    this.scrolled.now();
  }

  #draw() {
    const { matrix, look, scrolled } = this;
    if (!matrix) return;
    const pen = this.penOf(scrolled.context);
    this.layout = linesLayout(matrix, scrolled.box.clientWidth, pen);
    const seen = scrolled.prepare(1, this.layout.height);
    this.top = seen.top;
    if (!look.pointing) this.lines ??= linesOf(matrix, look.threshold, look.isAbsolute ? 1 : matrix.largest);
    scrolled.context.translate(0, -seen.top);
    drawLines(pen, matrix, this.layout, look, this.lines?.lines ?? [], { top: seen.top, bottom: seen.top + seen.height });
    const size = `${matrix.rows.length} queries to ${matrix.columns.length} keys`;
    scrolled.canvas.setAttribute("aria-label", `Lines from ${size}; the view Text can be read.`);
    if (look.pointing) return;
    const count = this.lines.lines.length.toLocaleString("en");
    look.note(this.lines.areAll ? "" : `The ${count} strongest lines are drawn; point at a word for all of its own.`);
  }

  #unit(event) {
    const { x, y } = this.scrolled.place(event);
    const side = x < (this.layout.left + this.layout.right) / 2 ? "q" : "k";
    const unit = Math.floor((y + this.top - TOP) / ROW);
    const units = side === "q" ? this.matrix.rows : this.matrix.columns;
    return unit >= 0 && unit < units.length ? { side, unit } : null;
  }

  /** The whole drawing, of a width: its size, and a function that draws it with a pen. */
  static drawing(matrix, look, measure) {
    const layout = linesLayout(matrix, 760, measure);
    const { lines } = linesOf(matrix, look.threshold, look.isAbsolute ? 1 : matrix.largest);
    return { ...layout, draw: (pen) => drawLines(pen, matrix, layout, look, lines, { top: 0, bottom: layout.height }) };
  }

  close() {
    this.scrolled.close();
  }
}
