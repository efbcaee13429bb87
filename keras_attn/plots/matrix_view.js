// A row for each query, a column for each key, a cell for each score.

import { ScrolledCanvas, fitted, stepOf } from "./drawing.js";
import { element } from "./dom.js";

const PIXELS = 13;
const SMALLEST_LABELLED = 12;
const LARGEST_CELL = 34;
const SLANT = -Math.PI / 3;

function matrixLayout(matrix, width, height, zoom, pen) {
  const widest = (units) => Math.max(20, ...units.slice(0, 400).map((unit) => pen.size(unit.text, PIXELS)));
  const labelWidth = Math.min(widest(matrix.rows), 150, width * 0.35) + 10;
  const labelHeight = Math.min(widest(matrix.columns), 120) * Math.sin(-SLANT) + 22;
  const fitting = (left, top) => Math.min((width - left - 46) / matrix.columns.length, (height - top - 4) / matrix.rows.length);
  let left = labelWidth;
  let top = labelHeight;
  let cell = Math.min(fitting(left, top), LARGEST_CELL) * zoom;
  const isWideEnough = (width - left - 46) / matrix.columns.length >= SMALLEST_LABELLED;
  // A short text keeps its labels: the box scrolls then.
  const isShort = isWideEnough || (zoom > 1 && matrix.columns.length <= 64);
  if (isShort) cell = Math.max(cell, SMALLEST_LABELLED);
  const isLabelled = cell >= SMALLEST_LABELLED;
  if (!isLabelled) {
    left = 16;
    top = 22;
    cell = Math.min(fitting(left, top), LARGEST_CELL) * zoom;
  }
  if (cell > 1) cell = Math.floor(cell * 4) / 4;
  const size = { width: left + cell * matrix.columns.length + 44, height: top + cell * matrix.rows.length + 4 };
  return { left, top, cell, isLabelled, ...size };
}

/** The scores as a bitmap, a pixel each. */
export function bitmapOf(matrix, look) {
  const canvas = element("canvas");
  canvas.width = matrix.columns.length;
  canvas.height = matrix.rows.length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const largest = look.isAbsolute ? 1 : matrix.largest;
  const { bytes } = look.colours;
  const { data } = image;
  matrix.values.forEach((score, place) => {
    const colour = bytes[score >= look.threshold ? stepOf(score, largest) : 0];
    data[4 * place] = colour[0];
    data[4 * place + 1] = colour[1];
    data[4 * place + 2] = colour[2];
    data[4 * place + 3] = 255;
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

export function drawMatrix(pen, matrix, layout, look, bitmap, { left: x0, top: y0, width, height }) {
  const { left, top, cell, isLabelled } = layout;
  const { colours, pointing } = look;
  const rows = matrix.rows.length;
  const columns = matrix.columns.length;
  pen.clip(left, top, width - left, height - top, () => {
    pen.bitmap(bitmap, left - x0, top - y0, cell * columns, cell * rows);
    pen.box(left - x0, top - y0, cell * columns, cell * rows, { stroke: colours.edge });
    if (!pointing) return;
    const [row, column] = pointing.side === "q" ? [pointing.unit, pointing.other] : [pointing.other, pointing.unit];
    const stroke = colours.mark;
    if (row !== undefined) pen.box(left - x0, top - y0 + row * cell, cell * columns, Math.max(cell, 2), { stroke, lineWidth: 1.5 });
    if (column !== undefined) pen.box(left - x0 + column * cell, top - y0, Math.max(cell, 2), cell * rows, { stroke, lineWidth: 1.5 });
  });
  const isOn = (side, unit) => pointing && (pointing.side === side ? pointing.unit : pointing.other) === unit;
  if (isLabelled) {
    pen.clip(0, top, left, height - top, () => {
      const first = Math.max(Math.floor((y0 - cell) / cell), 0);
      const last = Math.min(Math.ceil((y0 + height) / cell), rows);
      for (let row = first; row < last; row++) {
        const unit = matrix.rows[row];
        pen.label(fitted(pen, unit.text, left - 8, PIXELS), left - 6, top - y0 + (row + 0.5) * cell, {
          align: "right", pixels: Math.min(PIXELS, cell), weight: isOn("q", row) ? 700 : 400,
          fill: unit.isSpecial ? colours.quiet : colours.ink,
        });
      }
    });
    pen.clip(left - 12, 0, width - left + 12, top, () => {
      const first = Math.max(Math.floor((x0 - cell) / cell), 0);
      const last = Math.min(Math.ceil((x0 + width) / cell), columns);
      for (let column = first; column < last; column++) {
        const unit = matrix.columns[column];
        pen.label(fitted(pen, unit.text, (top - 14) / Math.sin(-SLANT), PIXELS), left - x0 + (column + 0.5) * cell - 1, top - 6, {
          angle: SLANT, pixels: Math.min(PIXELS, cell), weight: isOn("k", column) ? 700 : 400,
          fill: unit.isSpecial ? colours.quiet : colours.ink,
        });
      }
    });
    return;
  }
  const middle = top + Math.min(height - top, cell * rows) / 2;
  pen.label(`${look.names.q} ↓`, 8, middle, { fill: colours.quiet, pixels: 11, angle: -Math.PI / 2, align: "center" });
  pen.label(`${look.names.k} →`, left, 11, { fill: colours.quiet, pixels: 11 });
}

export class MatrixView {
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
    this.bitmap = null;
    this.draw(look);
  }

  draw(look) {
    this.look = look;
    const form = `${look.threshold} ${look.isAbsolute} ${look.colours.scale[0]}`;
    if (this.form !== form) this.bitmap = null;
    this.form = form;
    this.scrolled.now();
  }

  #draw() {
    const { matrix, look, scrolled } = this;
    if (!matrix) return;
    const pen = this.penOf(scrolled.context);
    this.layout = matrixLayout(matrix, scrolled.box.clientWidth, scrolled.mostHeight, look.zoom, pen);
    this.seen = scrolled.prepare(this.layout.width, this.layout.height);
    this.bitmap ??= bitmapOf(matrix, look);
    drawMatrix(pen, matrix, this.layout, look, this.bitmap, this.seen);
    const size = `${matrix.rows.length} queries and ${matrix.columns.length} keys`;
    scrolled.canvas.setAttribute("aria-label", `Matrix of ${size}; the view Text can be read.`);
    look.note("");
  }

  #unit(event) {
    const { x, y } = this.scrolled.place(event);
    const { left, top, cell } = this.layout;
    const inside = (place, count) => (place >= 0 && place < count ? place : undefined);
    const row = inside(Math.floor((y - top + this.seen.top) / cell), this.matrix.rows.length);
    const column = inside(Math.floor((x - left + this.seen.left) / cell), this.matrix.columns.length);
    if (row === undefined && column === undefined) return null;
    if (y < top) return column === undefined ? null : { side: "k", unit: column };
    if (x < left) return row === undefined ? null : { side: "q", unit: row };
    if (row === undefined || column === undefined) return null;
    return { side: "q", unit: row, other: column };
  }

  static drawing(matrix, look, measure) {
    const cell = matrix.columns.length <= 128 ? 18 : 1;
    const wide = Math.max(760, matrix.columns.length * cell + 240);
    const high = Math.max(600, matrix.rows.length * cell + 160);
    const layout = matrixLayout(matrix, wide, high, 1, measure);
    const bitmap = bitmapOf(matrix, look);
    const whole = { left: 0, top: 0, width: layout.width, height: layout.height };
    return { ...layout, draw: (pen) => drawMatrix(pen, matrix, layout, look, bitmap, whole) };
  }

  close() {
    this.scrolled.close();
  }
}
