// A page on which attention is explored. Tokens are data: they are only ever written with textContent or drawn.

import { unitsOfTokens, unitsOfWords } from "./words.js";
import { Maps, lineOf, matrixOf } from "./maps.js";
import { CanvasPen, asJson, asPng, asSvg, coloursOf, download } from "./drawing.js";
import { element, percent } from "./dom.js";
import { HABITS, KIND_NAMES, Overview, worthOf } from "./overview.js";
import { TextView } from "./text_view.js";
import { LinesView } from "./lines_view.js";
import { MatrixView } from "./matrix_view.js";
import { ImageView, pictureOf } from "./image_view.js";
import { StepsCard, showBeams } from "./decoding.js";

const VIEWS = { text: TextView, lines: LinesView, matrix: MatrixView, image: ImageView };
const LONG_TEXT = 48;
// Of what a word looks at, the page names so many, with at least so large a score.
const MOST_NAMED = 5;
const LEAST_NAMED = 0.0005;
const MOST_ZOOM = 8;
const FILM_MILLISECONDS = 900;
const TYPING = "input:not([type=range]):not([type=checkbox]), select, textarea";

const penOf = (context) => new CanvasPen(context);

/** One pane: a head, in the view that is chosen. */
class Pane {
  constructor(box, explorer, isFirst) {
    this.box = box;
    this.explorer = explorer;
    this.title = element("h2");
    this.kind = element("span", { className: "kind" });
    this.path = element("span", { className: "path" });
    this.body = element("div", { className: "body" });
    this.note = element("p", { className: "hint note" });
    this.sees = element("p", { className: "sees" });
    this.said = element("p", { className: "said" });
    this.said.setAttribute("role", "status");
    const heading = element("div", { className: "pane-heading" });
    heading.append(this.title, this.kind);
    const { models } = explorer.data;
    if (models.length > 1) {
      this.model = element("select");
      this.model.setAttribute("aria-label", "Model");
      this.model.append(...models.map((name, number) => new Option(name, number)));
      this.model.addEventListener("change", () => this.#change({ model: Number(this.model.value) }, isFirst));
      heading.append(this.model);
    }
    heading.append(this.path);
    box.append(heading, this.sees, this.said, this.body, this.note);
    box.setAttribute("aria-label", isFirst ? "Head" : "Head beside it");
  }

  #change(values, isFirst) {
    this.explorer.change(isFirst ? values : { second: { ...this.explorer.state.second, ...values } });
  }

  async show(chosen) {
    const { explorer } = this;
    const { data, state } = explorer;
    const group = data.groups[state.group];
    const layer = group.seen[chosen.model][chosen.layer];
    const head = layer?.heads[chosen.head];
    const name = chosen.head < 0 ? "mean of heads" : `Head ${chosen.head + 1}`;
    this.title.textContent = `Layer ${chosen.layer + 1} · ${name}`;
    this.kind.textContent = head ? KIND_NAMES[head.kind] : "";
    const shares = Object.entries(head?.scores ?? {}).map(([kind, score]) => `${KIND_NAMES[kind]} ${percent(score)}`);
    this.kind.title = shares.join(", ");
    this.kind.hidden = !head;
    this.path.textContent = layer?.path ?? "";
    if (this.model) this.model.value = chosen.model;
    const form = JSON.stringify(chosen);
    this.wanted = form;
    if (!layer || (chosen.head >= 0 && !head)) return this.#showNothing(chosen, layer);
    const scores = await explorer.maps.scores({ ...chosen, group: state.group });
    if (this.wanted !== form) return;
    const units = explorer.units();
    this.matrix = matrixOf(scores, group.keys.length, units.q, units.k);
    this.chosen = chosen;
    if (this.viewName !== state.view) {
      this.view?.close();
      this.body.className = `body ${state.view}`;
      const actions = { point: (place) => explorer.point(place), pin: (place, stays) => explorer.pin(place, stays) };
      this.view = new VIEWS[state.view](this.body, actions, penOf, data.image);
      this.viewName = state.view;
    }
    this.view.show(this.matrix, this.look());
    this.#see(chosen, head);
    this.#say();
  }

  /** One sentence of what this head does; of one without a pattern, and of the mean of heads, what is strongest in it. */
  #see(chosen, head) {
    const part = head ? `head ${chosen.head + 1}` : "all heads together";
    this.sees.replaceChildren(`Layer ${chosen.layer + 1}, ${part}: `);
    const { kind, scores } = head ?? { kind: "mixed" };
    const habit = HABITS[kind](this.explorer.unitName());
    if (kind !== "mixed") {
      const share = kind === "broad" ? "" : `, with ${percent(scores[kind])} of its attention`;
      this.sees.append(`${habit}${share}.`);
      return;
    }
    const { row, column, score } = strongest(this.matrix);
    this.sees.append(head ? `${habit}. At its strongest, ` : "at their strongest, ");
    this.sees.append(nameOf(this.matrix.rows[row]), " looks at ", nameOf(this.matrix.columns[column]), ` (${percent(score)}).`);
  }

  /** Where another model has a layer or a head, and this one none. */
  #showNothing({ model, layer: number, head }, layer) {
    const { data } = this.explorer;
    const lacks = layer
      ? `no head ${head + 1} in this layer: it has ${layer.heads.length}`
      : `no layer ${number + 1} of this kind`;
    this.view?.close();
    this.view = null;
    this.viewName = null;
    this.matrix = null;
    this.sees.textContent = "";
    this.said.textContent = "";
    this.note.textContent = "";
    this.body.className = "body";
    this.body.replaceChildren(element("p", { className: "hint absent" }, `${data.models[model]} has ${lacks}.`));
  }

  look() {
    const note = (text) => {
      if (this.note.textContent !== text) this.note.textContent = text;
    };
    return { ...this.explorer.look(), note };
  }

  draw() {
    if (!this.matrix) return;
    this.view.draw(this.look());
    this.#say();
  }

  #say() {
    const { pointing } = this.explorer.look();
    const { matrix } = this;
    if (!pointing) {
      this.said.textContent = this.viewName === "image" ? "" : "Point at a word, on either side. A click holds it.";
      return;
    }
    const isQuery = pointing.side === "q";
    const own = isQuery ? matrix.rows : matrix.columns;
    const others = isQuery ? matrix.columns : matrix.rows;
    const scores = lineOf(matrix, pointing);
    this.said.replaceChildren(nameOf(own[pointing.unit]));
    if (pointing.other !== undefined) {
      this.said.append(" looks at ", nameOf(others[pointing.other]), ` ${percent(scores[pointing.other])}`);
      return;
    }
    const ranked = Array.from(scores, (score, other) => [score, other]).sort((a, b) => b[0] - a[0]);
    const best = ranked.slice(0, MOST_NAMED).filter(([score]) => score > LEAST_NAMED);
    this.said.append(isQuery ? " looks at " : " is looked at by ");
    best.forEach(([score, other], rank) => this.said.append(rank ? ", " : "", nameOf(others[other]), ` ${percent(score)}`));
    if (!best.length) this.said.append("nothing");
  }

  async drawing() {
    const look = this.look();
    if (this.viewName === "image") {
      const { image } = this.explorer.data;
      return ImageView.drawing(this.matrix, look, await pictureOf(image), image);
    }
    const view = this.viewName === "lines" ? LinesView : MatrixView;
    return view.drawing(this.matrix, look, new CanvasPen(element("canvas").getContext("2d")));
  }

  close() {
    this.view?.close();
    this.box.replaceChildren();
  }
}

function nameOf(unit) {
  return element("bdi", { className: "token" }, unit.plain || "␣");
}

/** The largest score of a matrix between units that are not special, or if there are none, of all. */
function strongest({ rows, columns, at }) {
  let best = { row: 0, column: 0, score: at(0, 0), isText: false };
  rows.forEach((query, row) => columns.forEach((key, column) => {
    const isText = !query.isSpecial && !key.isSpecial;
    const score = at(row, column);
    if (isText === best.isText ? score > best.score : isText && score > 0) best = { row, column, score, isText };
  }));
  return best;
}

export class ExplorerPage {
  constructor(root, data, textOf, number) {
    this.root = root;
    this.data = data;
    this.number = number;
    this.maps = new Maps(data, textOf);
    this.colours = coloursOf(root);
    this.hovered = null;
    const $ = (part) => root.querySelector(`[data-part="${part}"]`);
    this.$ = $;
    $("title").textContent = data.title;
    $("title").title = data.title; // of a long one, the page shows the beginning
    this.state = this.#start();
    this.#readAddress();
    this.overview = new Overview({ grid: $("grid"), chips: $("chips") }, data, (values) => this.change(values));
    this.steps = new StepsCard($("steps"), (step) => this.change({ step, pin: null }));
    this.first = new Pane($("first"), this, true);
    this.second = null;
    this.#build();
    this.#listen();
    this.ready = this.show().then(() => this.#shade());
  }

  // The state, and the address that holds it.

  #start() {
    const { groups, image } = this.data;
    const group = Math.max(groups.findIndex((one) => one.kind === "cross"), 0);
    const model = this.data.models.length - 1;
    const isShort = groups[group].queries.length + groups[group].keys.length <= 2 * LONG_TEXT;
    let view = isShort ? "lines" : "text";
    if (image) view = "image";
    return {
      model, group, ...this.#clearestHead(group, model), view,
      level: "token", hide: false, threshold: 0, shade: "relative", zoom: 1, pin: null, step: -1,
      sort: "layer", kind: "", search: "", second: null,
    };
  }

  /** The head that tells most at first sight; the mean of the only layer where no head tells anything. */
  #clearestHead(group, model) {
    const layers = this.data.groups[group].seen[model];
    const heads = layers.flatMap((layer, l) => layer?.heads.map((head, h) => ({ layer: l, head: h, worth: worthOf(head) })) ?? []);
    const [{ layer, head }] = [...heads.sort((a, b) => b.worth - a.worth), { layer: 0, head: -1 }];
    return { layer, head };
  }

  #prefix() {
    return this.number ? `e${this.number}.` : "";
  }

  #readAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    const { state, data } = this;
    const read = (name) => given.get(this.#prefix() + name);
    const whole = (name, least, most) => {
      const text = read(name) ?? "";
      const value = Number(text);
      return /^-?\d+$/.test(text) && value >= least && value <= most ? value : null;
    };
    const group = data.groups.findIndex((one) => one.kind === read("kind"));
    state.model = whole("model", 0, data.models.length - 1) ?? state.model;
    if (group >= 0 && group !== state.group) Object.assign(state, { group }, this.#clearestHead(group, state.model));
    // Whether some model has it: the page says where another has none.
    const exists = (layer, head) =>
      layer >= 0 &&
      layer < data.groups[state.group].paths.length &&
      data.models.some((_, model) => head < this.maps.numHeads(model, state.group, layer));
    const layer = whole("layer", 1, 1e6);
    const head = whole("head", 0, 1e6);
    if (layer !== null && head !== null && exists(layer - 1, head - 1)) {
      state.layer = layer - 1;
      state.head = head - 1;
    }
    if (Object.hasOwn(VIEWS, read("view")) && (read("view") !== "image" || data.image)) state.view = read("view");
    if (read("level") === "word") state.level = "word";
    if (read("shade") === "absolute") state.shade = "absolute";
    if (read("hide") === "1") state.hide = true;
    const threshold = Number(read("threshold"));
    if (threshold > 0 && threshold <= 1) state.threshold = threshold;
    state.zoom = whole("zoom", 1, MOST_ZOOM) ?? 1;
    if (Object.hasOwn(KIND_NAMES, read("sort"))) state.sort = read("sort");
    if (Object.hasOwn(KIND_NAMES, read("only"))) state.kind = read("only");
    state.search = read("search") ?? "";
    const pin = /^([qk])(\d+)$/.exec(read("pin") ?? "");
    if (pin) state.pin = { side: pin[1], token: Number(pin[2]) };
    if (data.steps) state.step = (whole("step", 1, data.steps.length) ?? 0) - 1;
    const beside = /^(\d+)\.(\d+)\.(\d+)$/.exec(read("beside") ?? "");
    if (beside) {
      const [model, second, secondHead] = beside.slice(1).map(Number);
      if (model < data.models.length && exists(second - 1, secondHead - 1)) {
        state.second = { model, layer: second - 1, head: secondHead - 1 };
      }
    }
  }

  #writeAddress() {
    const { state, data } = this;
    const given = new URLSearchParams(location.hash.slice(1));
    const values = {
      kind: data.groups.length > 1 ? data.groups[state.group].kind : "",
      layer: state.layer + 1,
      head: state.head + 1,
      view: state.view,
      model: data.models.length > 1 ? state.model : "",
      level: state.level === "word" ? "word" : "",
      shade: state.shade === "absolute" ? "absolute" : "",
      hide: state.hide ? 1 : "",
      threshold: state.threshold || "",
      zoom: state.zoom > 1 ? state.zoom : "",
      sort: state.sort === "layer" ? "" : state.sort,
      only: state.kind,
      search: state.search,
      pin: state.pin ? `${state.pin.side}${state.pin.token}` : "",
      step: state.step >= 0 ? state.step + 1 : "",
      beside: state.second ? [state.second.model, state.second.layer + 1, state.second.head + 1].join(".") : "",
    };
    for (const [name, value] of Object.entries(values)) {
      if (value === "") given.delete(this.#prefix() + name);
      else given.set(this.#prefix() + name, value);
    }
    try {
      history.replaceState(null, "", `#${given}`);
    } catch {
      // a frame of a notebook has no address of its own
    }
  }

  change(values) {
    const before = this.state.group;
    Object.assign(this.state, values);
    if (this.state.group !== before) {
      Object.assign(this.state, { pin: null, second: null, kind: "", sort: "layer" }, this.#clearestHead(this.state.group, this.state.model));
    }
    this.hovered = null;
    this.#writeAddress();
    this.ready = this.show();
  }

  // What the views share.

  /** The units of both sides at the level that is chosen, without special tokens if they are hidden. */
  units() {
    const { state, data } = this;
    const form = `${state.group} ${state.level} ${state.hide}`;
    if (this.unitsForm !== form) {
      const group = data.groups[state.group];
      const split = state.level === "word" ? unitsOfWords : unitsOfTokens;
      const shown = (tokens, special) => {
        const units = split(tokens, special);
        const kept = state.hide ? units.filter((unit) => !unit.isSpecial) : units;
        return kept.length ? kept : units;
      };
      this.unitsForm = form;
      this.unitsShown = { q: shown(group.queries, group.specialQueries), k: shown(group.keys, group.specialKeys) };
    }
    return this.unitsShown;
  }

  /** What a person calls a token of this kind of attention. */
  unitName() {
    if (this.data.image) return "patch";
    const group = this.data.groups[this.state.group];
    const units = unitsOfWords(group.queries, group.specialQueries).filter((unit) => !unit.isSpecial);
    return units.every((unit) => unit.tokens.length === 1) ? "word" : "token";
  }

  look() {
    const { state, colours } = this;
    const { kind, isSelf } = this.data.groups[state.group];
    let names = { q: "Query", k: "Key" };
    if (kind === "cross") names = { q: "To write", k: "it looks at" };
    else if (isSelf) names = { q: "This token", k: "looks at" };
    const isAbsolute = state.shade === "absolute";
    return { pointing: this.#pointing(), threshold: state.threshold, isAbsolute, colours, names, zoom: state.zoom };
  }

  /** Where the pointer is; else what is held; else the step of the decoder. */
  #pointing() {
    if (this.hovered) return this.hovered;
    const { pin, step } = this.state;
    const held = pin ?? (step >= 0 && this.#isOfDecoder() ? { side: "q", token: step } : null);
    if (!held) return null;
    const unit = this.units()[held.side].findIndex((one) => one.tokens.includes(held.token));
    return unit < 0 ? null : { side: held.side, unit };
  }

  #isOfDecoder() {
    const { steps, groups } = this.data;
    return steps && steps.length === groups[this.state.group].queries.length && groups[this.state.group].kind !== "encoder";
  }

  point(place) {
    if (JSON.stringify(place) === JSON.stringify(this.hovered)) return;
    this.hovered = place;
    this.first.draw();
    this.second?.draw();
  }

  pin(place, stays = false) {
    if (!place) return this.change({ pin: null });
    const { side } = place;
    const [token] = this.units()[side][place.unit].tokens;
    const { pin } = this.state;
    const isSame = pin && pin.side === side && pin.token === token;
    this.change({ pin: isSame && !stays ? null : { side, token } });
  }

  // From the state to the page.

  #build() {
    const { data, $ } = this;
    const tabs = data.groups.map((group, number) => {
      const tab = element("button", {}, group.label);
      tab.type = "button";
      tab.setAttribute("role", "tab");
      tab.addEventListener("click", () => this.change({ group: number }));
      return tab;
    });
    $("tabs").replaceChildren(...tabs);
    $("tabs").hidden = tabs.length < 2;
    for (const button of $("views").children) button.hidden = button.dataset.view === "image" && !data.image;
    $("levels").hidden = Boolean(data.image);
    $("film").hidden = data.models.length < 2;
    $("beams").hidden = !data.beams?.length;
    if (data.beams?.length) {
      const special = data.groups.flatMap((group) => group.specialQueries.map((number) => group.queries[number]));
      showBeams($("beam-tree"), data.beams, special);
    }
    $("kept").textContent = this.#exactness();
  }

  /** What the page says of how exact its scores are. */
  #exactness() {
    const { kept, leastShare, levels, meanShare } = this.data;
    const one = (1 / levels).toFixed(3);
    const hundredth = (0.1 / levels).toFixed(4);
    const error = `to within √score ÷ ${levels}: ${one} for a score of 1, ${hundredth} for one of 0.01`;
    if (kept === null) return `Every score is here, ${error}.`;
    const shares = `${percent(meanShare)} of the attention on average, ${percent(leastShare)} at least`;
    return `The ${kept} largest scores of each query are here, ${error}. They hold ${shares}; the rest is shown as 0.`;
  }

  async show() {
    const { state, data, $ } = this;
    const group = data.groups[state.group];
    [...$("tabs").children].forEach((tab, number) => tab.setAttribute("aria-selected", number === state.group));
    const heads = group.seen.flat().flatMap((layer) => layer?.heads ?? []);
    const kinds = Object.keys(KIND_NAMES).filter((kind) => heads.some((head) => kind in head.scores));
    $("sort").replaceChildren(new Option("by layer", "layer"), ...kinds.map((kind) => new Option(`most: ${KIND_NAMES[kind]}`, kind)));
    $("sort").value = state.sort;
    if ($("search").value !== state.search) $("search").value = state.search;
    for (const button of $("views").children) button.setAttribute("aria-pressed", button.dataset.view === state.view);
    for (const button of $("levels").children) button.setAttribute("aria-pressed", button.dataset.level === state.level);
    $("zooms").querySelector("[data-zoom=in]").disabled = state.zoom >= MOST_ZOOM;
    $("zooms").querySelector("[data-zoom=out]").disabled = state.zoom <= 1;
    $("zooms").hidden = state.view !== "matrix";
    $("threshold").value = Math.sqrt(state.threshold);
    $("threshold-said").textContent = percent(state.threshold);
    $("threshold").setAttribute("aria-valuetext", percent(state.threshold));
    $("hide").checked = state.hide;
    $("hide-box").hidden = !group.specialQueries.length && !group.specialKeys.length;
    $("absolute").checked = state.shade === "absolute";
    $("beside").setAttribute("aria-pressed", Boolean(state.second));
    $("beside").textContent = state.second ? "One head" : "Side by side";
    $("panes").classList.toggle("two", Boolean(state.second));
    $("second").hidden = !state.second;
    $("steps").hidden = !this.#isOfDecoder();
    if (this.#isOfDecoder()) this.#showSteps();
    if (state.second && !this.second) this.second = new Pane($("second"), this, false);
    if (!state.second && this.second) {
      this.second.close();
      this.second = null;
    }
    const { model, layer, head } = state;
    await Promise.all([
      this.overview.show(state, this.colours),
      this.first.show({ model, layer, head }),
      this.second?.show(state.second),
    ]);
    for (const format of ["png", "svg", "json"]) $(format).disabled = !this.first.matrix;
  }

  /** A page that opens on the text itself holds the word that looks most sharply, so that there is something to see. */
  #shade() {
    const { state, first } = this;
    if (location.hash.length > 1 || state.view !== "text" || state.pin || !first.matrix) return undefined;
    const { row } = strongest(first.matrix);
    Object.assign(state, { pin: { side: "q", token: first.matrix.rows[row].tokens[0] } });
    return this.show();
  }

  #showSteps() {
    const { data, state } = this;
    const decoder = data.groups.find((group) => group.kind === "decoder") ?? data.groups[state.group];
    const cross = data.groups.find((group) => group.kind === "cross");
    const readable = (group) => {
      const units = unitsOfTokens(group.queries, group.specialQueries);
      return units.map((unit, number) => ({ text: unit.plain || "␣", token: group.queries[number] }));
    };
    const read = decoder.kind === "cross" ? null : readable(decoder);
    let written = null;
    if (cross) written = readable(cross);
    // Without cross-attention, what a step wrote is what the next one reads; the last one wrote nothing that is read.
    else if (state.step < read.length - 1) written = read.slice(1);
    this.steps.show(data.steps, state.step, read?.map(({ text }) => text), written);
  }

  // What the page listens to.

  #listen() {
    const { $, root } = this;
    $("sort").addEventListener("change", () => this.change({ sort: $("sort").value }));
    $("search").addEventListener("input", () => this.change({ search: $("search").value }));
    $("views").addEventListener("click", (event) => event.target.dataset.view && this.change({ view: event.target.dataset.view }));
    $("levels").addEventListener("click", (event) => event.target.dataset.level && this.change({ level: event.target.dataset.level }));
    $("zooms").addEventListener("click", (event) => {
      const factor = { in: 2, out: 0.5 }[event.target.dataset.zoom];
      if (factor) this.change({ zoom: Math.min(Math.max(this.state.zoom * factor, 1), MOST_ZOOM) });
    });
    $("threshold").addEventListener("input", () => {
      const threshold = Number($("threshold").value) ** 2; // the slider is finer where scores are small
      this.change({ threshold: Number(threshold.toFixed(4)) });
    });
    $("hide").addEventListener("change", () => this.change({ hide: $("hide").checked }));
    $("absolute").addEventListener("change", () => this.change({ shade: $("absolute").checked ? "absolute" : "relative" }));
    $("beside").addEventListener("click", () => this.#toggleBeside());
    $("film").addEventListener("click", () => this.#film());
    for (const format of ["png", "svg", "json"]) $(format).addEventListener("click", () => this.save(format));
    document.addEventListener("keydown", (event) => this.#key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.colours = coloursOf(root);
      this.show();
    });
    addEventListener("hashchange", () => {
      Object.assign(this.state, this.#start());
      this.#readAddress();
      this.ready = this.show();
    });
  }

  #toggleBeside() {
    const { state, data } = this;
    if (state.second) return this.change({ second: null });
    const numModels = data.models.length;
    const model = (state.model + numModels - 1) % numModels; // the one before, if there are several
    this.change({ second: { model, layer: state.layer, head: state.head } });
  }

  /** Shows the models one after the other, from the first to the last. */
  async #film() {
    if (this.playing) {
      this.playing = false;
      return;
    }
    this.playing = true;
    const button = this.$("film");
    button.textContent = "Stop";
    for (let model = 0; model < this.data.models.length && this.playing; model++) {
      this.change({ model });
      await this.ready;
      await new Promise((resolve) => setTimeout(resolve, FILM_MILLISECONDS));
    }
    this.playing = false;
    button.textContent = "Play film";
  }

  async save(format) {
    const { state, data, colours } = this;
    const { kind, seen } = data.groups[state.group];
    const layer = state.layer + 1;
    const head = state.head < 0 ? "mean" : state.head + 1;
    const path = seen[state.model][state.layer]?.path;
    const model = data.models[state.model];
    const description = { title: data.title, kind, layer, head, path, model, level: state.level, kept: data.kept };
    const parts = ["attention", kind, "layer", layer, head === "mean" ? "mean" : `head-${head}`];
    const name = parts.filter((part) => part !== "").join("-");
    await this.ready;
    if (!this.first.matrix) return;
    let blob;
    if (format === "json") blob = asJson(description, this.first.matrix);
    else if (format === "png") blob = await asPng(await this.first.drawing(), colours.card);
    else blob = asSvg(await this.first.drawing(), colours.card);
    download(blob, `${name}.${format}`);
  }

  #key(event) {
    const { activeElement } = document;
    const isOurs = this.root.contains(activeElement) || (activeElement === document.body && this.number === 0);
    const isShortcut = event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented;
    if (!isOurs || isShortcut || activeElement.matches(TYPING)) return;
    const { state, data } = this;
    const views = [...this.$("views").children].filter((button) => !button.hidden).map((button) => button.dataset.view);
    const layers = data.groups[state.group].paths.length;
    const count = (layer) => this.maps.numHeads(state.model, state.group, layer);
    const headAfter = (change) => {
      const head = state.head + change;
      if (head >= 0 && head < count(state.layer)) return { head };
      let { layer } = state;
      for (let left = layers; left > 0; left--) {
        layer = (layer + change + layers) % layers;
        if (count(layer)) return { layer, head: change > 0 ? 0 : count(layer) - 1 };
      }
      return {};
    };
    const actions = {
      Escape: () => this.change({ pin: null, step: -1 }),
      "]": () => this.change(headAfter(1)),
      "[": () => this.change(headAfter(-1)),
      m: () => this.change({ head: state.head < 0 ? 0 : -1 }),
      v: () => this.change({ view: views[(views.indexOf(state.view) + 1) % views.length] }),
      w: () => data.image || this.change({ level: state.level === "word" ? "token" : "word" }),
      h: () => this.change({ hide: !state.hide }),
      b: () => this.#toggleBeside(),
      k: () => this.change({ group: (state.group + 1) % data.groups.length }),
      ".": () => this.#isOfDecoder() && this.change({ step: Math.min(state.step + 1, data.steps.length - 1), pin: null }),
      ",": () => this.#isOfDecoder() && this.change({ step: Math.max(state.step - 1, -1), pin: null }),
      "/": () => this.$("search").focus(),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }
}

const PARSING_MILLISECONDS = 15;

/** The text of a layer's heads, which the browser may still be reading; a promise. */
async function textIn(root, place) {
  const find = () => root.querySelector(`[data-heads="${place}"]`);
  while (document.readyState === "loading" && !find()?.nextElementSibling) {
    await new Promise((resolve) => setTimeout(resolve, PARSING_MILLISECONDS));
  }
  return find().textContent;
}

[...document.querySelectorAll("[data-explorer]")].forEach((root, number) => {
  const data = JSON.parse(root.querySelector("[data-explorer-data]").textContent);
  root.explorer = new ExplorerPage(root, data, (place) => textIn(root, place), number);
});
