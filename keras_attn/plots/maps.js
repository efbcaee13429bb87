// The scores of heads, decoded when they are looked at.

const sharesOf = (levels) => Float32Array.from({ length: 256 }, (_, code) => (code / levels) ** 2);
const SHARES = sharesOf(255);
const CACHED_BYTES = 40e6;

/** The bytes behind base64 of zlib's format. */
export async function inflated(base64) {
  const bytes = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(base64)
    : Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The score that a code of a thumbnail stands for. */
export function shareOf(code) {
  return SHARES[code];
}

/** The maps of an explorer: `data` is what Python wrote, `textOf(place)` a promise of the base64 of a layer's heads. */
export class Maps {
  constructor(data, textOf) {
    this.data = data;
    this.textOf = textOf;
    this.shares = sharesOf(data.levels);
    this.cache = new Map();
  }

  /** How many heads a model has in a layer; none where it has no such layer. */
  numHeads(model, group, layer) {
    return this.data.groups[group].seen[model][layer]?.heads.length ?? 0;
  }

  /** The scores of a head, or if `head` is -1 the mean of a layer's heads: a promise of T x S floats. */
  scores({ model, group, layer, head }) {
    const place = `${model}.${group}.${layer}.${head}`;
    const cached = this.cache.get(place);
    this.cache.delete(place);
    const promise = cached ?? (head < 0 ? this.#mean(model, group, layer) : this.#decoded(model, group, layer, head));
    this.cache.set(place, promise);
    this.#forget();
    return promise;
  }

  #forget() {
    const { groups } = this.data;
    const bytes = (place) => {
      const group = groups[place.split(".")[1]];
      return 4 * group.queries.length * group.keys.length;
    };
    let total = 0;
    for (const place of [...this.cache.keys()].reverse()) {
      total += bytes(place);
      if (total > CACHED_BYTES && place !== [...this.cache.keys()].at(-1)) this.cache.delete(place);
    }
  }

  async #decoded(model, group, layer, head) {
    const { queries, keys } = this.data.groups[group];
    const text = await this.textOf(`${model}.${group}.${layer}`);
    const bytes = await inflated(text.split(" ")[head]);
    const { shares } = this;
    const scores = new Float32Array(queries.length * keys.length);
    const { kept } = this.data;
    if (kept === null) {
      for (let place = 0; place < scores.length; place++) scores[place] = shares[bytes[place]];
      return scores;
    }
    // Three planes: codes, and the low and the high byte of the steps from key to key.
    const plane = queries.length * kept;
    for (let query = 0; query < queries.length; query++) {
      let key = 0;
      for (let place = query * kept; place < (query + 1) * kept; place++) {
        key += bytes[plane + place] + 256 * bytes[2 * plane + place];
        if (bytes[place]) scores[query * keys.length + key] = shares[bytes[place]];
      }
    }
    return scores;
  }

  async #mean(model, group, layer) {
    const count = this.numHeads(model, group, layer);
    let mean = null;
    for (let head = 0; head < count; head++) {
      const scores = await this.#decoded(model, group, layer, head);
      if (!mean) mean = scores;
      else for (let place = 0; place < mean.length; place++) mean[place] += scores[place];
    }
    for (let place = 0; place < mean.length; place++) mean[place] /= count;
    return mean;
  }
}

/**
 * Scores of tokens as those of units (tokens or words): of the tokens of a query the mean, of those of a key the sum.
 * `rows` and `columns` are the units that are shown; returns {rows, columns, values, largest, at(row, column)}.
 */
export function matrixOf(scores, numKeys, rows, columns) {
  const width = columns.length;
  const values = new Float32Array(rows.length * width);
  const single = columns.every((unit) => unit.tokens.length === 1);
  const keys = Int32Array.from(columns, (unit) => unit.tokens[0]);
  rows.forEach((row, r) => {
    const share = 1 / row.tokens.length;
    for (const query of row.tokens) {
      const start = query * numKeys;
      for (let c = 0; c < width; c++) {
        if (single) values[r * width + c] += share * scores[start + keys[c]];
        else for (const key of columns[c].tokens) values[r * width + c] += share * scores[start + key];
      }
    }
  });
  return { rows, columns, values, largest: largestOf(values), at: (row, column) => values[row * width + column] };
}

/** The largest of an array of scores, which may be too long for Math.max. */
export function largestOf(scores) {
  return scores.reduce((most, score) => Math.max(most, score), 0);
}

/** The scores of a query's row, or of a key's column. */
export function lineOf(matrix, { side, unit }) {
  const width = matrix.columns.length;
  if (side === "q") return matrix.values.subarray(unit * width, (unit + 1) * width);
  return Float32Array.from(matrix.rows, (_, row) => matrix.values[row * width + unit]);
}
