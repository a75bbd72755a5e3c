/** Formulas, written as plain text in the notation, as MathML. */
import { math } from "./dom.js";

const SUPERSCRIPTS = { "ᵀ": "T", "²": "2" };
const SUBSCRIPTS = { "₁": "1", "₂": "2" };
const TOKEN = /\s+|√|[a-z]{2,}_[a-z]{3,}|[A-Za-zθμσγβεΣ∂Ŷ]+[′″‴⁗]*|x̂|[\d.]+|[ᵀ²]|[₁₂]|⁽.⁾|_\w+|[^\s]/gu;

/** A formula such as "softmax(QKᵀ/√d_k + M)" as a MathML element. */
export function formula(text) {
  const tokens = text.normalize("NFC").match(TOKEN);
  const row = readRow({ tokens, at: 0 }, null);
  return math("math", { display: "block", "aria-label": text, class: text.length > 30 ? "long" : "" }, row);
}

/** Read until a closing bracket. */
function readRow(reader, closing) {
  const items = [];
  while (reader.at < reader.tokens.length && reader.tokens[reader.at] !== closing) {
    const token = reader.tokens[reader.at];
    if (token === "/" && items.length) {
      reader.at++;
      items.push(math("mfrac", {}, bare(items.pop()), bare(readItem(reader))));
    } else items.push(readItem(reader));
  }
  return math("mrow", {}, ...items);
}

/** One symbol, with what is attached to it. */
function readItem(reader) {
  const token = reader.tokens[reader.at++];
  let item;
  if (token === undefined) return math("mrow", {});
  if (!token.trim()) return math("mspace", { width: "0.25em" });
  if (token === "√") return math("msqrt", {}, bare(readItem(reader)));
  if (token === "(" || token === "[") {
    const closing = token === "(" ? ")" : "]";
    const inside = readRow(reader, closing);
    reader.at++;
    item = math("mrow", {}, math("mo", { stretchy: "false" }, token), inside, math("mo", { stretchy: "false" }, closing));
    item.bracket = inside;
  } else if (/^[\d.]+$/.test(token)) item = math("mn", {}, token);
  else if (/^[a-z]+_[a-z]+$/.test(token)) item = math("mtext", {}, token.replace("_", " "));
  else if (/^\p{L}|^x̂/u.test(token)) item = letters(token);
  else item = math("mo", {}, token);
  return attach(item, reader);
}

/** Words upright, products of capitals such as QK apart, single letters in italics. */
function letters(token) {
  if (/^[A-Z]{2}$/.test(token)) return math("mrow", {}, ...[...token].map((letter) => math("mi", {}, letter)));
  const [, base, primes] = token.match(/^(.*?)([′″‴⁗]*)$/u);
  return math("mi", {}, (base.length === 1 && primes ? italic(base) : base) + primes);
}

/** A Latin letter in mathematical italics, which MathML gives to single characters alone. */
function italic(letter) {
  const code = letter.codePointAt(0);
  if (letter === "h") return "ℎ";
  if (code >= 65 && code <= 90) return String.fromCodePoint(0x1d434 + code - 65);
  return code >= 97 && code <= 122 ? String.fromCodePoint(0x1d44e + code - 97) : letter;
}

/** Subscripts and superscripts after a symbol. */
function attach(item, reader) {
  for (;;) {
    const next = reader.tokens[reader.at] ?? "";
    const base = item;
    if (next.startsWith("_") && next.length > 1) item = math("msub", {}, base, math("mi", {}, next.slice(1)));
    else if (next in SUBSCRIPTS) item = math("msub", {}, base, math("mn", {}, SUBSCRIPTS[next]));
    else if (next in SUPERSCRIPTS) item = math("msup", {}, base, math("mi", {}, SUPERSCRIPTS[next]));
    else if (next.startsWith("⁽")) item = math("msup", {}, base, math("mtext", {}, `(${{ "ˡ": "l", "ᴺ": "N" }[next[1]] ?? next[1]})`));
    else return item;
    reader.at++;
  }
}

/** The inside of a bracket that a fraction or root makes needless. */
const bare = (item) => item.bracket ?? item;
