// The Markdown that models write, block by block. Pure; `render.js` makes elements of it, never HTML text.

/**
 * @typedef {{kind: "paragraph" | "quote", text: string}
 *   | {kind: "heading", level: number, text: string}
 *   | {kind: "code", text: string}
 *   | {kind: "list", ordered: boolean, items: string[]}
 *   | {kind: "rule"}} Block
 * @typedef {{kind: "text" | "code" | "strong" | "em" | "link", text: string, href?: string}} Span
 */

const FENCE = /^\s*(```+|~~~+)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^\s*(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const RULE = /^\s*(?:-{3,}|\*{3,}|_{3,})\s*$/;

/**
 * Takes the complete blocks off the front of a text that still grows; the rest may change its meaning.
 * @param {string} text @param {boolean} isFinal nothing follows: the rest is a block too
 * @returns {[Block[], string]}
 */
export function takeBlocks(text, isFinal) {
  const lines = text.split("\n");
  /** @type {Block[]} */
  const blocks = [];
  /** @type {string[]} */
  let open = [];
  let fence = "";
  let taken = 0;
  const close = (/** @type {number} */ upTo) => {
    if (open.length) blocks.push(blockOf(open));
    open = [];
    taken = upTo;
  };
  for (let i = 0; i < lines.length - (isFinal ? 0 : 1); i += 1) {
    const line = lines[i];
    if (fence) {
      if (line.trim().startsWith(fence)) {
        blocks.push({ kind: "code", text: open.slice(1).join("\n") });
        open = [];
        fence = "";
        taken = i + 1;
      } else open.push(line);
    } else if (FENCE.test(line)) {
      close(i);
      fence = /** @type {RegExpExecArray} */ (FENCE.exec(line))[1];
      open = [line];
    } else if (!line.trim()) {
      close(i + 1);
    } else if (HEADING.test(line) || RULE.test(line)) {
      close(i);
      open = [line];
      close(i + 1);
    } else {
      if (open.length && ITEM.test(line) !== ITEM.test(open[0]) && !/^\s/.test(line)) close(i);
      open.push(line);
    }
  }
  if (!isFinal) return [blocks, lines.slice(taken).join("\n")];
  if (fence) blocks.push({ kind: "code", text: open.slice(1).join("\n") });
  else close(lines.length);
  return [blocks, ""];
}

/** @param {string[]} lines not empty @returns {Block} */
function blockOf(lines) {
  const heading = HEADING.exec(lines[0]);
  if (heading) return { kind: "heading", level: heading[1].length, text: heading[2] };
  if (RULE.test(lines[0])) return { kind: "rule" };
  const first = ITEM.exec(lines[0]);
  if (first) {
    /** @type {string[]} */
    const items = [];
    for (const line of lines) {
      const item = ITEM.exec(line);
      if (item) items.push(item[2]);
      else items[items.length - 1] += ` ${line.trim()}`;
    }
    return { kind: "list", ordered: first[1] !== undefined, items };
  }
  if (lines.every((line) => line.startsWith(">"))) {
    return { kind: "quote", text: lines.map((line) => line.replace(/^>\s?/, "")).join("\n") };
  }
  return { kind: "paragraph", text: lines.join("\n") };
}

const SPAN = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/g;

/** @param {string} text @returns {Span[]} */
export function spans(text) {
  /** @type {Span[]} */
  const found = [];
  let at = 0;
  for (const match of text.matchAll(SPAN)) {
    if (match.index > at) found.push({ kind: "text", text: text.slice(at, match.index) });
    const [whole, code, strong, em, link, href] = match;
    if (code !== undefined) found.push({ kind: "code", text: code });
    else if (strong !== undefined) found.push({ kind: "strong", text: strong });
    else if (em !== undefined) found.push({ kind: "em", text: em });
    else found.push({ kind: "link", text: link, href });
    at = match.index + whole.length;
  }
  if (at < text.length) found.push({ kind: "text", text: text.slice(at) });
  return found;
}
