// Colours, the two pens that every view draws with (on a canvas, and into an SVG file), and files of what is shown.

import { element } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const STEPS = 64;

/** The colours of the page, light or dark, as its style has them. */
export function coloursOf(page) {
  const style = getComputedStyle(page);
  const read = (name) => style.getPropertyValue(name).trim();
  const low = rgb(read("--low"));
  const high = rgb(read("--high"));
  const between = (share) => low.map((value, part) => value + (high[part] - value) * share);
  const scale = Array.from({ length: STEPS + 1 }, (_, step) => between(step / STEPS));
  const text = scale.map((colour) => (luminance(colour) > 0.3 ? "#10151f" : "#ffffff"));
  return {
    ink: read("--ink"),
    quiet: read("--quiet"),
    edge: read("--edge"),
    card: read("--card"),
    line: read("--line"),
    mark: read("--mark"),
    scale: scale.map((colour) => `rgb(${colour.map(Math.round).join(" ")})`),
    bytes: scale.map((colour) => colour.map(Math.round)),
    text,
  };
}

function rgb(hex) {
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

function luminance(colour) {
  const [red, green, blue] = colour.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** How strongly a score is shaded, from 0 to 1: the square root, so that small scores can be seen; `largest` counts as 1. */
export function strength(score, largest) {
  return largest > 0 ? Math.min(Math.sqrt(score / largest), 1) : 0;
}

export function stepOf(score, largest) {
  return Math.round(STEPS * strength(score, largest));
}

export const FONT = 'system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif';

export class CanvasPen {
  constructor(context) {
    this.context = context;
  }

  size(text, pixels) {
    this.context.font = `${pixels}px ${FONT}`;
    return this.context.measureText(text).width;
  }

  box(x, y, width, height, { fill, stroke, alpha = 1, lineWidth = 1 }) {
    const { context } = this;
    context.globalAlpha = alpha;
    if (fill) {
      context.fillStyle = fill;
      context.fillRect(x, y, width, height);
    }
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = lineWidth;
      context.strokeRect(x, y, width, height);
    }
    context.globalAlpha = 1;
  }

  curve(x1, y1, x2, y2, { stroke, alpha, lineWidth }) {
    const { context } = this;
    const middle = (x1 + x2) / 2;
    context.globalAlpha = alpha;
    context.strokeStyle = stroke;
    context.lineWidth = lineWidth;
    context.beginPath();
    context.moveTo(x1, y1);
    context.bezierCurveTo(middle, y1, middle, y2, x2, y2);
    context.stroke();
    context.globalAlpha = 1;
  }

  label(text, x, y, { fill, pixels = 13, align = "left", weight = 400, angle = 0 }) {
    const { context } = this;
    context.font = `${weight} ${pixels}px ${FONT}`;
    context.fillStyle = fill;
    context.textAlign = align;
    context.textBaseline = "middle";
    if (!angle) return context.fillText(text, x, y);
    context.save();
    context.translate(x, y);
    context.rotate(angle);
    context.fillText(text, 0, 0);
    context.restore();
  }

  bitmap(canvas, x, y, width, height, isSmooth = false) {
    this.context.imageSmoothingEnabled = isSmooth || width < canvas.width;
    this.context.drawImage(canvas, x, y, width, height);
  }

  clip(x, y, width, height, draw) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
    draw();
    this.context.restore();
  }
}

/** Draws what a `CanvasPen` draws, as elements of an SVG file. */
export class SvgPen {
  constructor(width, height, background) {
    this.measure = new CanvasPen(document.createElement("canvas").getContext("2d"));
    this.root = document.createElementNS(SVG, "svg");
    set(this.root, { viewBox: `0 0 ${width} ${height}`, width, height, "font-family": FONT });
    this.box(0, 0, width, height, { fill: background });
  }

  size(text, pixels) {
    return this.measure.size(text, pixels);
  }

  #add(name, attributes) {
    const shape = document.createElementNS(SVG, name);
    set(shape, attributes);
    this.root.append(shape);
    return shape;
  }

  box(x, y, width, height, { fill = "none", stroke = "none", alpha = 1, lineWidth = 1 }) {
    this.#add("rect", { x, y, width, height, fill, stroke, opacity: alpha, "stroke-width": lineWidth });
  }

  curve(x1, y1, x2, y2, { stroke, alpha, lineWidth }) {
    const middle = round((x1 + x2) / 2);
    const d = `M${round(x1)} ${round(y1)} C${middle} ${round(y1)} ${middle} ${round(y2)} ${round(x2)} ${round(y2)}`;
    this.#add("path", { d, fill: "none", stroke, opacity: alpha, "stroke-width": lineWidth });
  }

  label(text, x, y, { fill, pixels = 13, align = "left", weight = 400, angle = 0 }) {
    const attributes = {
      x, y, fill, "font-size": pixels, "font-weight": weight, "dominant-baseline": "central",
      "text-anchor": { left: "start", right: "end", center: "middle" }[align],
    };
    if (angle) attributes.transform = `rotate(${round((angle * 180) / Math.PI)} ${round(x)} ${round(y)})`;
    this.#add("text", attributes).textContent = text;
  }

  bitmap(canvas, x, y, width, height, isSmooth = false) {
    const href = canvas.toDataURL("image/png");
    const rendering = isSmooth ? "auto" : "pixelated";
    this.#add("image", { x, y, width, height, href, preserveAspectRatio: "none", "image-rendering": rendering });
  }

  clip(x, y, width, height, draw) {
    draw(); // a file shows the whole drawing
  }

  text() {
    return new XMLSerializer().serializeToString(this.root);
  }
}

function set(shape, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    shape.setAttribute(name, typeof value === "number" ? round(value) : value);
  }
}

function round(value) {
  return Math.round(value * 100) / 100;
}

/** A text cut to a width. */
export function fitted(pen, text, width, pixels) {
  if (pen.size(text, pixels) <= width) return text;
  let fits = 0;
  let exceeds = text.length;
  while (exceeds - fits > 1) {
    const middle = (fits + exceeds) >> 1;
    if (pen.size(`${text.slice(0, middle)}…`, pixels) <= width) fits = middle;
    else exceeds = middle;
  }
  return `${text.slice(0, fits)}…`;
}

/** A canvas as large as what a scrolling box shows of its content, and drawn anew when that changes. */
export class ScrolledCanvas {
  constructor(box, draw) {
    this.box = box;
    this.draw = draw;
    this.space = element("div", { className: "space" });
    this.canvas = element("canvas", { className: "view-canvas" });
    this.space.append(this.canvas);
    box.replaceChildren(this.space);
    this.context = this.canvas.getContext("2d");
    this.observer = new ResizeObserver(() => this.later());
    this.observer.observe(box);
    this.onScroll = () => this.now();
    box.addEventListener("scroll", this.onScroll, { passive: true });
  }

  later() {
    this.waiting ??= requestAnimationFrame(() => this.now());
  }

  now() {
    cancelAnimationFrame(this.waiting);
    this.waiting = null;
    this.draw();
  }

  /** The height that the page allows the box. */
  get mostHeight() {
    return parseFloat(getComputedStyle(this.box).maxHeight) || Infinity;
  }

  /** Makes the content this large; returns what is seen of it: {left, top, width, height}. */
  prepare(width, height) {
    const { box, space, canvas, context } = this;
    space.style.width = `${Math.max(width, 1)}px`;
    space.style.height = `${Math.max(height, 1)}px`;
    const seen = { width: box.clientWidth, height: Math.min(box.clientHeight, Math.max(height, 1)) };
    const ratio = devicePixelRatio;
    const pixelsWide = Math.round(seen.width * ratio);
    const pixelsHigh = Math.round(seen.height * ratio);
    if (canvas.width !== pixelsWide || canvas.height !== pixelsHigh) {
      canvas.width = pixelsWide;
      canvas.height = pixelsHigh;
      canvas.style.width = `${seen.width}px`;
      canvas.style.height = `${seen.height}px`;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, seen.width, seen.height);
    return { left: box.scrollLeft, top: box.scrollTop, ...seen };
  }

  /** Where the pointer is in the content. */
  place(event) {
    const frame = this.canvas.getBoundingClientRect();
    return { x: event.clientX - frame.left, y: event.clientY - frame.top };
  }

  close() {
    cancelAnimationFrame(this.waiting);
    this.observer.disconnect();
    this.box.removeEventListener("scroll", this.onScroll);
    this.box.replaceChildren();
  }
}

// What is shown, as a file: a picture (PNG, SVG) or numbers (JSON).

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
  const scores = matrix.rows.map((_, row) => {
    const line = matrix.values.subarray(row * width, (row + 1) * width);
    return Array.from(line, (score) => Number(score.toFixed(5)));
  });
  const queries = matrix.rows.map((unit) => unit.plain);
  const keys = matrix.columns.map((unit) => unit.plain);
  const value = { ...description, queries, keys, scores };
  return new Blob([JSON.stringify(value)], { type: "application/json" });
}

export function download(blob, name) {
  const link = element("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
