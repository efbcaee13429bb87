// The page of `keras-attn serve`: what was typed and chosen becomes requests, and their answers are shown.
// Text of users and models is only ever written with textContent and value, never as markup.

import { AlignmentView } from "./alignment.js";
import { AttentionPanel } from "./attention.js";
import { ask, curlLine, curlLineOfFile, grow, requestBody, send, signatureOf, statusesOf, textOf } from "./asking.js";
import { ImageBox } from "./image.js";
import { optionsOf, parsedOption, showOptions } from "./options.js";
import { showBest, showNotes } from "./answers.js";
import { showSignatures } from "./signatures.js";
import { viewOf } from "./views.js";

const $ = (id) => document.getElementById(id);
const UNFOUND_SCORE = -1e29; // a search that found fewer answers fills up with -1e30
// For each kind of model: the label of the text, what stands in its empty box, the label of the answer.
const WORDS = {
  translator: ["Text", "Type a text to translate", "Translation"],
  text_generator: ["Prompt", "Type how it begins", "Continuation"],
  text_embedder: ["Text", "Type a text", "Vector"],
  text_classifier: ["Text", "Type a text to classify", "Label"],
  image_classifier: ["Image", "", "Label"],
  token_classifier: ["Text", "Type a text to find spans in", "Spans"],
  mask_filler: ["Text", "Type a text with a mask", "Filled"],
  question_answerer: ["Question", "Type a question, and its context beside", "Answer"],
};
const PAUSE_MILLISECONDS = 1500; // after it, what is typed next is a new entry of the browser's history

const alignment = new AlignmentView({ box: $("alignment"), lines: $("lines"), source: $("source"), target: $("target") });
const attention = new AttentionPanel({
  panel: $("attention-panel"), note: $("attention-note"), frame: $("attention-frame"), link: $("attention"),
});
const image = new ImageBox(
  { box: $("image-box"), input: $("image"), shown: $("image-shown"), paste: document }, () => changed(),
);
const TABS = ["answer", "attention"];
let models = [];
const state = { model: null, text: "", mode: "search", view: "answer", options: {} };
let running = null; // the AbortController of the newest request
let typing = 0; // the timer that waits for the end of typing
let pausing = 0;
let isNewEntry = false;

// The state in the address.

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  state.model = models.find((model) => model.name === given.get("model")) ?? models[0];
  state.text = given.get("text") ?? "";
  state.mode = given.get("mode") === "sample" && signatureOf(state.model, "sample") ? "sample" : "search";
  state.view = given.get("view") === "attention" ? "attention" : "answer";
  state.options = {};
  for (const name of Object.keys(state.model.neutral)) {
    const value = given.has(name) ? parsedOption(state.model, name, given.get(name)) : undefined;
    if (value !== undefined && typeof state.model.neutral[name] !== "object") state.options[name] = value;
  }
}

function writeAddress() {
  const given = new URLSearchParams({ model: state.model.name, text: state.text });
  if (state.mode === "sample") given.set("mode", "sample");
  if (state.view === "attention") given.set("view", "attention");
  for (const [name, value] of Object.entries(state.options)) given.set(name, value);
  const address = `#${given}`;
  if (address === location.hash) return;
  if (isNewEntry) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
  isNewEntry = false;
  clearTimeout(pausing);
  pausing = setTimeout(() => (isNewEntry = true), PAUSE_MILLISECONDS);
}

// From the state to the page.

function showState() {
  const { model } = state;
  const isOther = model.kind === "other" || !signatureOf(model, "search");
  $("model").value = model.name;
  $("version").textContent = model.version === undefined ? "" : `version ${model.version}`;
  document.title = `${model.name} · keras-attn`;
  $("ask").hidden = isOther;
  $("options-card").hidden = isOther;
  $("raw").hidden = !isOther;
  $("tabs").hidden = isOther;
  $("request-card").hidden = true;
  showFailure(null);
  clearAnswer();
  showView();
  if (isOther) {
    showSignatures($("signatures"), $("body"), model);
    $("reply").textContent = "";
    return;
  }
  [$("text-label").textContent, $("text").placeholder, $("answer-label").textContent] = WORDS[model.kind];
  $("text").hidden = readsImages();
  $("text-label").htmlFor = readsImages() ? "image" : "text";
  $("image-box").hidden = !readsImages();
  if ($("text").value !== state.text) $("text").value = state.text;
  showControls();
}

function readsImages() {
  return state.model.kind === "image_classifier";
}

function showControls() {
  const { model } = state;
  $("modes").hidden = !signatureOf(model, "sample");
  for (const radio of document.getElementsByName("mode")) radio.checked = radio.value === state.mode;
  $("again").hidden = state.mode !== "sample";
  const signatureName = signatureOf(model, state.mode);
  showOptions($("options"), model, signatureName, state.options, (name, value) => {
    if (value === undefined) delete state.options[name];
    else state.options[name] = value;
    changed();
  });
  $("options-card").hidden = !optionsOf(model, signatureName).length && $("modes").hidden;
}

function showView() {
  const shown = $("tabs").hidden ? "answer" : state.view;
  for (const name of TABS) {
    const isShown = name === shown;
    $(`${name}-tab`).setAttribute("aria-selected", isShown);
    $(`${name}-tab`).tabIndex = isShown ? 0 : -1;
    $(`${name}-panel`).hidden = !isShown;
  }
  attention.load();
}

function chooseView(name) {
  isNewEntry = true;
  state.view = name;
  writeAddress();
  showView();
  $(`${name}-tab`).focus();
}

function clearAnswer() {
  $("answer").replaceChildren();
  $("answer").classList.remove("growing", "old", "nothing");
  $("time").textContent = "";
  for (const id of ["alignment-card", "best-card", "copy-answer"]) $(id).hidden = true;
  attention.clear();
  showNotes($("notes"), []);
}

function showText(text) {
  const parts = [document.createTextNode(text)];
  if (state.model.kind === "text_generator") {
    parts.unshift(Object.assign(document.createElement("span"), { className: "prompt", textContent: state.text }));
  }
  $("answer").replaceChildren(...parts);
}

/** The best answers of a search, the first of which is shown. */
function showFound({ outputs: found, scores: ofFound }) {
  const outputs = [found].flat();
  const scores = [ofFound ?? []].flat();
  showText(textOf(outputs[0]));
  return outputs
    .map((output, rank) => ({ text: textOf(output), score: scores[rank] }))
    .filter(({ score }) => score > UNFOUND_SCORE);
}

function showAnswer(answer, milliseconds, attended) {
  const statuses = statusesOf(answer);
  const view = viewOf(state.model.kind, state.text, state.options, answer);
  if (view) $("answer").replaceChildren(...view.nodes);
  const best = view ? view.bars : showFound(answer);
  $("answer").classList.toggle("nothing", !$("answer").textContent);
  $("time").textContent = `${Math.round(milliseconds)} ms`;
  $("copy-answer").hidden = false;
  $("best-card").hidden = !best.length;
  $("best-hint").hidden = Boolean(view);
  showBest($("best"), best, view ? (score) => score : Math.exp);
  showNotes($("notes"), statuses);
  attention.want(state.model, attended);
  $("alignment-card").hidden = false; // lines are measured
  $("alignment-card").hidden = !alignment.show(answer, !statuses.includes("unfinished"));
}

/** The second text of a model that reads two, or undefined. */
function secondText() {
  const { model, options } = state;
  const { inputs } = model.signatures[signatureOf(model, "search")];
  return "contexts" in inputs ? (options.contexts ?? "") : undefined;
}

function showFailure(error) {
  $("failure").hidden = error === null;
  $("failure-text").textContent = error?.message ?? "";
}

function showGrowing(isGrowing) {
  $("answer").classList.toggle("growing", isGrowing);
  // A screen reader waits for the whole answer.
  $("answer").setAttribute("aria-busy", isGrowing);
}

// Asking.

function changed() {
  writeAddress();
  clearTimeout(typing);
  running?.abort();
  // A model is asked after as long a pause in typing as it needs for an answer.
  const pause = Math.min(Math.max(state.model.milliseconds ?? 0, 50), 400);
  typing = setTimeout(answerText, pause);
}

function setText(text) {
  state.text = text;
  if ($("text").value !== text) $("text").value = text;
  if (models.length) changed();
}

async function answerText() {
  clearTimeout(typing);
  running?.abort();
  showFailure(null);
  const { model, text, mode } = state;
  const { file } = image;
  const content = readsImages() ? image.content : text;
  const signatureName = signatureOf(model, mode);
  if (!content) {
    $("request-card").hidden = true;
    clearAnswer();
    return showGrowing(false);
  }
  const { signal } = (running = new AbortController());
  const growth = new AbortController();
  const options = { ...state.options };
  $("answer").classList.add("old");
  showGrowing(true);
  try {
    const body = requestBody(model, signatureName, content, options);
    showRequest(readsImages() ? curlLineOfFile(model, signatureName, file.name) : curlLine(model, body));
    const begin = performance.now();
    grow(model, signatureName, content, options, AbortSignal.any([signal, growth.signal]), (beginning) => {
      $("answer").classList.remove("old", "nothing");
      showText(beginning);
    });
    const answer = await ask(model, signatureName, body, signal);
    growth.abort();
    model.milliseconds = performance.now() - begin;
    const attended = readsImages()
      ? model.shows_attention && (await send("/page/images", file, signal))
      : { text, pair: secondText() };
    showAnswer(answer, model.milliseconds, attended);
  } catch (error) {
    growth.abort();
    if (signal.aborted) return;
    clearAnswer();
    showFailure(error);
  }
  $("answer").classList.remove("old");
  showGrowing(false);
}

async function answerBody() {
  running?.abort();
  const { signal } = (running = new AbortController());
  showFailure(null);
  const { model } = state;
  try {
    const body = JSON.stringify(JSON.parse($("body").value));
    showRequest(curlLine(model, body));
    const answer = await send(`/v1/models/${encodeURIComponent(model.name)}:predict`, body, signal);
    $("reply").textContent = JSON.stringify(answer, null, 2);
  } catch (error) {
    if (signal.aborted) return;
    $("reply").textContent = "";
    showFailure(error instanceof SyntaxError ? new Error(`The request is not JSON: ${error.message}`) : error);
  }
}

function showRequest(command) {
  $("request").textContent = command;
  $("request-card").hidden = false;
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = "Copy"), PAUSE_MILLISECONDS);
}

// The start, and what the page listens to.

async function start() {
  showFailure(null);
  try {
    models = await send("/page/models");
  } catch (error) {
    return showFailure(error);
  }
  if (!models.length) return showFailure(new Error("The server has no model."));
  $("model").replaceChildren(...models.map((model) => new Option(model.name)));
  $("model").disabled = models.length < 2;
  const typed = $("text").value;
  const isNew = !new URLSearchParams(location.hash.slice(1)).has("text");
  restore();
  if (typed && isNew) setText(typed); // it was typed while the list of models was on its way
}

function restore() {
  running?.abort();
  readAddress();
  showState();
  if (!$("ask").hidden) {
    answerText();
    if (!state.text) $("text").focus();
  }
  isNewEntry = true; // what is changed from here on does not overwrite the entry that led here
}

$("text").addEventListener("input", () => setText($("text").value));
$("text").addEventListener("change", () => (isNewEntry = true));
$("model").addEventListener("change", () => {
  isNewEntry = true;
  state.model = models.find((model) => model.name === $("model").value);
  state.options = {};
  state.mode = "search";
  writeAddress();
  restore();
});
$("modes").addEventListener("change", (event) => {
  isNewEntry = true;
  state.mode = event.target.value;
  showControls();
  changed();
});
for (const name of TABS) {
  const other = TABS.find((tab) => tab !== name);
  $(`${name}-tab`).addEventListener("click", () => chooseView(name));
  $(`${name}-tab`).addEventListener("keydown", ({ key }) => {
    if (key === "ArrowLeft" || key === "ArrowRight") chooseView(other);
  });
}
$("options").addEventListener("change", () => (isNewEntry = true));
$("reset").addEventListener("click", () => {
  isNewEntry = true;
  state.options = {};
  showControls();
  changed();
});
$("again").addEventListener("click", () => {
  state.options.seed = (state.options.seed ?? state.model.neutral.seed) + 1;
  showControls();
  changed();
});
$("retry").addEventListener("click", () => {
  if (!models.length) start();
  else if ($("ask").hidden) answerBody();
  else answerText();
});
$("send").addEventListener("click", answerBody);
$("copy-answer").addEventListener("click", () => copy($("copy-answer"), $("answer").textContent));
$("copy-request").addEventListener("click", () => copy($("copy-request"), $("request").textContent));
addEventListener("popstate", restore);
if (matchMedia("(max-width: 60rem)").matches) $("options-card").open = false;
start();
