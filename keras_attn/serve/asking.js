// Requests to the server, as TF Serving's REST interface takes them.

// An answer that comes sooner is shown at once; a later one is shown growing until it comes.
const LATE_MILLISECONDS = 100;
const LONGEST_GROWTH = 4096;
// The signatures that tell most of an answer; a model has one of them, and a plain one.
const SEARCHES = [
  "translate", "generate", "translate_n_best",
  "embed", "classify", "classify_images", "spans", "fill", "answer",
  "serving_default",
];

/** The signature that answers a text, or an image, in a mode; or undefined. */
export function signatureOf(model, mode) {
  const names = mode === "sample" ? ["sample"] : SEARCHES;
  return names.find((name) => "inputs" in (model.signatures[name]?.inputs ?? {}));
}

/**
 * The body of a request for one text, or one image as {b64}: every input of the signature, options that were not chosen at their
 * neutral values.
 */
export function requestBody(model, signatureName, content, options) {
  const instance = {};
  for (const name of Object.keys(model.signatures[signatureName].inputs)) {
    const value = name === "inputs" ? content : (options[name] ?? model.neutral[name]);
    if (value === undefined || value === null) {
      throw new Error(`The model's signature ${signatureName} needs ${name}, which this page does not know.`);
    }
    instance[name] = value;
  }
  return JSON.stringify({ signature_name: signatureName, instances: [instance] });
}

export function requestPath(model) {
  return `/v1/models/${encodeURIComponent(model.name)}:predict`;
}

/** The command that sends the same bytes from a shell. */
export function curlLine(model, body) {
  return `curl ${location.origin}${requestPath(model)} -d ${quoted(body)}`;
}

/** A word of a shell's command. */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** The command that sends an image's file from a shell. */
export function curlLineOfFile(model, signatureName, fileName) {
  const marker = "FILE";
  const [before, after] = requestBody(model, signatureName, { b64: marker }, {}).split(marker);
  const parts = `printf %s ${quoted(before)}; base64 < ${quoted(fileName)} | tr -d '\\n'; printf %s ${quoted(after)}`;
  return `(${parts}) | curl ${location.origin}${requestPath(model)} -d @-`;
}

/** Sends a body; returns the whole answer, or throws an Error with one readable line. */
export async function send(path, body, signal) {
  let response;
  try {
    response = await fetch(path, body === undefined ? { signal } : { method: "POST", body, signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error("The server does not answer. Is it still running?", { cause: error });
  }
  const text = await response.text();
  let answer;
  try {
    answer = JSON.parse(text);
  } catch {
    answer = {};
  }
  if (!response.ok || answer.error !== undefined) {
    const reason = answer.error ?? response.statusText;
    throw new Error(`The server answered ${response.status}: ${oneLine(reason)}`);
  }
  return answer;
}

/** The outputs for the one text of a request, by name. */
export async function ask(model, signatureName, body, signal) {
  const { predictions } = await send(requestPath(model), body, signal);
  const [outputs] = predictions ?? [];
  if (outputs === undefined) throw new Error("The server's answer holds no prediction.");
  // The value of a signature's only output stands without its name.
  const isNamed = typeof outputs === "object" && outputs !== null && !Array.isArray(outputs) && !("b64" in outputs);
  return isNamed ? outputs : { [Object.keys(model.signatures[signatureName].outputs)[0]]: outputs };
}

/**
 * Shows the beginning of the answer, longer each time, by greedy calls that may write 2, 4, 8, ... tokens. They begin
 * when the answer itself, which is under way, is late, and end with `signal`. What fails here, the answer will say.
 */
export async function grow(model, signatureName, text, options, signal, show) {
  const { inputs, outputs } = model.signatures[signatureName];
  if (!("max_length" in inputs) || !("status" in outputs)) return;
  const longest = options.max_length || LONGEST_GROWTH;
  try {
    await new Promise((resolve) => setTimeout(resolve, LATE_MILLISECONDS));
    for (let length = 2; length < longest && !signal.aborted; length *= 2) {
      const short = { ...options, num_beams: 1, max_length: length };
      const answer = await ask(model, signatureName, requestBody(model, signatureName, text, short), signal);
      if (signal.aborted) return;
      show(textOf(first(answer.outputs)));
      const status = statusesOf(answer);
      if (!status.includes("unfinished") || status.includes("max_length_clamped")) return;
    }
  } catch {
    return;
  }
}

export function first(value) {
  return Array.isArray(value) ? value[0] : value;
}

export function statusesOf(answer) {
  const status = textOf(answer.status ?? "ok");
  return status.split(",").filter((name) => name && name !== "ok");
}

/** A string of an answer; bytes that are not UTF-8 come in base64. */
export function textOf(value) {
  if (typeof value === "string") return value;
  if (typeof value?.b64 === "string") {
    const bytes = Uint8Array.from(atob(value.b64), (character) => character.charCodeAt(0));
    return new TextDecoder().decode(bytes);
  }
  return value === undefined || value === null ? "" : String(value);
}

function oneLine(reason) {
  const line = String(reason).trim().split("\n")[0];
  return line.length > 300 ? `${line.slice(0, 300)}…` : line;
}
