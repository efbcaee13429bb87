// Tokens as a person reads them, and tokens joined to words.

const SPACE_MARK = /[▁Ġ]/gu;
const WORD = /[\p{L}\p{N}\p{M}'’]/u;
// Scripts that write no spaces: each token stays a word of its own.
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}]/u;

/** Tokens as pieces {text, startsWord}: the marks of spaces, of continued words and of bytes are read. */
export function piecesOf(tokens, special) {
  const isSpecial = new Set(special);
  const plain = tokens.filter((_, number) => !isSpecial.has(number));
  const hasSpaceMarks = plain.some((token) => /[▁Ġ]/u.test(token));
  const isBytes = !hasSpaceMarks && plain.length > 1 && plain.every((token) => [...token].length < 2 || /^<0x..>$/.test(token));
  const continues = plain.some((token) => /^##./.test(token));
  return tokens.map((token, number) => {
    if (isSpecial.has(number)) return { text: token || "∅", startsWord: true, isSpecial: true };
    if (hasSpaceMarks) return { text: token.replace(SPACE_MARK, ""), startsWord: /^[▁Ġ]/u.test(token) || number === 0 };
    if (isBytes) return { text: token.trim(), startsWord: /^\s/.test(token) };
    if (continues && /^##./.test(token)) return { text: token.slice(2), startsWord: false };
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
    const isOneWord =
      last && !startsWord && !last.isSpecial && !piece.isSpecial &&
      WORD.test(last.text.at(-1)) && WORD.test(piece.text[0]) && !UNSPACED.test(last.text + piece.text);
    if (isOneWord) {
      last.text += piece.text;
      last.tokens.push(number);
    } else {
      words.push({ text: piece.text, tokens: [...space, number], startsWord, isSpecial: Boolean(piece.isSpecial) });
    }
    space = [];
  });
  if (space.length) words.push({ text: "␣", tokens: space, startsWord: true, isSpecial: false });
  for (const word of words) word.plain = word.text;
  return words;
}
