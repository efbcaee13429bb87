// What is shown as a file: a picture (PNG, SVG) or numbers (JSON).

import { CanvasPen, SvgPen, element } from "./drawing.js";

const LARGEST_SIDE = 8192;

/** A `drawing` is {width, height, draw(pen)}. */
export function asPng(drawing, background) {
  const scale = Math.min(2, LARGEST_SIDE / drawing.width, LARGEST_SIDE / drawing.height);
  const canvas = element("canvas");
  canvas.width = Math.ceil(drawing.width * scale);
  canvas.height = Math.ceil(drawing.height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = background;
  context.fillRect(0, 0, drawing.width, drawing.height);
  drawing.draw(new CanvasPen(context));
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

export function asSvg(drawing, background) {
  const pen = new SvgPen(drawing.width, drawing.height, background);
  drawing.draw(pen);
  return new Blob([pen.text()], { type: "image/svg+xml" });
}

export function asJson(description, matrix) {
  const width = matrix.columns.length;
  const rows = matrix.rows.map((_, row) => Array.from(matrix.values.subarray(row * width, (row + 1) * width), (score) => Number(score.toFixed(5))));
  const value = { ...description, queries: matrix.rows.map((unit) => unit.plain), keys: matrix.columns.map((unit) => unit.plain), scores: rows };
  return new Blob([JSON.stringify(value)], { type: "application/json" });
}

export function download(blob, name) {
  const link = element("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
