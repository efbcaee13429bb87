// The texts themselves: point at a word and see what it looks at, or in the other text, what looks at it.

import { largestOf, lineOf } from "./maps.js";
import { stepOf } from "./drawing.js";
import { element, elementAtKey, moveFocus } from "./dom.js";

export class TextView {
  constructor(box, actions) {
    this.box = box;
    this.actions = actions;
    this.blocks = {};
    box.replaceChildren(
      ...["q", "k"].map((side) => {
        const block = element("section", { className: "text-block" });
        const words = element("div", { className: "flow" });
        words.dir = "auto";
        words.setAttribute("role", "listbox");
        words.setAttribute("aria-label", side === "q" ? "Queries" : "Keys");
        const heading = element("h3");
        block.append(heading, words);
        this.blocks[side] = { words, heading, units: null, steps: [] };
        words.addEventListener("scroll", () => this.look && this.draw(this.look), { passive: true });
        words.addEventListener("pointerover", (event) => this.#act(actions.point, side, event.target));
        words.addEventListener("pointerleave", () => actions.point(null));
        words.addEventListener("click", (event) => this.#act(actions.pin, side, event.target));
        words.addEventListener("keydown", (event) => this.#key(side, event));
        words.addEventListener("focusin", ({ target }) => target.matches(":focus-visible") && this.#act(actions.point, side, target));
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
    this.look = look;
    const { matrix } = this;
    const { pointing, colours } = look;
    for (const [side, { words, steps }] of Object.entries(this.blocks)) {
      const isShaded = pointing && pointing.side !== side;
      const scores = isShaded ? lineOf(matrix, pointing) : null;
      const largest = look.isAbsolute || !scores ? 1 : largestOf(scores);
      const cells = words.children;
      const [first, last] = visibleRange(words);
      for (let unit = first; unit < last; unit++) {
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
        const word = element("span", { className: "word" }, unit.plain === "" ? "␣" : unit.plain);
        word.setAttribute("role", "option");
        word.setAttribute("aria-selected", "false");
        word.tabIndex = number ? -1 : 0;
        word.classList.toggle("special", unit.isSpecial);
        word.classList.toggle("glued", number > 0 && (!unit.startsWord || /^[.,;:!?)\]}»”]+$/u.test(unit.plain)));
        return word;
      }),
    );
  }

  /** Calls an action with the word that is the target of an event, if it is one. */
  #act(action, side, target) {
    const unit = [...this.blocks[side].words.children].indexOf(target);
    if (unit >= 0) action({ side, unit });
  }

  #key(side, event) {
    const words = [...this.blocks[side].words.children];
    const here = document.activeElement;
    if (!words.includes(here)) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.actions.pin({ side, unit: words.indexOf(here) });
      return;
    }
    const next = elementAtKey(words, event);
    if (!next) return;
    event.preventDefault();
    moveFocus(here, next);
    this.actions.point({ side, unit: words.indexOf(next) });
  }

  close() {
    this.box.replaceChildren();
  }
}

/** The numbers of the first child that can be seen, or nearly, and of the one after the last: of a long text, only these are shaded. */
function visibleRange(words) {
  const firstBelow = (y) => {
    let low = 0;
    let high = words.children.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (words.children[middle].offsetTop < y) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  const { scrollTop, clientHeight } = words;
  return [firstBelow(scrollTop - clientHeight / 2), firstBelow(scrollTop + 1.5 * clientHeight)];
}
