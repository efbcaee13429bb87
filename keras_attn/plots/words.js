// Tokens as a person reads them, and tokens joined to words.

const SPACE_MARK = /▁/gu;
const WORD = /[\p{L}\p{N}\p{M}'’]/u;
// Scripts that write no spaces: each token stays a word of its own.
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}]/u;

// The characters that byte-level BPE writes for bytes: printable ones stand for themselves, the others from U+0100 on.
const BYTE_OF = new Map();
{
  let next = 0x100;
  for (let byte = 0; byte < 0x100; byte++) {
    const isPrintable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
    BYTE_OF.set(String.fromCharCode(isPrintable ? byte : next++), byte);
  }
}
const UNFINISHED = "\ufffd"; // what is decoded of a part of a character

const decoded = (bytes) => new TextDecoder().decode(Uint8Array.from(bytes));

/** Tokens as pieces {text, startsWord, bytes?}: the marks of spaces, of continued words and of bytes are read. */
export function piecesOf(tokens, special) {
  const isSpecial = new Set(special);
  const plain = tokens.filter((_, number) => !isSpecial.has(number));
  const isByteLevel = plain.some((token) => /[ĠĊ]/u.test(token)) && plain.every((token) => [...token].every((one) => BYTE_OF.has(one)));
  const hasSpaceMarks = isByteLevel || plain.some((token) => token.includes("▁"));
  const isCharacters = !hasSpaceMarks && plain.length > 1 && plain.every((token) => [...token].length < 2 || /^<0x..>$/.test(token));
  return tokens.map((token, number) => {
    if (isSpecial.has(number)) return { text: token || "∅", startsWord: true, isSpecial: true };
    const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(token);
    if (byte) return { text: token, startsWord: false, bytes: [parseInt(byte[1], 16)] };
    if (isByteLevel) {
      const bytes = [...token].map((one) => BYTE_OF.get(one));
      const text = decoded(bytes);
      return { text: text.trim(), startsWord: /^\s/.test(text) || number === 0, bytes: bytes.filter((one) => one > 0x20) };
    }
    if (hasSpaceMarks) return { text: token.replace(SPACE_MARK, ""), startsWord: token.startsWith("▁") || number === 0 };
    if (isCharacters) return { text: token.trim(), startsWord: /^\s/.test(token) };
    if (/^##./.test(token)) return { text: token.slice(2), startsWord: false };
    return { text: token, startsWord: true };
  });
}

/** What is written for each token: a space of its own and a continued word can be seen. */
export function unitsOfTokens(tokens, special) {
  return piecesOf(tokens, special).map((piece, number) => {
    const continuesWord = number > 0 && !piece.startsWord && WORD.test(piece.text[0]);
    return {
      text: continuesWord ? `·${piece.text}` : piece.text || "␣",
      plain: piece.text,
      tokens: [number],
      startsWord: piece.startsWord,
      isSpecial: Boolean(piece.isSpecial),
    };
  });
}

/** Tokens joined to words {text, plain, tokens, startsWord, isSpecial}. Punctuation stands alone; so do spaces at the end (`isSpace`). */
export function unitsOfWords(tokens, special) {
  const words = [];
  let spaces = []; // a space that is a token of its own belongs to the word that follows
  for (const piece of wholeCharacters(piecesOf(tokens, special))) {
    if (!piece.text) {
      spaces.push(...piece.tokens);
      continue;
    }
    const startsWord = piece.startsWord || spaces.length > 0;
    const last = words.at(-1);
    if (last && !startsWord && isOneWord(last, piece)) {
      last.text += piece.text;
      last.tokens.push(...piece.tokens);
    } else {
      words.push({ text: piece.text, tokens: [...spaces, ...piece.tokens], startsWord, isSpecial: Boolean(piece.isSpecial) });
    }
    spaces = [];
  }
  if (spaces.length) words.push({ text: "␣", tokens: spaces, startsWord: true, isSpecial: false, isSpace: true });
  for (const word of words) word.plain = word.text;
  return words;
}

/** Pieces with their `tokens`; those that are bytes of one character are joined to one piece. */
function wholeCharacters(pieces) {
  const joined = [];
  pieces.forEach((piece, number) => {
    const last = joined.at(-1);
    const continuesCharacter = last?.bytes && piece.bytes && !piece.startsWord && decoded(last.bytes).endsWith(UNFINISHED);
    if (continuesCharacter) {
      last.bytes.push(...piece.bytes);
      last.text = decoded(last.bytes);
      last.tokens.push(number);
    } else {
      joined.push({ ...piece, bytes: piece.bytes && [...piece.bytes], tokens: [number] });
    }
  });
  return joined;
}

function isOneWord(one, other) {
  if (one.isSpecial || other.isSpecial || UNSPACED.test(one.text + other.text)) return false;
  return WORD.test(one.text.at(-1)) && WORD.test(other.text[0]);
}
