// The image itself: what a patch looks at glows.

import { inflated, largestOf, lineOf } from "./maps.js";
import { ScrolledCanvas } from "./drawing.js";
import { element } from "./dom.js";

const LARGEST = 560;
const GLOW = "#ffb000";
const CHOSEN = "#56b4e9";
const DIM = 0.62;
const SMALL = 64; // an image of so few pixels is drawn as squares

/** The image as a canvas of its own pixels; a promise. */
export async function pictureOf(image) {
  const bytes = await inflated(image.pixels);
  const canvas = element("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(image.width, image.height);
  for (let pixel = 0; pixel < image.width * image.height; pixel++) {
    for (let part = 0; part < 3; part++) pixels.data[4 * pixel + part] = bytes[3 * pixel + part];
    pixels.data[4 * pixel + 3] = 255;
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

export class ImageView {
  constructor(box, actions, penOf, image) {
    this.box = box;
    this.actions = actions;
    this.penOf = penOf;
    this.image = image;
    this.side = "q";
    const wrap = element("div", { className: "image-view" });
    this.others = element("div", { className: "chips" });
    const choice = element("div", { className: "modes" });
    choice.setAttribute("role", "group");
    choice.setAttribute("aria-label", "Direction");
    this.sides = [["q", "looks at"], ["k", "is looked at by"]].map(([side, text]) => {
      const button = element("button", {}, `The patch ${text}`);
      button.type = "button";
      button.addEventListener("click", () => this.#turn(side));
      choice.append(button);
      return [side, button];
    });
    this.space = element("div", { className: "image-box" });
    wrap.append(choice, this.others, this.space);
    box.replaceChildren(wrap);
    this.scrolled = new ScrolledCanvas(this.space, () => this.#draw());
    const { canvas } = this.scrolled;
    canvas.setAttribute("role", "img");
    canvas.tabIndex = 0;
    canvas.addEventListener("pointermove", (event) => actions.point(this.#unit(event)));
    canvas.addEventListener("pointerleave", () => actions.point(null));
    canvas.addEventListener("click", (event) => actions.pin(this.#unit(event)));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    pictureOf(image).then((picture) => {
      this.picture = picture;
      this.scrolled.later();
    });
  }

  show(matrix, look) {
    this.matrix = matrix;
    this.before = matrix.columns.length - this.image.rows * this.image.columns;
    this.beforeRows = matrix.rows.length - this.image.rows * this.image.columns;
    this.#fillOthers();
    this.draw(look);
  }

  draw(look) {
    this.look = look;
    if (look.pointing) this.side = look.pointing.side;
    for (const [side, button] of this.sides) button.setAttribute("aria-pressed", side === this.side);
    for (const chip of this.others.children) chip.setAttribute("aria-pressed", look.pointing?.unit === Number(chip.dataset.unit));
    this.scrolled.now();
  }

  #fillOthers() {
    const units = (this.side === "q" ? this.matrix.rows : this.matrix.columns).slice(0, Math.max(this.before, 0));
    this.others.replaceChildren(
      ...units.map((unit, number) => {
        const chip = element("button", { className: "chip" }, unit.text);
        chip.type = "button";
        chip.dataset.unit = number;
        chip.addEventListener("pointerenter", () => this.actions.point({ side: this.side, unit: number }));
        chip.addEventListener("pointerleave", () => this.actions.point(null));
        chip.addEventListener("click", () => this.actions.pin({ side: this.side, unit: number }));
        return chip;
      }),
    );
  }

  #turn(side) {
    const { pointing } = this.look;
    this.side = side;
    if (pointing) this.actions.pin({ side, unit: pointing.unit });
    else this.draw(this.look);
  }

  #draw() {
    const { matrix, look, scrolled, picture, image } = this;
    if (!matrix || !picture) return;
    const wide = Math.min(scrolled.box.clientWidth, LARGEST);
    const high = Math.min(Math.max(0.62 * innerHeight, 240), LARGEST);
    const scale = Math.min(wide / image.width, high / image.height);
    this.size = { width: image.width * scale, height: image.height * scale };
    scrolled.prepare(1, this.size.height);
    drawImageWith(this.penOf(scrolled.context), picture, image, matrix, look, this.size);
    const { pointing } = look;
    const names = pointing?.side === "q" ? matrix.rows : matrix.columns;
    const chosen = pointing ? names[pointing.unit].text : "no patch";
    scrolled.canvas.setAttribute("aria-label", `The image; ${chosen} is chosen.`);
    look.note(pointing ? "" : "Point at a patch: what it looks at glows.");
  }

  #unit(event) {
    const { x, y } = this.scrolled.place(event);
    if (!this.size || x < 0 || y < 0 || x >= this.size.width || y >= this.size.height) return null;
    const column = Math.floor((x / this.size.width) * this.image.columns);
    const row = Math.floor((y / this.size.height) * this.image.rows);
    const before = this.side === "q" ? this.beforeRows : this.before;
    return { side: this.side, unit: before + row * this.image.columns + column };
  }

  #key(event) {
    const before = this.side === "q" ? this.beforeRows : this.before;
    const count = this.image.rows * this.image.columns;
    const here = this.look.pointing ? this.look.pointing.unit - before : -1;
    const { columns } = this.image;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = here < 0 ? 0 : here + step;
    if (next >= 0 && next < count) this.actions.pin({ side: this.side, unit: before + next }, true);
  }

  static drawing(matrix, look, picture, image) {
    const scale = Math.max(1, Math.floor(LARGEST / Math.max(image.width, image.height)));
    const size = { width: image.width * scale, height: image.height * scale };
    return { ...size, draw: (pen) => drawImageWith(pen, picture, image, matrix, look, size) };
  }

  close() {
    this.scrolled.close();
    this.box.replaceChildren();
  }
}

function drawImageWith(pen, picture, image, matrix, look, { width, height }) {
  pen.bitmap(picture, 0, 0, width, height, image.width > SMALL);
  const { pointing } = look;
  const numPatches = image.rows * image.columns;
  const cellWidth = width / image.columns;
  const cellHeight = height / image.rows;
  const corner = (patch) => [(patch % image.columns) * cellWidth, Math.floor(patch / image.columns) * cellHeight];
  if (!pointing) return;
  const scores = lineOf(matrix, pointing);
  const patches = scores.subarray(scores.length - numPatches);
  const largest = look.isAbsolute ? 1 : largestOf(patches);
  patches.forEach((score, patch) => {
    const [x, y] = corner(patch);
    // In proportion, since what is under it must be seen: the square root would cover most of an image.
    const share = largest > 0 && score >= look.threshold ? Math.min(score / largest, 1) : 0;
    pen.box(x, y, cellWidth, cellHeight, { fill: "#05070c", alpha: DIM });
    pen.box(x, y, cellWidth, cellHeight, { fill: GLOW, alpha: 0.8 * share });
  });
  const units = pointing.side === "q" ? matrix.rows : matrix.columns;
  const chosen = pointing.unit - (units.length - numPatches);
  if (chosen >= 0) pen.box(...corner(chosen), cellWidth, cellHeight, { stroke: CHOSEN, lineWidth: 3 });
}


