// What the filter line offers at a place of its text: fields, operators, values. Knows the line's grammar, and nothing of the page.

const PLAIN = /^[A-Za-z_][\p{L}\p{N}_./@+-]*(?: [\p{L}\p{N}_./@+-]+)*$/u;
const PLAIN_FIELD = /^[\p{L}\p{N}_.-]+$/u;
const READ_AS_MORE = new Set(["true", "false", "eq", "ne", "in"]);
const COMPARISON = /^("(?:[^"\\]|\\.)*"|[^"=<>!:]+?)\s*(==|!=|>=|<=|=|>|<|:)\s*([^]*)$/;
const SIGNS = { "==": "", "=": "", ":": "", "!=": "ne:", ">": "gt:", ">=": "ge:", "<": "lt:", "<=": "le:" };
const OPERATOR = /^(eq|neq|ne|gte|gt|ge|lte|lt|le|in|exists|contains)\s*:\s*/;
const OTHER_NAMES = { gte: "ge", lte: "le", neq: "ne" };
const MOST = 12, MOST_VALUES = 8, CUT = 256, DAY_MS = 86_400_000;
const AFTER_DAY = { gt: "ge", le: "lt" };
const BOUND = new Set(["gt", "ge", "lt", "le"]);

/** What JSON says, with whole numbers in all their digits, which a number of this language has not beyond 2^53. */
export function decoded(json) {
  return JSON.parse(json, (_, value, context) => (typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source) ? BigInt(context.source) : value));
}

/** A value as the line has it, in quotes where it would be read as something else. */
export function valueText(value) {
  if (typeof value === "boolean") return String(value);
  if (typeof value === "bigint") return String(value);
  if (typeof value === "number") { const short = Number(value.toPrecision(12)); return String(short === value ? short : value); }
  return PLAIN.test(value) && !READ_AS_MORE.has(value) ? value : JSON.stringify(value);
}

const fieldText = (name) => (PLAIN_FIELD.test(name) ? name : JSON.stringify(name));

/** The text that a quoted or half-typed one stands for. */
function plain(text) {
  const trimmed = text.trim();
  if (!trimmed.startsWith('"')) return trimmed;
  try { return String(JSON.parse(trimmed)); } catch { return trimmed.slice(1).replace(/\\(.)/g, "$1"); }
}

/** A moment as the line has it, and whether it is a whole day; null for what is no date. */
function moment(text) {
  const match = /^(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?:[T ](\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?Z?)?$/.exec(text) ?? null;
  const [, day, month, year] = /^(\d{1,2})\.(\d{1,2})\.(\d{4})$/.exec(text) ?? [];
  const parts = match ? match.slice(1).map((part) => Number(part ?? 0)) : year ? [Number(year), Number(month), Number(day), 0, 0, 0] : null;
  if (parts === null) return null;
  const at = new Date(Date.UTC(parts[0], parts[1] - 1, ...parts.slice(2)));
  if (at.getUTCMonth() !== parts[1] - 1 || at.getUTCDate() !== parts[2] || parts[3] > 23 || parts[4] > 59 || parts[0] < 1970) return null;
  return { text: momentText(at), isDay: match?.[4] === undefined, next: momentText(new Date(at.valueOf() + DAY_MS)) };
}

const momentText = (at) => at.toISOString().replace(".000Z", "Z");

/** The pieces of a text between marks outside of quotes. */
function pieces(text, mark) {
  const cut = [""];
  let isQuoted = false;
  for (let place = 0; place < text.length; place++) {
    if (text[place] === "\\" && isQuoted) cut[cut.length - 1] += text[place++];
    else if (text[place] === '"') isQuoted = !isQuoted;
    else if (text[place] === mark && !isQuoted) { cut.push(""); continue; }
    cut[cut.length - 1] += text[place] ?? "";
  }
  return cut;
}

/** The comparison that the caret is in: where it begins and ends, and where its field ends. */
function comparisonAt(text, caret) {
  let start = 0, end = text.length, isQuoted = false;
  for (let place = 0; place < text.length; place++) {
    const mark = text[place];
    if (isQuoted) { if (mark === "\\") place++; else isQuoted = mark !== '"'; continue; }
    isQuoted = mark === '"';
    const ends = "&|()".includes(mark) || (mark === "!" && !text.slice(start, place).trim());
    if (!ends) continue;
    if (place >= caret) { end = place; break; }
    start = place + 1;
  }
  start = Math.min(start + /^\s*/.exec(text.slice(start))[0].length, caret);
  while (end > caret && /\s/.test(text[end - 1])) end--;
  return { start, end };
}

/** Items in order of how well they fit what is typed; those that do not fit are left out. */
function fitting(items, typed, texts = (item) => [item.shown]) {
  const sought = typed.toLowerCase();
  const rank = (item) => Math.min(...texts(item).map((text, number) => {
    const place = text.toLowerCase().indexOf(sought);
    return place < 0 ? Infinity : 2 * number + (place === 0 || /[.\s_/-]/.test(text[place - 1]) ? 0 : 1);
  }));
  return items.map((item) => [rank(item), item]).filter(([place]) => place < Infinity).sort((a, b) => a[0] - b[0]).map(([, item]) => item);
}

/** What may stand in a line: the grammar's fields and operators, and the keys and values that are stored. */
class Vocabulary {
  constructor(words, facets) {
    this.texts = words.texts;
    this.words = words;
    this.facets = new Map();
    for (const facet of facets?.facets ?? []) {
      const before = this.facets.get(facet.field) ?? { types: [], values: [], histogram: [] };
      this.facets.set(facet.field, { types: [...before.types, facet.type], values: [...before.values, ...facet.values], histogram: [...before.histogram, ...facet.histogram] });
    }
    const own = words.fields.map(([name, kind, meaning]) => ({ name, kind, words: meaning }));
    const keys = [...this.facets.keys()].filter((name) => name.startsWith("meta."));
    this.fields = [...own.slice(0, 3), ...keys.map((name) => ({ name, kind: "value", words: "" })), ...own.slice(3)];
  }

  /** The field that a name means, also without `meta.` or in other letters; undefined for none. */
  field(name) {
    const named = (text) => this.fields.find((field) => field.name === text);
    if (/^(meta|std)\../.test(name) && !named(name)) return { name, kind: "value", words: "" };
    return named(name) ?? named(`meta.${name}`) ?? named(this.otherName(name)) ?? this.fields.find((field) => [name, `meta.${name}`].some((text) => text.toLowerCase() === field.name.toLowerCase()));
  }

  /** The field that another word stands for; undefined for none. */
  otherName(name) { return new Map(Object.entries(this.words.names)).get(name.trim().toLowerCase()); }

  values(name) {
    const stored = this.facets.get(name === "best" ? "label" : name)?.values ?? [];
    const possible = (this.words.values[name] ?? []).filter((value) => !stored.some((entry) => entry.value === value));
    return [...stored.filter(({ value }) => typeof value !== "string" || [...value].length < CUT), ...possible.map((value) => ({ value }))];
  }

  /** Operators that fit the values which a field has. */
  operators({ name, kind }) {
    const types = kind === "value" ? (this.facets.get(name)?.types ?? []) : [];
    const isAll = (type) => types.length > 0 && types.every((other) => other === type);
    const unfit = isAll("string") ? ["gt", "ge", "lt", "le"] : isAll("number") ? ["contains"] : isAll("boolean") ? ["gt", "ge", "lt", "le", "in", "contains"] : [];
    const fit = (this.words.operators[kind] ?? []).filter(([operator]) => operator !== "eq" && !unfit.includes(operator));
    return [...fit.filter(([operator]) => BOUND.has(operator)), ...fit.filter(([operator]) => !BOUND.has(operator))];
  }

  isMeasured({ name, kind }) {
    return kind === "number" || (kind === "value" && this.facets.get(name)?.types[0] === "number");
  }
}

const operatorItems = (operators, typed) => fitting(operators.map(([name, words]) => ({ text: `${name}:`, shown: `${name}:`, words, goesOn: true })), typed.trim());

function valueItems(vocabulary, field, operator, typed, without = []) {
  if (field.kind === "time") return timeItems(vocabulary.texts, operator, typed.trim());
  const bins = BOUND.has(operator) ? (vocabulary.facets.get(field.name)?.histogram ?? []) : [];
  const bounds = bins.map((bin) => ({ value: operator.startsWith("g") ? bin.from : bin.to }));
  const values = (bounds.length ? bounds : vocabulary.values(field.name)).filter(({ value }) => !without.includes(value));
  const items = values.map(({ value, count }) => ({ text: valueText(value), shown: value === "" || typeof value !== "string" ? valueText(value) : value, words: "", count }));
  return fitting(items, plain(typed)).slice(0, MOST_VALUES);
}

function timeItems(texts, operator, typed) {
  const at = moment(typed), prefix = operator ? "" : "ge:";
  // After a day is from the next on, and until a day is before the next.
  if (at?.isDay && AFTER_DAY[operator]) return [{ text: at.next, shown: `${AFTER_DAY[operator]}:${at.next}`, words: texts.right_form, operator: AFTER_DAY[operator] }];
  if (at && operator) return [{ text: at.text, shown: at.text, words: texts.right_form }];
  if (at) return [
    { text: `ge:${at.text}`, shown: `ge:${at.text}`, words: texts.from_day }, { text: `lt:${at.text}`, shown: `lt:${at.text}`, words: texts.until_day },
    ...(at.isDay ? [{ text: `ge:${at.text} & ts=lt:${at.next}`, shown: typed, words: texts.on_day }] : []),
  ];
  const isLast = !operator || operator.startsWith("g");
  const spans = [["-1h", texts.last_hour], ["-24h", texts.last_day], ["-7d", texts.last_week]];
  return fitting(spans.map(([span, words]) => ({ text: prefix + span, shown: prefix + span, words: isLast ? words : "" })), typed, (item) => [item.shown, item.words]);
}

/** What may follow the = of a field. */
function operandItems(vocabulary, field, operand) {
  if (field.kind === "label" || field.kind === "box") return predictionItems(vocabulary, field, operand);
  const match = OPERATOR.exec(operand);
  if (!match && field.kind === "presence") return fitting(["exists:true", "exists:false"].map((text) => ({ text, shown: text, words: "" })), operand.trim());
  if (!match) {
    const operators = operatorItems(vocabulary.operators(field), operand), values = valueItems(vocabulary, field, "", operand);
    return vocabulary.isMeasured(field) ? [...operators, ...values] : [...values, ...operators];
  }
  const operator = OTHER_NAMES[match[1]] ?? match[1], typed = operand.slice(match[0].length);
  return valuesAfter(vocabulary, field, operator, typed);
}

/** Values after an operator; of a list with commas the last is completed. */
function valuesAfter(vocabulary, field, operator, typed) {
  const list = operator === "in" ? pieces(typed, ",") : [typed];
  const last = list.pop(), before = `${operator}:${list.map((piece) => `${piece},`).join("")}`;
  const items = operator === "exists" ? fitting([true, false].map((value) => ({ text: `${value}`, shown: `${value}`, words: "" })), last.trim())
    : valueItems(vocabulary, field, operator, last, list.map(plain));
  return items.map((item) => ({ ...item, text: (item.operator ? `${item.operator}:` : before) + item.text }));
}

/** What may follow `label=` and `box=`: a label, then bounds that the same prediction is within. */
function predictionItems(vocabulary, field, operand) {
  const { texts, words } = vocabulary, list = pieces(operand, ":");
  let before = "", expected = "property", property = "score";
  if (field.kind === "label") {
    const operator = list.length > 1 && /^\s*(ne|in|eq)\s*$/.test(list[0]) ? list.shift().trim() : "";
    if (list.length === 1 && operator) return valuesAfter(vocabulary, field, operator, list[0]);
    if (list.length === 1) {
      const isLabel = vocabulary.values("label").some(({ value }) => value === plain(operand));
      const bound = isLabel ? [{ text: `${operand.trim()}:ge:`, shown: `${operand.trim()}:ge:`, words: texts.and_score, goesOn: true }] : [];
      return [...bound, ...valueItems(vocabulary, field, "", operand), ...operatorItems(vocabulary.operators(field), operand)];
    }
    if (operator === "ne") return [];
    before = `${operator ? `${operator}:` : ""}${list.shift()}:`;
  }
  const typed = list.pop();
  for (const piece of list) {
    const isProperty = words.properties.some(([name]) => name === piece.trim()), isBound = words.bounds.some(([name]) => name === piece.trim());
    if (isProperty) property = piece.trim();
    else if (!isBound) property = "score";
    expected = isProperty ? "bound" : isBound ? "number" : "property";
    before += `${piece}:`;
  }
  const bounds = operatorItems(words.bounds, typed);
  const numbers = property === "score" ? ["0.5", "0.8", "0.9"].map((text) => ({ text, shown: text, words: "" })) : [];
  const items = expected === "number" ? fitting(numbers, typed.trim())
    : expected === "bound" ? bounds
    : [...operatorItems([["ge", texts.at_least_score]], typed), ...operatorItems(words.properties, typed)];
  return items.map((item) => ({ ...item, text: before + item.text }));
}

/** Fields whose name or meaning fits, and comparisons with stored values that do. */
function fieldItems(vocabulary, typed) {
  const sought = plain(typed), named = (field) => ({ text: `${fieldText(field.name)}=`, shown: field.name, words: field.words, goesOn: true });
  const times = moment(sought) ? timeItems(vocabulary.texts, "", sought).map((item) => ({ ...item, text: `ts=${item.text}`, shown: `ts=${item.shown}` })) : [];
  const fields = fitting(vocabulary.fields.map(named), sought, (item) => [item.shown, item.words]);
  const values = sought.length < 2 ? [] : vocabulary.fields.flatMap((field) => valueItems(vocabulary, field, "", typed)
    .filter((item) => field.kind !== "time" && vocabulary.facets.has(field.name) && field.kind !== "presence")
    .map((item) => ({ ...item, text: `${fieldText(field.name)}=${item.text}`, words: vocabulary.texts.value_of.replace("{field}", field.name) })));
  const isNamed = (item) => sought && item.shown.toLowerCase().startsWith(sought.toLowerCase());
  const ordered = [...fields.filter(isNamed), ...phraseItems(vocabulary, sought), ...fields.filter((item) => !isNamed(item))];
  return [...times, ...ordered.slice(0, values.length ? MOST - 4 : MOST), ...values];
}

/** Comparisons that words stand for, such as "low score" and "yesterday". */
function phraseItems(vocabulary, sought) {
  if (sought.length < 2) return [];
  const items = vocabulary.words.phrases.map(([names, line, words]) => ({ text: line, shown: line, words, names }));
  // Their filters have the ids of reports: the server offers them once the word is sent.
  const outcomes = vocabulary.words.outcomes.map(([names, words]) => ({ text: names[0], shown: names[0], words, names, sends: true }));
  return fitting([...items, ...outcomes], sought, (item) => item.names).slice(0, 3).map(({ names, ...item }) => item);
}

/** The right form of a comparison of a score, which is one of some prediction. */
function scoreItems(vocabulary, operand) {
  const match = /^(?:(eq|gte|gt|ge|lte|lt|le):)?\s*(\d*[.,]?\d+)?\s*(%?)$/.exec(operand);
  if (!match) return [];
  const bound = OTHER_NAMES[match[1]] ?? match[1] ?? "ge", number = Number(match[2]?.replace(",", "."));
  const scores = match[2] ? [match[3] || (number > 1 && number <= 100) ? number / 100 : number] : [0.5, 0.8, 0.9];
  return scores.map((score) => ({ text: `box=score:${bound}:${score}`, shown: `box=score:${bound}:${score}`, words: vocabulary.texts.right_form }));
}

/** Items for a comparison with a sign: what may follow it, and the right form of what the line would read as something else. */
function comparisonItems(vocabulary, typed, [, name, sign, rest]) {
  const { texts } = vocabulary, field = vocabulary.field(plain(name)), operand = SIGNS[sign] + rest;
  if (!field && vocabulary.otherName(name) === "box=score") return scoreItems(vocabulary, operand);
  if (sign === ":" && rest.includes("=")) return [];
  if (!field) return fieldItems(vocabulary, name).filter((item) => item.goesOn).map((item) => ({ ...item, text: item.text + operand }));
  const isRight = sign === "=" && field.name === plain(name);
  const head = isRight ? typed.slice(0, typed.length - rest.length) : `${fieldText(field.name)}=`;
  const items = operandItems(vocabulary, field, operand).map((item) => ({ ...item, text: head + item.text }));
  if (isRight || (field.kind === "time" && moment(rest.trim()))) return items;
  const words = field.name !== plain(name) ? texts.full_name : sign === "==" ? texts.one_equals : texts.right_form;
  return [{ text: head + operand, shown: head + operand, words, goesOn: !rest.trim() }, ...items.filter((item) => item.text !== head + operand)];
}

/**
 * Return what fits a line at a place.
 *
 * words: what `filter_words` of the server says. facets: what is stored, as the API answers it; null where that is not known.
 * The answer has the place that an item takes, from `start` to `end`, and the items: `text` goes there, `shown` is listed, with `words`
 * and the number of inferences `count`; `goesOn` says that more must follow, `sends` that the line is sent with it.
 */
export function suggest(text, caret, words, facets) {
  const { start, end } = comparisonAt(text, caret);
  const typed = text.slice(start, caret), match = COMPARISON.exec(typed), vocabulary = new Vocabulary(words, facets);
  const items = match ? comparisonItems(vocabulary, typed, match) : fieldItems(vocabulary, typed);
  const name = match ? null : /^(?:"(?:[^"\\]|\\.)*"?|[^"=])*=/.exec(text.slice(caret, end));
  const list = match && /^\s*(?:eq:|in:)?/.test(match[3]) && /(^|[:=]\s*)in\s*:/.test(typed) ? pieces(text.slice(caret, end), ",").slice(1) : [];
  const stop = name ? caret + name[0].length : end, rest = list.map((piece) => `,${piece}`).join("");
  const isNegated = /!\s*$/.test(text.slice(0, start)); // a day is two comparisons, which ! negates together
  const inParentheses = (line) => (isNegated && pieces(line, "&").length > 1 ? `(${line})` : line);
  const fit = items.map((item) => ({ ...item, text: inParentheses(item.text + rest) }));
  return { start, end: stop, items: fit.filter((item) => item.sends || item.text.trim() !== text.slice(start, stop).trim()).slice(0, MOST) };
}
