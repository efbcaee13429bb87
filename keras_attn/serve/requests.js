// Requests to the server, as TF Serving's REST interface takes them.
// A `model` is what /page/models says: {name, version, task, signatures, ...}; `task` is the declaration of the export.

// An answer that comes sooner is shown at once; a later one is shown growing until it comes.
const LATE_MILLISECONDS = 100;
const LONGEST_GROWTH = 4096;

/** The name of the signature that answers in a mode, "search" or "sample"; null if the model has none. */
export function signatureFor(model, mode) {
  return mode === "sample" ? model.task.sample : model.task.ask;
}

/**
 * The body of a request for one text, or one image as {b64}, and for other texts after it: every input of the signature, options
 * that were not chosen at their neutral values.
 */
export function requestBody(model, signatureName, content, options, others = []) {
  const instances = [content, ...others].map((text) => instanceOf(model, signatureName, text, options));
  return JSON.stringify({ signature_name: signatureName, instances });
}

function instanceOf(model, signatureName, content, options) {
  const instance = {};
  for (const [name, input] of Object.entries(model.task.signatures[signatureName].inputs)) {
    instance[name] = valueOf(input, content, options[name]);
    if (instance[name] === undefined) {
      throw new Error(`The model's signature ${signatureName} needs ${name}, for which its export declares no value.`);
    }
  }
  return instance;
}

function valueOf(input, content, option) {
  const kind = input.widget?.kind;
  if (kind === "text" || kind === "image") return content;
  if (kind === "second_text") return option ?? "";
  return option ?? input.neutral ?? undefined;
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
export function curlLineForFile(model, signatureName, fileName) {
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

function oneLine(reason) {
  const line = String(reason).trim().split("\n")[0];
  return line.length > 300 ? `${line.slice(0, 300)}…` : line;
}

/** The outputs for the one text of a request, by name; where the request has other texts too, `others` are the outputs for them. */
export async function ask(model, signatureName, body, signal) {
  const { predictions } = await send(requestPath(model), body, signal);
  const [first, ...others] = (predictions ?? []).map((outputs) => namedOutputs(model, signatureName, outputs));
  if (first === undefined) throw new Error("The server's answer holds no prediction.");
  return others.length ? { ...first, others } : first;
}

/** The value of a signature's only output stands without its name. */
function namedOutputs(model, signatureName, outputs) {
  const isNamed = typeof outputs === "object" && outputs !== null && !Array.isArray(outputs) && !("b64" in outputs);
  if (isNamed) return outputs;
  const [name] = Object.keys(model.task.signatures[signatureName].outputs);
  return { [name]: outputs };
}

/**
 * Shows the beginning of the answer, longer each time, by quick calls that may write 2, 4, 8, ... tokens. They begin
 * when the answer itself, which is under way, is late, and end with `signal`. What fails here, the answer will say.
 */
export async function grow(model, signatureName, text, options, signal, show) {
  const { beginnings } = model.task.signatures[signatureName];
  if (!beginnings) return;
  const { length: limit, options: quick } = beginnings;
  const longest = options[limit] || LONGEST_GROWTH;
  try {
    await new Promise((resolve) => setTimeout(resolve, LATE_MILLISECONDS));
    for (let length = 2; length < longest && !signal.aborted; length *= 2) {
      const body = requestBody(model, signatureName, text, { ...options, ...quick, [limit]: length });
      const answer = await ask(model, signatureName, body, signal);
      if (signal.aborted) return;
      show(answer);
      const statuses = statusesOf(answer);
      if (!statuses.includes("unfinished") || statuses.includes(`${limit}_clamped`)) return;
    }
  } catch {
    return;
  }
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
