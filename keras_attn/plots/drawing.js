// Colours, and the two pens that every view draws with: on a canvas, and into an SVG file.

const SVG = "http://www.w3.org/2000/svg";
const STEPS = 64;

/** The colours of the page, light or dark, as its style has them. */
export function coloursOf(page) {
  const style = getComputedStyle(page);
  const read = (name) => style.getPropertyValue(name).trim();
  const [low, high] = [rgb(read("--low")), rgb(read("--high"))];
  const scale = Array.from({ length: STEPS + 1 }, (_, step) => low.map((value, part) => value + ((high[part] - value) * step) / STEPS));
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
  const [red, green, blue] = colour.map((value) => (value /= 255) && (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
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
    this.parent = this.root;
    this.clips = 0;
    this.box(0, 0, width, height, { fill: background });
  }

  size(text, pixels) {
    return this.measure.size(text, pixels);
  }

  #add(name, attributes) {
    const made = document.createElementNS(SVG, name);
    set(made, attributes);
    this.parent.append(made);
    return made;
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
  let [fits, not] = [0, text.length];
  while (not - fits > 1) {
    const middle = (fits + not) >> 1;
    if (pen.size(`${text.slice(0, middle)}…`, pixels) <= width) fits = middle;
    else not = middle;
  }
  return `${text.slice(0, fits)}…`;
}

export function percent(share) {
  if (share >= 0.1) return `${Math.round(share * 100)} %`;
  return share >= 0.001 ? `${(share * 100).toFixed(1)} %` : share > 0 ? "< 0.1 %" : "0 %";
}

/** A canvas as large as what a scrolling box shows of its content, and drawn anew when that changes. */
export class ScrolledCanvas {
  constructor(box, draw) {
    this.box = box;
    this.draw = draw;
    this.space = element("div", "space");
    this.canvas = element("canvas", "view-canvas");
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
    const sizes = { width: `${Math.max(width, 1)}px`, height: `${Math.max(height, 1)}px` };
    for (const [name, value] of Object.entries(sizes)) if (space.style[name] !== value) space.style[name] = value;
    const seen = { width: box.clientWidth, height: Math.min(box.clientHeight, Math.max(height, 1)) };
    const ratio = devicePixelRatio;
    const [pixelsWide, pixelsHigh] = [Math.round(seen.width * ratio), Math.round(seen.height * ratio)];
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

/** An element with a class and a text. */
export function element(name, className = "", text = null) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== null) made.textContent = text;
  return made;
}
