// The page of `keras-attn serve`: what was typed and chosen becomes requests, and their answers are shown.
// What it knows of a task is in `model.task`, the declaration that the export carries (assets.extra/task.json).
// Text of users and models is only ever written with textContent and value, never as markup.

import { AlignmentView } from "./alignment.js";
import { AttentionPanel, showBest, showNotes, viewOf } from "./answers.js";
import { ImageBox, inputOfKind, optionsOf, parsedOption, showOptions, showSignatures } from "./inputs.js";
import { ask, curlLine, curlLineForFile, grow, requestBody, requestPath, send, signatureFor, statusesOf } from "./requests.js";

const $ = (id) => document.getElementById(id);
const PAUSE_MILLISECONDS = 1500; // after it, what is typed next is a new entry of the browser's history

const alignment = new AlignmentView({ box: $("alignment"), lines: $("lines"), source: $("source"), target: $("target") });
const attention = new AttentionPanel({
  panel: $("attention-panel"), note: $("attention-note"), frame: $("attention-frame"), link: $("attention"),
});
const image = new ImageBox(
  { box: $("image-box"), input: $("image"), shown: $("image-shown"), paste: document }, () => changed(),
);
const TABS = ["answer", "attention"];
const MODES = ["search", "sample"];
let models = [];
const MOST_COMPARED = 63; // with the text itself, as many as the server takes at once
const state = { model: null, text: "", compared: "", mode: "search", view: "answer", options: {} };
let running = null; // the AbortController of the newest request
let typing = 0; // the timer that waits for the end of typing
let pausing = 0;
let isNewEntry = false;

// The state in the address.

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  state.model = models.find((model) => model.name === given.get("model")) ?? models[0];
  state.text = given.get("text") ?? "";
  state.compared = given.get("compared") ?? "";
  state.mode = given.get("mode") === "sample" && canSample() ? "sample" : "search";
  state.view = given.get("view") === "attention" ? "attention" : "answer";
  state.options = {};
  for (const mode of canAsk() ? MODES : []) {
    const signatureName = signatureFor(state.model, mode);
    for (const [name, input] of signatureName ? optionsOf(state.model, signatureName) : []) {
      const value = given.has(name) ? parsedOption(input, given.get(name)) : undefined;
      if (value !== undefined) state.options[name] = value;
    }
  }
}

function writeAddress() {
  const given = new URLSearchParams({ model: state.model.name, text: state.text });
  if (state.compared && comparesTexts()) given.set("compared", state.compared);
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

/** Whether the page knows how to ask the model: its export declares it. */
function canAsk() {
  return Boolean(state.model.task?.ask);
}

function canSample() {
  return Boolean(state.model.task?.sample);
}

/** The name of the signature that answers what is chosen. */
function chosenSignature() {
  return signatureFor(state.model, state.mode);
}

function readsImages() {
  return inputOfKind(state.model, chosenSignature(), "image") !== undefined;
}

/** The second text of a model that reads two, or undefined. */
function secondText() {
  const name = inputOfKind(state.model, chosenSignature(), "second_text");
  return name === undefined ? undefined : (state.options[name] ?? "");
}

/** Whether the answer is a vector, which says something beside those of other texts. */
function comparesTexts() {
  return canAsk() && state.model.task.signatures[chosenSignature()].view === "vector";
}

/** The texts to compare with. */
function comparedTexts() {
  if (!comparesTexts()) return [];
  const lines = state.compared.split("\n").map((line) => line.trim());
  return lines.filter(Boolean).slice(0, MOST_COMPARED);
}

function showState() {
  const { model } = state;
  $("model").value = model.name;
  $("version").textContent = model.version === undefined ? "" : `version ${model.version}`;
  document.title = `${model.name} · keras-attn`;
  for (const id of ["ask", "options-card", "tabs"]) $(id).hidden = !canAsk();
  $("raw").hidden = canAsk();
  $("request-card").hidden = true;
  showFailure(null);
  clearAnswer();
  showView();
  if (!canAsk()) {
    $("undeclared").hidden = model.task !== null;
    showSignatures($("signatures"), $("body"), model);
    $("reply").textContent = "";
    return;
  }
  const { labels } = model.task;
  $("text-label").textContent = labels.input;
  $("text").placeholder = labels.placeholder;
  $("answer-label").textContent = labels.output;
  $("text").hidden = readsImages();
  $("text-label").htmlFor = readsImages() ? "image" : "text";
  $("image-box").hidden = !readsImages();
  if ($("text").value !== state.text) $("text").value = state.text;
  $("lines-box").hidden = !comparesTexts();
  if ($("compared").value !== state.compared) $("compared").value = state.compared;
  showControls();
}

function showControls() {
  const { model } = state;
  $("modes").hidden = !canSample();
  for (const radio of document.getElementsByName("mode")) radio.checked = radio.value === state.mode;
  $("again").hidden = state.mode !== "sample" || seedName() === undefined;
  showOptions($("options"), model, chosenSignature(), state.options, (name, value) => {
    if (value === undefined) delete state.options[name];
    else state.options[name] = value;
    changed();
  });
  $("options-card").hidden = !optionsOf(model, chosenSignature()).length && !canSample();
}

/** The option that "Draw again" raises by one. */
function seedName() {
  return inputOfKind(state.model, chosenSignature(), "seed");
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
  $("notes").replaceChildren();
}

/** Shows an answer, or its beginning, in the box of answers; returns its view. */
function showInBox(signature, answer, compared = []) {
  const view = viewOf(signature, answer, state.text, compared.length ? compared : secondText());
  $("answer").replaceChildren(...view.nodes);
  return view;
}

function showAnswer(signature, answer, milliseconds, attended, compared) {
  const statuses = statusesOf(answer);
  const view = showInBox(signature, answer, compared);
  $("answer-label").textContent = compared.length ? "Closest" : state.model.task.labels.output;
  $("best-label").textContent = view.title ?? "Best answers";
  $("answer").classList.toggle("nothing", !$("answer").textContent);
  $("time").textContent = `${Math.round(milliseconds)} ms`;
  $("copy-answer").hidden = false;
  $("best-card").hidden = !view.bars.length;
  $("best-hint").hidden = !view.lengthOf;
  showBest($("best"), view);
  showNotes($("notes"), state.model.task, statuses);
  attention.want(state.model, attended);
  $("alignment-card").hidden = false; // lines are measured
  $("alignment-card").hidden = !alignment.show(answer, !statuses.includes("unfinished"));
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
  const { model, text } = state;
  const { file } = image;
  const content = readsImages() ? image.content : text;
  const signatureName = chosenSignature();
  const signature = model.task.signatures[signatureName];
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
    const compared = comparedTexts();
    const body = requestBody(model, signatureName, content, options, compared);
    showRequest(readsImages() ? curlLineForFile(model, signatureName, file.name) : curlLine(model, body));
    const begin = performance.now();
    grow(model, signatureName, content, options, AbortSignal.any([signal, growth.signal]), (beginning) => {
      $("answer").classList.remove("old", "nothing");
      showInBox(signature, beginning);
    });
    const answer = await ask(model, signatureName, body, signal);
    growth.abort();
    model.milliseconds = performance.now() - begin;
    const attended = readsImages()
      ? model.shows_attention && (await send("/page/images", file, signal))
      : { text, pair: secondText() };
    showAnswer(signature, answer, model.milliseconds, attended, compared);
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
    const answer = await send(requestPath(model), body, signal);
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
$("compared").addEventListener("input", () => {
  state.compared = $("compared").value;
  changed();
});
$("compared").addEventListener("change", () => (isNewEntry = true));
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
  const name = seedName();
  const { neutral } = state.model.task.signatures[chosenSignature()].inputs[name];
  state.options[name] = (state.options[name] ?? neutral) + 1;
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
