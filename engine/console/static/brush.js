// A range of times, chosen on the bars over time: a drag over them, or Shift with a click or Enter on the first and the last.
// Each bar is a link to its own time without this script. A finger drags as well; up and down it scrolls the page.

const LEAST_PX = 5; // a shorter drag is a click

/** Where a range of bars leads to: the link of the first, up to the end of the last. */
export function rangeAddress(first, last, origin) {
  const address = new URL(first.href, origin), line = address.searchParams.get("q") ?? "";
  const end = `ts=lt:${first.end}`, place = line.lastIndexOf(end);
  if (place < 0) return null;
  address.searchParams.set("q", `${line.slice(0, place)}ts=lt:${last.end}${line.slice(place + end.length)}`);
  return address.href;
}

class Brush {
  constructor(chart) {
    this.chart = chart;
    this.drawing = chart.querySelector(".bars");
    this.note = chart.parentElement.querySelector("[data-range-note]");
    this.bars = [...chart.querySelectorAll("a[data-end]")].map((link) => {
      const hit = link.querySelector(".hit"), left = Number(hit.getAttribute("x"));
      return { link, href: link.getAttribute("href"), end: link.dataset.end, left, right: left + Number(hit.getAttribute("width")) };
    });
    this.shade = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, value] of [["class", "brush"], ["y", "0"], ["height", "80"], ["visibility", "hidden"]]) this.shade.setAttribute(name, value);
    this.drawing.append(this.shade);
    this.from = null; // where a drag began, in pixels of the page
    this.first = null; // the bar from which a range is extended
    this.isDragged = this.wasDragged = false;
    chart.addEventListener("dragstart", (event) => event.preventDefault()); // the link itself is not dragged
    chart.addEventListener("pointerdown", (event) => this.press(event));
    chart.addEventListener("pointermove", (event) => this.move(event));
    chart.addEventListener("pointerup", (event) => this.release(event));
    chart.addEventListener("pointercancel", () => this.stop());
    chart.addEventListener("click", (event) => this.click(event), true);
    chart.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.shiftKey) this.extend(event);
    });
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") this.stop(); });
  }

  press(event) {
    this.wasDragged = false;
    if (event.button === 0 && !event.shiftKey) this.from = event.clientX;
  }

  move(event) {
    if (!(event.buttons & 1)) this.from = null; // it was let go elsewhere
    if (this.from === null || (!this.isDragged && Math.abs(event.clientX - this.from) < LEAST_PX)) return;
    if (!this.isDragged) this.chart.setPointerCapture(event.pointerId);
    this.isDragged = true;
    this.show(this.between(event.clientX));
  }

  release(event) {
    this.wasDragged = this.isDragged;
    if (!this.isDragged) { this.from = null; return; }
    const bars = this.between(event.clientX);
    this.stop();
    if (bars.length) this.go(bars[0], bars.at(-1));
  }

  click(event) {
    if (this.wasDragged) { event.preventDefault(); event.stopPropagation(); }
    else if (event.shiftKey) this.extend(event);
    this.wasDragged = false;
  }

  /** Take a bar as the first of a range, or as its other end. */
  extend(event) {
    const bar = this.bars.find(({ link }) => link === event.target.closest("a"));
    if (!bar) return;
    event.preventDefault(); // no new window
    if (this.first) { this.go(...[this.first, bar].sort((a, b) => a.left - b.left)); return; }
    this.first = bar;
    this.show([bar]);
    this.note.textContent = this.note.dataset.rangeNote.replace("{bar}", bar.link.getAttribute("aria-label"));
  }

  /** Bars between the place where the drag began and another. */
  between(clientX) {
    const { left, width } = this.chart.getBoundingClientRect(), scale = this.drawing.viewBox.baseVal.width / width;
    const [low, high] = [this.from, clientX].map((place) => (place - left) * scale).sort((a, b) => a - b);
    return this.bars.filter((bar) => bar.left < high && bar.right > low);
  }

  show(bars) {
    this.shade.setAttribute("visibility", bars.length ? "visible" : "hidden");
    if (!bars.length) return;
    this.shade.setAttribute("x", bars[0].left);
    this.shade.setAttribute("width", bars.at(-1).right - bars[0].left);
  }

  stop() {
    this.from = this.first = null;
    this.isDragged = false;
    this.note.textContent = "";
    this.show([]);
  }

  go(first, last) {
    const address = rangeAddress(first, last, location.href);
    this.stop();
    if (address) location.assign(address);
  }
}

for (const chart of document.querySelectorAll(".timeline")) new Brush(chart);
