// Markdown as models write it, made into elements. Nothing is ever parsed as HTML: what is not
// Markdown is text, and a link leads to the web or to a mail address only.
import { element } from "./format.js";

const DEEP = 8; // of lists and quotes in each other
const LONG = 10_000; // letters of a paragraph that is taken as it is
const FENCE = /^ {0,3}(`{3,}|~{3,}) *([\w+#.-]*)/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const HEADING = /^ {0,3}(#{1,6}) +/;
const RULE = /^ {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const TABLE = /^[ :|-]*-[ :|-]*$/;

/** A text as elements. */
export function markdown(text) {
  const host = document.createDocumentFragment();
  blocks(text.replaceAll("\r\n", "\n").split("\n"), host, 0);
  return host;
}

const begins = (line, next) => !line.trim() || FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || RULE.test(line) || ITEM.test(line) || isTable(line, next);

const isTable = (line, next) => line.includes("|") && next !== undefined && next.includes("|") && TABLE.test(next);

function blocks(lines, host, depth) {
  if (depth > DEEP) {
    host.append(element("p", {}, lines.join("\n")));
    return;
  }
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    if (!line.trim()) i++;
    else if (FENCE.test(line)) i = code(lines, i, host);
    else if (RULE.test(line)) {
      host.append(element("hr"));
      i++;
    }
    else if (HEADING.test(line)) i = heading(lines, i, host);
    else if (QUOTE.test(line)) i = quote(lines, i, host, depth);
    else if (ITEM.test(line)) i = list(lines, i, host, depth);
    else if (isTable(line, lines[i + 1])) i = table(lines, i, host);
    else {
      let end = i + 1;
      while (end < lines.length && !begins(lines[end], lines[end + 1])) end++;
      host.append(inline(lines.slice(i, end).map((l) => l.trim()).join("\n"), element("p"), 0));
      i = end;
    }
  }
}

function code(lines, i, host) {
  const [, fence, language] = lines[i].match(FENCE);
  let end = i + 1;
  const closes = (line) => line.trimStart().startsWith(fence) && !line.trim().replaceAll(fence[0], "");
  while (end < lines.length && !closes(lines[end])) end++;
  host.append(element("div", { class: "code", "data-language": language || undefined }, element("pre", { tabindex: 0 }, element("code", {}, lines.slice(i + 1, end).join("\n")))));
  return end + 1;
}

function heading(lines, i, host) {
  const depth = lines[i].match(HEADING)[1].length;
  let text = lines[i].replace(HEADING, "").trimEnd();
  while (text.endsWith("#")) text = text.slice(0, -1);
  // The page has headings of its own above them.
  host.append(inline(text.trim(), element(`h${Math.min(6, depth + 2)}`), 0));
  return i + 1;
}

function quote(lines, i, host, depth) {
  let end = i;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  const inner = element("blockquote");
  blocks(lines.slice(i, end).map((l) => l.replace(QUOTE, "")), inner, depth + 1);
  host.append(inner);
  return end;
}

/** Items of one kind; what is indented below an item belongs to it. */
function list(lines, i, host, depth) {
  const [, margin, first] = lines[i].match(ITEM);
  const numbered = /\d/.test(first);
  const all = element(numbered ? "ol" : "ul", { start: numbered && parseInt(first, 10) !== 1 ? parseInt(first, 10) : undefined });
  while (i < lines.length) {
    const item = lines[i].match(ITEM);
    if (!item || item[1].length !== margin.length || /\d/.test(item[2]) !== numbered || RULE.test(lines[i])) break;
    const own = [lines[i].slice(item[0].length)];
    const inside = margin.length + 2;
    for (i++; i < lines.length; i++) {
      const line = lines[i], indent = line.length - line.trimStart().length;
      if (!line.trim()) {
        const next = lines[i + 1];
        if (next === undefined || (next.length - next.trimStart().length < inside && !ITEM.test(next))) break;
        own.push("");
      } else if (indent >= inside) own.push(line.slice(Math.min(indent, item[0].length || inside)));
      else if (own.at(-1) && !begins(line, lines[i + 1])) own.push(line); // goes on without being indented
      else break;
    }
    const li = element("li");
    blocks(own, li, depth + 1);
    // A single paragraph needs no distance.
    if (li.firstChild?.tagName === "P" && !own.includes("")) li.firstChild.replaceWith(...li.firstChild.childNodes);
    all.append(li);
  }
  host.append(all);
  return i;
}

const cells = (line) => line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map((c) => c.trim());

function table(lines, i, host) {
  const row = (line, tag) => element("tr", {}, ...cells(line).map((c) => inline(c, element(tag), 0)));
  const body = element("tbody");
  const head = element("thead", {}, row(lines[i], "th"));
  for (i += 2; i < lines.length && lines[i].includes("|"); i++) body.append(row(lines[i], "td"));
  host.append(element("div", { class: "table" }, element("table", {}, head, body)));
  return i;
}

const LINK = /!?\[([^[\]]*)\]\(<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?: +"[^"]*")?\)/y;
const PLAIN = /https?:\/\/[^\s<>"`]+/y;
const MARKS = ["**", "__", "~~", "*", "_"];
const TAGS = { "**": "strong", __: "strong", "~~": "del", "*": "em", _: "em" };
const word = (ch) => ch !== undefined && /[\p{L}\p{N}]/u.test(ch);

/** Appends a paragraph's text to host, with what is in it. */
function inline(text, host, depth) {
  if (text.length > LONG || depth > DEEP) {
    host.append(text);
    return host;
  }
  let plain = "";
  const put = (node, length) => {
    host.append(plain, node);
    plain = "";
    return length;
  };
  for (let i = 0; i < text.length;) {
    const length = piece(text, i, put, depth);
    if (!length) plain += text[i];
    i += length || 1;
  }
  host.append(plain);
  return host;
}

/** Puts what begins at i and gives its length; 0: it is a letter like others. */
function piece(text, i, put, depth) {
  const ch = text[i];
  if (ch === "\\" && /[!-/:-@[-`{-~]/.test(text[i + 1] ?? "")) return put(text[i + 1], 2);
  if (ch === "\n") return put(element("br"), 1);
  if (ch === "`") {
    const ticks = text.slice(i).match(/^`+/)[0];
    const end = text.indexOf(ticks, i + ticks.length);
    return end < 0 ? put(ticks, ticks.length) : put(element("code", {}, text.slice(i + ticks.length, end).trim()), end + ticks.length - i);
  }
  if (ch === "[" || (ch === "!" && text[i + 1] === "[")) {
    LINK.lastIndex = i;
    const m = LINK.exec(text);
    return m ? put(link(m[2], inline(m[1] || m[2], document.createDocumentFragment(), depth + 1)), m[0].length) : 0;
  }
  if (ch === "h" && !word(text[i - 1])) {
    PLAIN.lastIndex = i;
    const url = PLAIN.exec(text)?.[0].replace(/[.,;:!?'")\]*_]+$/, "");
    return url ? put(link(url, url), url.length) : 0;
  }
  return emphasis(text, i, put, depth);
}

function emphasis(text, i, put, depth) {
  const mark = MARKS.find((m) => text.startsWith(m, i));
  if (!mark || !text[i + mark.length]?.trim() || (mark[0] === "_" && word(text[i - 1]))) return 0;
  for (let end = i + mark.length; (end = text.indexOf(mark, end + 1)) > 0;) {
    const after = text[end + mark.length];
    if (!text[end - 1].trim() || (mark.length === 1 && (after === mark || text[end - 1] === mark)) || (mark[0] === "_" && word(after))) continue;
    return put(inline(text.slice(i + mark.length, end), element(TAGS[mark]), depth + 1), end + mark.length - i);
  }
  return 0;
}

/** A link to the web or to a mail address; anywhere else its text. */
function link(url, content) {
  let safe = false;
  try {
    safe = /^(https?|mailto):/i.test(url) && ["http:", "https:", "mailto:"].includes(new URL(url).protocol);
  } catch { /* it is none */ }
  return element(safe ? "a" : "span", safe ? { href: url, target: "_blank", rel: "noopener noreferrer nofollow" } : {}, content);
}
