// Renders Markdown as DOM nodes. HTML in the text is shown as text, and pictures become links: nothing is executed or loaded.

import { html } from "./parts.js";

const MAX_DEPTH = 12; // nested quotes, lists and emphasis; deeper text is shown as it is
const MAX_CHARACTERS = 200000; // of one text; a longer text is shown unformatted
const LINK = /^(https?:\/\/|mailto:)/i;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?: +(.*?))?(?: +#+)? *$/;
const RULE = /^ {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const TABLE_LINE = /^ {0,3}\|?(?: *:?-+:? *\|)+(?: *:?-+:? *)?$/;

const isBlank = (line) => line.trim() === "";
const startsBlock = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

export function Markdown({ text }) {
  if (text.length > MAX_CHARACTERS) return html`<div class="md"><p class="plain">${text}</p></div>`;
  return html`<div class="md">${blocks(text.replaceAll("\r\n", "\n").split("\n"), 0)}</div>`;
}

// Returns the nodes of a list of lines.
function blocks(lines, depth) {
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const [node, next] = block(lines, at, depth);
    nodes.push(node);
    at = next;
  }
  return nodes;
}

// Returns the node of the block that begins at a line, and the index of the line after the block.
function block(lines, at, depth) {
  const line = lines[at];
  if (depth < MAX_DEPTH) {
    if (FENCE.test(line)) return fence(lines, at);
    if (RULE.test(line)) return [html`<hr />`, at + 1];
    const heading = HEADING.exec(line);
    if (heading) return [html`<p class="title t${heading[1].length}">${inline(heading[2] || "", 0)}</p>`, at + 1];
    if (QUOTE.test(line)) return quote(lines, at, depth);
    if (ITEM.test(line)) return list(lines, at, depth);
    if (line.includes("|") && TABLE_LINE.test(lines[at + 1] || "")) return table(lines, at);
  }
  let next = at + 1;
  while (next < lines.length && !isBlank(lines[next]) && !(depth < MAX_DEPTH && startsBlock(lines[next]))) next += 1;
  return [html`<p>${inline(lines.slice(at, next).join("\n"), 0)}</p>`, next];
}

function fence(lines, at) {
  const [, marks, language] = FENCE.exec(lines[at]);
  let next = at + 1;
  const isEnd = (line) => line.trim().length >= marks.length && line.trim() === marks[0].repeat(line.trim().length);
  while (next < lines.length && !isEnd(lines[next])) next += 1;
  const code = lines.slice(at + 1, next).join("\n");
  return [html`<pre tabindex="0" role="group" aria-label=${language ? `Code, ${language}` : "Code"}><code>${code}</code></pre>`, next + 1];
}

function quote(lines, at, depth) {
  let next = at;
  while (next < lines.length && QUOTE.test(lines[next])) next += 1;
  return [html`<blockquote>${blocks(lines.slice(at, next).map((line) => line.replace(QUOTE, "")), depth + 1)}</blockquote>`, next];
}

// Reads the items of a list. An item continues with indented lines, and with blank lines between indented lines.
function list(lines, at, depth) {
  const isOrdered = /\d/.test(ITEM.exec(lines[at])[2]);
  const items = [];
  let next = at;
  let start = null;
  while (next < lines.length) {
    const found = ITEM.exec(lines[next]);
    if (!found || /\d/.test(found[2]) !== isOrdered || RULE.test(lines[next])) break;
    start ??= parseInt(found[2], 10);
    const width = found[0].length;
    const inner = [lines[next].slice(width)];
    next += 1;
    while (next < lines.length) {
      const line = lines[next];
      const isIndented = /^\s/.test(line) && line.search(/\S/) >= Math.min(width, 2);
      if (isBlank(line) ? !/^\s{2,}\S/.test(lines[next + 1] || "") : !isIndented && (startsBlock(line) || isBlank(lines[next - 1]))) break;
      inner.push(isIndented ? line.slice(Math.min(width, line.search(/\S/))) : line);
      next += 1;
    }
    items.push(html`<li>${itemNodes(inner, depth + 1)}</li>`);
    while (next < lines.length && isBlank(lines[next]) && ITEM.test(lines[next + 1] || "")) next += 1;
  }
  return [isOrdered ? html`<ol start=${start}>${items}</ol>` : html`<ul>${items}</ul>`, next];
}

// The first paragraph of an item has no margins of a paragraph, so it becomes inline nodes.
function itemNodes(lines, depth) {
  let first = 0;
  while (first < lines.length && !isBlank(lines[first]) && (first === 0 ? !startsBlock(lines[0]) : !startsBlock(lines[first]))) first += 1;
  return [...inline(lines.slice(0, first).join("\n"), 0), ...blocks(lines.slice(first), depth)];
}

const cellsOf = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

function table(lines, at) {
  const head = cellsOf(lines[at]);
  let next = at + 2;
  while (next < lines.length && lines[next].includes("|") && !isBlank(lines[next])) next += 1;
  const rows = lines.slice(at + 2, next).map(cellsOf);
  return [
    html`<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>
      <thead><tr>${head.map((cell) => html`<th scope="col">${inline(cell, 0)}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr>${head.map((_, place) => html`<td>${inline(row[place] || "", 0)}</td>`)}</tr>`)}</tbody>
    </table></div>`,
    next,
  ];
}

// Each alternative begins with another character and has a bounded length, so a text is read in linear time.
const INLINE = new RegExp(
  [
    /\\([!-/:-@[-`{-~])/, // 1 escaped character
    /(`{1,8})(?!`)([^`]{1,4000}?)\2(?!`)/, // 2, 3 code
    /(!?)\[([^[\]\n]{0,500})\]\(<?([^\s()<>]{1,2000})>?(?: +"[^"\n]{0,200}")?\)/, // 4, 5, 6 link or picture
    /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/, // 7 link in angle brackets
    /\*\*(?=\S)([^*]{1,2000}?(?:\*[^*]{1,500}\*[^*]{0,500})?)\*\*/, // 8 strong
    /\*(?=[^\s*])([^*\n]{1,2000})\*/, // 9 emphasis
    /(?<!\w)__(?=\S)([^_]{1,2000})__(?!\w)/, // 10 strong
    /(?<!\w)_(?=[^\s_])([^_\n]{1,2000})_(?!\w)/, // 11 emphasis
    /~~(?=\S)([^~]{1,2000})~~/, // 12 deleted
    /(?<!\w)(https?:\/\/[^\s<>"'`]{1,2000}[^\s<>"'`.,:;!?)\]}*])/, // 13 address
  ]
    .map((each) => each.source)
    .join("|"),
  "g",
);

function anchor(address, nodes) {
  return LINK.test(address) ? html`<a href=${address} target="_blank" rel="noopener noreferrer nofollow">${nodes}</a>` : html`<span>${nodes} (${address})</span>`;
}

// Returns the nodes of a text without blocks.
function inline(text, depth) {
  if (depth > MAX_DEPTH) return [text];
  const nodes = [];
  let last = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, escaped, , code, isPicture, label, address, angle, strong, emphasis, strong2, emphasis2, deleted, bare] = found;
    if (found.index > last) nodes.push(text.slice(last, found.index));
    last = found.index + whole.length;
    if (escaped) nodes.push(escaped);
    else if (code !== undefined) nodes.push(html`<code>${code.replace(/^ (.*) $/s, "$1")}</code>`);
    else if (address) nodes.push(anchor(address, isPicture ? [`picture: ${label || address}`] : label ? inline(label, depth + 1) : [address]));
    else if (angle || bare) nodes.push(anchor(angle || bare, [angle || bare]));
    else if (strong || strong2) nodes.push(html`<strong>${inline(strong || strong2, depth + 1)}</strong>`);
    else if (emphasis || emphasis2) nodes.push(html`<em>${inline(emphasis || emphasis2, depth + 1)}</em>`);
    else if (deleted) nodes.push(html`<del>${inline(deleted, depth + 1)}</del>`);
    else nodes.push(whole);
  }
  if (last < text.length) nodes.push(text.slice(last));
  return nodes;
}
