// What the filter line offers at a place of its text: fields, operators, values. Knows the line's grammar, and nothing of the page.

const PLAIN = /^[A-Za-z_][\p{L}\p{N}_./@+-]*(?: [\p{L}\p{N}_./@+-]+)*$/u, READ_AS_MORE = new Set(["true", "false", "eq", "ne", "in"]);
const COMPARISON = /^("(?:[^"\\]|\\.)*"|[^"=<>!:]+?)\s*(==|!=|>=|<=|=|>|<|:)\s*([^]*)$/;
const SIGNS = { "==": "", "=": "", ":": "", "!=": "ne:", ">": "gt:", ">=": "ge:", "<": "lt:", "<=": "le:" };
const OPERATOR = /^(eq|ne|gt|ge|lt|le|in|exists|contains)\s*:\s*/;
const TOKEN = /"(?:[^"\\]|\\.)*"?|[^"]/g, MOST = 12, MOST_VALUES = 8, CUT = 256, SCORES = ["0.5", "0.8", "0.9"];

/** What JSON says, with whole numbers in all their digits, which a number of this language has not beyond 2^53. */
export function decoded(json) {
  return JSON.parse(json, (_, value, context) => (typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source) ? BigInt(context.source) : value));
}

/** A value as the line has it, in quotes where it would be read as something else. */
export function valueText(value) {
  if (typeof value === "number") { const short = Number(value.toPrecision(12)); return String(short === value ? short : value); }
  return typeof value !== "string" || (PLAIN.test(value) && !READ_AS_MORE.has(value)) ? String(value) : JSON.stringify(value);
}

const fieldText = (name) => (/^[\p{L}\p{N}_.-]+$/u.test(name) ? name : JSON.stringify(name));
const item = (text, words = "", more = {}) => ({ text, shown: text, words, ...more });
const before = (text, items) => items.map((each) => ({ ...each, text: text + each.text }));

/** The text that a quoted or half-typed one stands for. */
function plain(text) {
  const trimmed = text.trim();
  if (!trimmed.startsWith('"')) return trimmed;
  try { return String(JSON.parse(trimmed)); } catch { return trimmed.slice(1).replace(/\\(.)/g, "$1"); }
}

/** The pieces of a text between marks outside of quotes. */
function pieces(text, mark) {
  const cut = [""];
  for (const [token] of text.matchAll(TOKEN)) { if (token === mark) cut.push(""); else cut[cut.length - 1] += token; }
  return cut;
}

/** The comparison that the caret is in: where it begins and ends. */
function comparisonAt(text, caret) {
  let start = 0, end = text.length;
  for (const { 0: token, index } of text.matchAll(TOKEN)) {
    if (!"&|()".includes(token) && !(token === "!" && !text.slice(start, index).trim())) continue;
    if (index >= caret) { end = index; break; }
    start = index + 1;
  }
  return { start: Math.min(start + /^\s*/.exec(text.slice(start))[0].length, caret), end: Math.max(text.slice(0, end).trimEnd().length, caret) };
}

/** Items in order of how well they fit what is typed; those that do not fit are left out. */
function fitting(items, typed, texts = (each) => [each.shown]) {
  const sought = typed.trim().toLowerCase();
  const rank = (each) => Math.min(...texts(each).map((text, number) => {
    const place = text.toLowerCase().indexOf(sought);
    return place < 0 ? Infinity : 2 * number + (place === 0 || /[.\s_/-]/.test(text[place - 1]) ? 0 : 1);
  }));
  return items.map((each) => [rank(each), each]).filter(([place]) => place < Infinity).sort((a, b) => a[0] - b[0]).map(([, each]) => each);
}

/** Comparisons with a day or a moment, in UTC: those of an operator, else from it on, before it, and for a day all of it; none of what is no date. */
function timeItems(typed, operator = "") {
  const [, day, time] = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)Z?)?$/.exec(typed.trim()) ?? [], at = new Date(`${day}T${time ?? "00:00"}Z`);
  const text = (date) => date.toISOString().replace(".000Z", "Z");
  if (!day || isNaN(at) || !text(at).startsWith(day)) return [];
  const begin = text(at), next = text(new Date(at.valueOf() + 86_400_000)), afterDay = time ? {} : { gt: `ge:${next}`, le: `lt:${next}` }; // after a day is from the next on
  if (operator) return [item(afterDay[operator] ?? `${operator}:${begin}`)];
  return [item(`ge:${begin}`, "from then on, UTC"), item(`lt:${begin}`, "before, UTC"), ...(time ? [] : [item(`ge:${begin} & ts=lt:${next}`, "on this day, UTC")])];
}

/** What may stand in a line: the grammar's fields and operators, and the keys and values that are stored. */
class Vocabulary {
  constructor(words, facets) {
    this.words = words;
    this.facets = Map.groupBy(facets?.facets ?? [], (facet) => facet.field);
    const own = words.fields.map(([name, kind, meaning]) => ({ name, kind, words: meaning }));
    const keys = [...this.facets.keys()].filter((name) => name.startsWith("meta.")).map((name) => ({ name, kind: "value", words: "" }));
    this.fields = [...own.slice(0, 3), ...keys, ...own.slice(3)];
  }

  /** The field that a name means, also without `meta.` or in other letters; undefined for none. */
  field(name) {
    const lower = name.toLowerCase(), other = new Map(Object.entries(this.words.names)).get(lower);
    const named = (test) => this.fields.find((field) => test(field.name));
    return named((text) => text === name) ?? (/^(meta|std)\../.test(name) ? { name, kind: "value", words: "" } : undefined)
      ?? named((text) => [lower, `meta.${lower}`, `sig.image.${lower}`].includes(text.toLowerCase())) ?? named((text) => text === other);
  }

  of(name, part) { return (this.facets.get(name === "best" ? "label" : name) ?? []).flatMap((facet) => facet[part]); }

  values(name) {
    const stored = this.of(name, "values").filter(({ value }) => typeof value !== "string" || [...value].length < CUT);
    return [...stored, ...(this.words.values[name] ?? []).filter((value) => !stored.some((entry) => entry.value === value)).map((value) => ({ value }))];
  }

  /** Operators that fit the values which a field has, those that bound a number first. */
  operators({ name, kind }) {
    const types = new Set(kind === "value" ? this.of(name, "type") : []), [type] = types.size === 1 ? types : [];
    const unfit = { string: /^[gl]/, number: /contains/, boolean: /^[glic]/ }[type];
    const fit = (this.words.operators[kind] ?? []).filter(([operator]) => operator !== "eq" && !unfit?.test(operator));
    return operatorItems(fit.toSorted(([a], [b]) => /^[gl]/.test(b) - /^[gl]/.test(a)));
  }

  isMeasured({ name, kind }) { return kind === "number" || (kind === "value" && this.of(name, "type")[0] === "number"); }
}

const operatorItems = (operators) => operators.map(([name, words]) => item(`${name}:`, words, { goesOn: true }));

function valueItems(vocabulary, field, operator, typed, without = []) {
  if (field.kind === "presence" || operator === "exists") return fitting(["true", "false"].map((text) => item(operator ? text : `exists:${text}`)), typed);
  if (field.kind === "time") return [...(operator ? [] : timeItems(typed)), ...fitting(["-1h", "-24h", "-7d"].map((span) => item(operator ? span : `ge:${span}`)), typed)];
  const bins = /^[gl]/.test(operator) ? vocabulary.of(field.name, "histogram") : [];
  const values = bins.length ? bins.map((bin) => ({ value: operator.startsWith("g") ? bin.from : bin.to })) : vocabulary.values(field.name);
  const items = values.filter(({ value }) => !without.includes(value)).map(({ value, count }) => item(valueText(value), "", { count, shown: value === "" ? '""' : String(value) }));
  return fitting(items, plain(typed)).slice(0, MOST_VALUES);
}

/** Values after an operator; of a list with commas the last is completed. */
function valuesAfter(vocabulary, field, operator, typed) {
  const list = operator === "in" ? pieces(typed, ",") : [typed], last = list.pop();
  return before(`${operator}:${list.map((piece) => `${piece},`).join("")}`, valueItems(vocabulary, field, operator, last, list.map(plain)));
}

/** What may follow the = of a field. */
function operandItems(vocabulary, field, operand) {
  const match = OPERATOR.exec(operand), isPrediction = field.kind === "label" || field.kind === "box";
  const times = match && field.kind === "time" ? timeItems(operand.slice(match[0].length), match[1]) : [];
  if (times.length) return times;
  if (match && (!isPrediction || pieces(operand, ":").length === 2)) return valuesAfter(vocabulary, field, match[1], operand.slice(match[0].length));
  if (isPrediction) return predictionItems(vocabulary, field, operand);
  const operators = fitting(vocabulary.operators(field), operand), values = valueItems(vocabulary, field, "", operand);
  return field.kind === "presence" ? values : vocabulary.isMeasured(field) ? [...operators, ...values] : [...values, ...operators];
}

/** What may follow `label=` and `box=`: a label, then bounds that the same prediction is within. */
function predictionItems(vocabulary, field, operand) {
  const { words } = vocabulary, list = pieces(operand, ":"), typed = list.pop(), head = list.map((piece) => `${piece}:`).join("");
  if (field.kind === "label" && !list.length) {
    const isLabel = vocabulary.values("label").some(({ value }) => value === plain(operand));
    const bound = isLabel ? [item(`${operand.trim()}:ge:`, "with a score of at least …", { goesOn: true })] : [];
    return [...bound, ...valueItems(vocabulary, field, "", operand), ...fitting(vocabulary.operators(field), operand)];
  }
  const last = list.at(-1)?.trim(), has = (names, name) => names.some(([each]) => each === name);
  const isOfScore = !has(words.properties, list.at(-2)?.trim()) || list.at(-2).trim() === "score";
  const items = has(words.bounds, last) ? (isOfScore ? SCORES.map((score) => item(score)) : [])
    : operatorItems(has(words.properties, last) ? words.bounds : [["ge", "a score of at least …"], ...words.properties]);
  return before(head, fitting(items, typed));
}

/** Comparisons that everyday words stand for; what follows from the numbers stored or from an evaluation the server has, once the word is sent. */
function wordItems({ words }, sought) {
  const items = words.words.map(([names, line, meaning]) => (!line || line.endsWith(":") ? item(names[0], meaning, { names, sends: true }) : item(line, meaning, { names })));
  return sought.length < 2 ? [] : fitting(items, sought, ({ names }) => names).slice(0, 3);
}

/** Fields whose name or meaning fits, everyday words, and comparisons with stored values that do. */
function fieldItems(vocabulary, typed) {
  const sought = plain(typed), times = before("ts=", timeItems(sought));
  const named = vocabulary.fields.map((field) => item(`${fieldText(field.name)}=`, field.words, { shown: field.name, goesOn: true }));
  const fields = fitting(named, sought, (each) => [each.shown, each.words]), begins = ({ shown }) => sought && shown.toLowerCase().startsWith(sought.toLowerCase());
  const values = sought.length < 2 ? [] : vocabulary.fields.filter((field) => vocabulary.facets.has(field.name) && field.kind !== "presence")
    .flatMap((field) => before(`${fieldText(field.name)}=`, valueItems(vocabulary, field, "", typed)).map((each) => ({ ...each, words: `a value of ${field.name}` })));
  const ordered = [...fields.filter(begins), ...wordItems(vocabulary, sought), ...fields.filter((each) => !begins(each))];
  return [...times, ...ordered.slice(0, values.length ? MOST - 4 : MOST), ...values];
}

/** Items for a comparison with a sign: what may follow it, and the right form of what the line would read as something else. */
function comparisonItems(vocabulary, typed, [, name, sign, rest]) {
  const field = vocabulary.field(plain(name)), operand = SIGNS[sign] + rest;
  if (sign === ":" && rest.includes("=")) return [];
  if (!field && vocabulary.words.names[name.toLowerCase()] === "box=score") {
    const [all, bound, number] = /^([gl][et]:)?\s*([\d.]*)$/.exec(operand) ?? [];
    return all === undefined ? [] : before(`box=score:${bound ?? "ge:"}`, (number ? [number] : SCORES).map((score) => item(score)));
  }
  if (!field) return fieldItems(vocabulary, name).filter((each) => each.goesOn).map((each) => ({ ...each, text: each.text + operand }));
  const isRight = sign === "=" && field.name === plain(name), head = isRight ? typed.slice(0, typed.length - rest.length) : `${fieldText(field.name)}=`;
  const items = before(head, operandItems(vocabulary, field, operand));
  return isRight || (field.kind === "time" && timeItems(rest).length) ? items : [item(head + operand, "as the filter writes it", { goesOn: !rest.trim() }), ...items.filter(({ text }) => text !== head + operand)];
}

/**
 * Return what fits a line at a place, given what `filter_words` of the server says and the facets that its API answers, or null.
 *
 * The answer has the place that an item takes, from `start` to `end`, and the items: `text` goes there, `shown` is listed, with `words`
 * and the number of inferences `count`; `goesOn` says that more must follow, `sends` that the line is sent with it.
 */
export function suggest(text, caret, words, facets) {
  const { start, end } = comparisonAt(text, caret), typed = text.slice(start, caret), after = text.slice(caret, end);
  const match = COMPARISON.exec(typed), vocabulary = new Vocabulary(words, facets);
  const items = match ? comparisonItems(vocabulary, typed, match) : fieldItems(vocabulary, typed);
  const name = match ? null : /^(?:"(?:[^"\\]|\\.)*"?|[^"=])*=/.exec(after), stop = name ? caret + name[0].length : end;
  const rest = /[:=]\s*in\s*:/.test(typed) ? pieces(after, ",").slice(1).map((piece) => `,${piece}`).join("") : "";
  const isNegated = /!\s*$/.test(text.slice(0, start)); // a day is two comparisons, which ! negates together
  const fit = items.map((each) => ({ ...each, text: isNegated && pieces(each.text, "&").length > 1 ? `(${each.text})` : each.text + rest }));
  return { start, end: stop, items: fit.filter((each) => each.sends || each.text.trim() !== text.slice(start, stop).trim()).slice(0, MOST) };
}
