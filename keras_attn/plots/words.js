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
  return piecesOf(tokens, special).map((piece, number) => ({
    text: piece.text === "" ? "␣" : piece.startsWord || !number || !WORD.test(piece.text[0]) ? piece.text : `·${piece.text}`,
    plain: piece.text,
    tokens: [number],
    startsWord: piece.startsWord,
    isSpecial: Boolean(piece.isSpecial),
  }));
}

/** Tokens joined to words {text, plain, tokens, startsWord, isSpecial}. Punctuation stands alone. */
export function unitsOfWords(tokens, special) {
  const words = [];
  let space = []; // a space that is a token of its own belongs to the word that follows
  piecesOf(tokens, special).forEach((piece, number) => {
    if (!piece.text) return void space.push(number);
    const last = words.at(-1);
    const startsWord = piece.startsWord || space.length > 0;
    const isOneCharacter = last?.bytes && piece.bytes && (last.text.endsWith(UNFINISHED) || last.text.startsWith("<0x"));
    if (isOneCharacter && !startsWord) {
      last.bytes.push(...piece.bytes);
      last.text = decoded(last.bytes);
      last.tokens.push(number);
      return;
    }
    const isOneWord =
      last && !startsWord && !last.isSpecial && !piece.isSpecial &&
      WORD.test(last.text.at(-1)) && WORD.test(piece.text[0]) && !UNSPACED.test(last.text + piece.text);
    if (isOneWord) {
      last.text += piece.text;
      last.bytes = last.bytes && piece.bytes ? [...last.bytes, ...piece.bytes] : null;
      last.tokens.push(number);
    } else {
      const bytes = piece.bytes ? [...piece.bytes] : null;
      words.push({ text: piece.text, tokens: [...space, number], startsWord, isSpecial: Boolean(piece.isSpecial), bytes });
    }
    space = [];
  });
  if (space.length) words.push({ text: "␣", tokens: space, startsWord: true, isSpecial: false });
  for (const word of words) word.plain = word.text;
  return words;
}
