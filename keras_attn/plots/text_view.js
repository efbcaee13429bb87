// The texts themselves: point at a word and see what it looks at, or in the other text, what looks at it.

import { lineOf } from "./maps.js";
import { element, stepOf } from "./drawing.js";

export class TextView {
  constructor(box, actions) {
    this.box = box;
    this.actions = actions;
    this.blocks = {};
    box.replaceChildren(
      ...["q", "k"].map((side) => {
        const block = element("section", "text-block");
        const words = element("div", "flow");
        words.dir = "auto";
        words.setAttribute("role", "listbox");
        words.setAttribute("aria-label", side === "q" ? "Queries" : "Keys");
        const heading = element("h3");
        block.append(heading, words);
        this.blocks[side] = { words, heading, units: null, steps: [] };
        words.addEventListener("pointerover", (event) => this.#point(side, event.target));
        words.addEventListener("pointerleave", () => actions.point(null));
        words.addEventListener("click", (event) => this.#pin(side, event.target));
        words.addEventListener("keydown", (event) => this.#key(side, event));
        words.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && this.#point(side, event.target));
        return block;
      }),
    );
  }

  show(matrix, look) {
    const sides = { q: matrix.rows, k: matrix.columns };
    for (const [side, units] of Object.entries(sides)) {
      const block = this.blocks[side];
      block.heading.textContent = look.names[side];
      if (block.units !== units) this.#fill(block, units);
    }
    this.matrix = matrix;
    this.draw(look);
  }

  draw(look) {
    const { matrix } = this;
    const { pointing, colours } = look;
    for (const [side, { words, steps }] of Object.entries(this.blocks)) {
      const isShaded = pointing && pointing.side !== side;
      const scores = isShaded ? lineOf(matrix, pointing) : null;
      const largest = look.isAbsolute || !scores ? 1 : scores.reduce((most, score) => Math.max(most, score), 0);
      const cells = words.children;
      for (let unit = 0; unit < cells.length; unit++) {
        const isHidden = scores && scores[unit] < look.threshold;
        const step = scores && !isHidden ? stepOf(scores[unit], largest) : -1;
        const isChosen = pointing?.side === side && pointing.unit === unit;
        const state = isChosen ? -2 : step;
        if (steps[unit] === state) continue;
        steps[unit] = state;
        const cell = cells[unit];
        cell.style.backgroundColor = state >= 0 ? colours.scale[state] : "";
        cell.style.color = state >= 0 ? colours.text[state] : "";
        if (isChosen !== cell.classList.contains("chosen")) {
          cell.classList.toggle("chosen", isChosen);
          cell.setAttribute("aria-selected", isChosen);
        }
      }
      words.classList.toggle("pointing", Boolean(scores));
    }
  }

  #fill(block, units) {
    block.units = units;
    block.steps = [];
    block.words.replaceChildren(
      ...units.map((unit, number) => {
        const word = element("span", "word", unit.plain === "" ? "␣" : unit.plain);
        word.setAttribute("role", "option");
        word.setAttribute("aria-selected", "false");
        word.tabIndex = number ? -1 : 0;
        word.classList.toggle("special", unit.isSpecial);
        word.classList.toggle("glued", number > 0 && (!unit.startsWord || /^[.,;:!?)\]}»”]+$/u.test(unit.plain)));
        return word;
      }),
    );
  }

  #unit(side, target) {
    const unit = [...this.blocks[side].words.children].indexOf(target);
    return unit < 0 ? null : { side, unit };
  }

  #point(side, target) {
    const found = this.#unit(side, target);
    if (found) this.actions.point(found);
  }

  #pin(side, target) {
    const found = this.#unit(side, target);
    if (found) this.actions.pin(found);
  }

  #key(side, event) {
    const words = [...this.blocks[side].words.children];
    const here = words.indexOf(document.activeElement);
    if (here < 0) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.actions.pin({ side, unit: here });
      return;
    }
    const isRightToLeft = getComputedStyle(words[here]).direction === "rtl";
    const step = { ArrowRight: isRightToLeft ? -1 : 1, ArrowLeft: isRightToLeft ? 1 : -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    const next = words[event.key === "Home" ? 0 : event.key === "End" ? words.length - 1 : here + step];
    if (!next) return;
    event.preventDefault();
    words[here].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    this.actions.point({ side, unit: words.indexOf(next) });
  }

  close() {
    this.box.replaceChildren();
  }
}
