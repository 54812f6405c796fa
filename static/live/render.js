// An answer on the page: text as it comes, Markdown elements once a block is complete.

import { spans, takeBlocks } from "./markdown.js";

export class AnswerView {
  /** @param {HTMLElement} box @param {() => void} onDrawn called after each frame that wrote */
  constructor(box, onDrawn) {
    this.box = box;
    this.onDrawn = onDrawn;
    this.whole = "";
    this.tail = "";
    this.fresh = "";
    this.frame = 0;
    this.tailBox = document.createElement("div");
    this.tailBox.className = "tail";
    box.append(this.tailBox);
  }

  /** @param {string} text */
  add(text) {
    this.whole += text;
    this.fresh += text;
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw(false));
  }

  /** Draws what is left; nothing follows. */
  finish() {
    cancelAnimationFrame(this.frame);
    this.draw(true);
    this.tailBox.remove();
  }

  /** @param {boolean} isFinal */
  draw(isFinal) {
    this.frame = 0;
    const fresh = this.fresh;
    this.fresh = "";
    this.tail += fresh;
    const [blocks, rest] = takeBlocks(this.tail, isFinal);
    if (blocks.length || isFinal) {
      for (const block of blocks) this.box.insertBefore(element(block), this.tailBox);
      this.tail = rest;
      this.tailBox.replaceChildren(rest);
    } else if (fresh) {
      this.tailBox.append(fresh);
    }
    this.onDrawn();
  }
}

/** @param {import("./markdown.js").Block} block @returns {HTMLElement} */
function element(block) {
  if (block.kind === "rule") return document.createElement("hr");
  if (block.kind === "code") {
    const pre = document.createElement("pre");
    const code = document.createElement("code");
    code.textContent = block.text;
    pre.tabIndex = 0;
    pre.append(code);
    return pre;
  }
  if (block.kind === "list") {
    const list = document.createElement(block.ordered ? "ol" : "ul");
    for (const item of block.items) list.append(filled("li", item));
    return list;
  }
  if (block.kind === "heading") return filled(block.level <= 2 ? "h3" : "h4", block.text);
  return filled(block.kind === "quote" ? "blockquote" : "p", block.text);
}

const TAGS = { code: "code", strong: "strong", em: "em" };

/** @param {string} tag @param {string} text */
function filled(tag, text) {
  const parent = document.createElement(tag);
  for (const span of spans(text)) {
    if (span.kind === "text") parent.append(span.text);
    else if (span.kind === "link") {
      const link = document.createElement("a");
      link.href = span.href ?? "";
      link.rel = "noopener noreferrer";
      link.target = "_blank";
      link.textContent = span.text;
      parent.append(link);
    } else {
      const child = document.createElement(TAGS[span.kind]);
      child.textContent = span.text;
      parent.append(child);
    }
  }
  return parent;
}
