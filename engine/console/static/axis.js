// Times on charts in the reader's zone, with round marks; without this script they are in UTC, as the server writes them.

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200]; // less than a day
const STEPS_DAYS = [1, 2, 7, 14, 28, 56, 91, 182, 365], MOST = 7;
const MARK_PX = 90, EDGE_PX = 40; // room that a mark needs, and how near to an end it stands to its inner side
const CLOCK = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };

/** Round moments between two, at most `most`, and the seconds between them; both are milliseconds since 1970. */
export function roundTimes(start, end, most = MOST) {
  for (const step of STEPS_S) {
    if ((end - start) / (1000 * step) > most) continue;
    const offset = -60_000 * new Date(start).getTimezoneOffset(), size = 1000 * step, found = [];
    for (let at = Math.ceil((start + offset) / size) * size - offset; at <= end && found.length < most; at += size) found.push(at);
    return { found, step };
  }
  const days = STEPS_DAYS.find((count) => (end - start) / (86_400_000 * count) <= most) ?? Math.ceil((end - start) / (86_400_000 * most));
  const first = new Date(start), found = [];
  for (let day = 1; found.length < most; day += days) {
    const at = new Date(first.getFullYear(), first.getMonth(), first.getDate() + day).valueOf();
    if (at > end) break;
    found.push(at);
  }
  return { found, step: 86_400 * days };
}

/** The marks below a chart: moments with their words; the first one and each new day have their date. */
export function marks(start, end, most = MOST) {
  const { found, step } = roundTimes(start, end, most), times = found.length ? found : [start];
  let day = "";
  return times.map((at) => {
    const moment = new Date(at), date = moment.toLocaleString("en-GB", { day: "numeric", month: "short", ...(step > 27 * 86_400 ? { year: "numeric" } : {}) });
    const clock = moment.toLocaleString("en-GB", step < 60 ? { ...CLOCK, second: "2-digit" } : CLOCK);
    const words = step >= 86_400 ? date : date === day ? clock : `${date} ${clock}`;
    day = date;
    return { at, words };
  });
}

const local = (text) => new Date(text).toLocaleString("en-GB", { day: "numeric", month: "long", ...CLOCK, second: "2-digit" });

/** Write the marks below a chart, as many as there is room for. */
function writeMarks(chart, [start, end]) {
  const old = [...chart.querySelectorAll(".tx")], width = chart.clientWidth, isSingle = chart.dataset.single !== undefined;
  if (!old.length || !width) return;
  const most = Math.min(MOST, Math.max(2, Math.floor(width / MARK_PX)));
  for (const { at, words } of isSingle ? [{ at: (start + end) / 2, words: local(chart.dataset.start) }] : marks(start, end, most)) {
    const share = (at - start) / (end - start), mark = old[0].cloneNode();
    mark.setAttribute("x", `${(100 * share).toFixed(2)}%`);
    mark.setAttribute("text-anchor", share * width < EDGE_PX ? "start" : (1 - share) * width < EDGE_PX ? "end" : "middle");
    mark.textContent = words;
    chart.append(mark);
  }
  for (const mark of old) mark.remove();
}

for (const chart of document.querySelectorAll("svg.timeline[data-start]")) {
  const ends = [chart.dataset.start, chart.dataset.end].map((text) => new Date(text).valueOf());
  if (!(ends[1] > ends[0])) continue;
  writeMarks(chart, ends);
  new ResizeObserver(() => writeMarks(chart, ends)).observe(chart); // as a phone that is turned
  for (const bar of chart.querySelectorAll("a[data-utc]")) {
    const title = bar.querySelector("title"), words = local(bar.dataset.start);
    bar.setAttribute("aria-label", bar.getAttribute("aria-label").replace(bar.dataset.utc, words));
    title.textContent = title.textContent.replace(bar.dataset.utc, words);
  }
}

// Words of the cells of a drift map, which name a window by its times.
for (const cell of document.querySelectorAll(".windows a[data-utc]")) {
  const [start, end] = [cell.dataset.start, cell.dataset.end].map((text) => new Date(text)), day = { day: "numeric", month: "short" };
  const first = start.toLocaleString("en-GB", { ...day, ...CLOCK });
  const last = end.toLocaleString("en-GB", { ...(start.toDateString() === end.toDateString() ? {} : day), ...CLOCK });
  cell.title = cell.title.replace(cell.dataset.utc, start.valueOf() === end.valueOf() ? first : `${first} – ${last}`);
}

// Which zone the times of this page are in; what is typed in the filter stays in UTC.
for (const note of document.querySelectorAll("[data-zone]")) {
  const { timeZone } = Intl.DateTimeFormat().resolvedOptions(), minutes = -new Date().getTimezoneOffset();
  if (!minutes && timeZone === "UTC") continue;
  const [hours, rest] = [Math.trunc(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  const offset = minutes ? `UTC${minutes < 0 ? "−" : "+"}${hours}${rest ? `:${String(rest).padStart(2, "0")}` : ""}` : "UTC";
  note.textContent = note.dataset.zone.replace("{zone}", timeZone ? `${timeZone} (${offset})` : offset);
}
