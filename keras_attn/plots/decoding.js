// The steps of a decoder: the best next tokens of each; and the answers of a beam search as a tree.

import { element, percent } from "./dom.js";
import { unitsOfTokens } from "./words.js";

export class StepsCard {
  constructor(card, choose) {
    this.card = card;
    this.choose = choose;
    this.slider = card.querySelector("input");
    this.number = card.querySelector("output");
    this.bars = card.querySelector("ol");
    this.said = card.querySelector("p");
    this.slider.addEventListener("input", () => choose(Number(this.slider.value) - 1));
    card.querySelector("[data-step='-1']").addEventListener("click", () => choose(Math.max(this.step - 1, -1)));
    card.querySelector("[data-step='1']").addEventListener("click", () => choose(Math.min(this.step + 1, this.steps.length - 1)));
  }

  /** `read` and `written` are the tokens that go in and come out of each step, or null. */
  show(steps, step, read, written) {
    this.steps = steps;
    this.step = step;
    this.slider.max = steps.length;
    this.slider.value = step + 1;
    this.number.textContent = step < 0 ? "all steps" : `step ${step + 1} of ${steps.length}`;
    this.slider.setAttribute("aria-valuetext", this.number.textContent);
    this.said.replaceChildren();
    this.bars.replaceChildren();
    if (step < 0) {
      this.said.textContent = "Move the slider: for each step, the tokens that the model held most likely.";
      return;
    }
    if (read) {
      const tokens = read.slice(0, step + 1).map((text) => element("bdi", { className: "token" }, text));
      this.said.append("After ", ...tokens);
      if (written) this.said.append(" it wrote ", element("bdi", { className: "token chosen" }, written[step].text));
    }
    const texts = unitsOfTokens(steps[step].map(([token]) => token), []);
    this.bars.replaceChildren(
      ...steps[step].map(([token, probability], rank) => {
        const name = element("bdi", { className: "token" }, texts[rank].plain || "␣");
        const bar = element("span", { className: "bar" });
        bar.style.setProperty("--share", Math.min(probability, 1));
        const row = element("li", {}, name, bar, element("span", { className: "percent" }, percent(probability)));
        row.classList.toggle("chosen", written?.[step].token === token);
        return row;
      }),
    );
  }
}

/** The answers as a tree of runs {tokens, next, answers}: those that begin alike share their beginning. */
export function treeOf(beams, depth = 0) {
  const branches = new Map();
  for (const beam of beams) {
    const first = beam.tokens[depth];
    if (first === undefined) continue;
    if (!branches.has(first)) branches.set(first, []);
    branches.get(first).push(beam);
  }
  return [...branches.values()].map((members) => {
    let end = depth + 1;
    const isShared = () => members.every((beam) => beam.tokens.length > end && beam.tokens[end] === members[0].tokens[end]);
    const isAlone = members.length === 1;
    while (isAlone ? end < members[0].tokens.length : isShared()) end++;
    return {
      tokens: members[0].tokens.slice(depth, end),
      logProbs: members[0].logProbs.slice(depth, end),
      answers: members.filter((beam) => beam.tokens.length === end),
      next: treeOf(members.filter((beam) => beam.tokens.length > end), end),
    };
  });
}

export function showBeams(list, beams, special) {
  const ranked = beams.map((beam, rank) => ({ ...beam, rank: rank + 1 }));
  const isSpecial = new Set(special);
  const run = (node) => {
    const item = element("li");
    const line = element("div", { className: "run" });
    const numbers = node.tokens.flatMap((token, number) => (isSpecial.has(token) ? [number] : []));
    unitsOfTokens(node.tokens, numbers).forEach((unit, number) => {
      const token = element("bdi", { className: "token" }, unit.text);
      const probability = Math.exp(node.logProbs[number]);
      token.style.setProperty("--share", probability);
      token.title = `probability ${percent(probability)}`;
      line.append(token);
    });
    for (const answer of node.answers) {
      line.append(element("span", { className: "score" }, `No. ${answer.rank}, score ${answer.score.toFixed(3)}`));
    }
    item.append(line);
    if (node.next.length) {
      const inner = element("ul");
      inner.append(...node.next.map(run));
      item.append(inner);
    }
    return item;
  };
  list.replaceChildren(...treeOf(ranked).map(run));
}
