// The image and its objects on a canvas, sharp at every zoom: outlines have the same width on the screen, whatever the scale.

import { edgeNear } from "./contours.js";
import { boundsOf, contains } from "./geometry.js";

export const GLYPHS = { matched: "●", false: "▲", missed: "○" };
const ORDER = ["truth", "missed", "matched", "pred", "false", "mine"];
const DASHED = new Set(["pred", "matched", "false"]);
const RIM_PX = 4.25, LINE_PX = 1.9, FONT_PX = 12, SMALL_FONT_PX = 10, SMALL_PX = 480, GRIP_PX = 9, MARGIN_PX = 24;
const MAX_SCALE = 40;
const MAX_PLATES = 300; // labels beyond would cover the image, and one another

const style = getComputedStyle(document.documentElement);
const colour = (name) => style.getPropertyValue(name).trim();
const COLOURS = Object.fromEntries(["truth", "pred", "matched", "false", "missed"].map((name) => [name, colour(`--o-${name}`)]));
COLOURS.mine = colour("--o-pred");
const RIM = colour("--o-rim");

/** The picture. `items` have `rings`, `bounds`, `state`, `label`, `score`; `onView` hears of zoom and pan. */
export class Picture {
  constructor(stage, width, height) {
    [this.width, this.height] = [width, height];
    this.items = [];
    this.chosen = null;
    this.hasGrips = false;
    this.grip = -1; // the corner that keys move
    this.outline = null; // points of a contour that is being drawn, the last one under the pointer
    this.hasLabels = true;
    this.image = null;
    this.view = null; // scale and offset; null fits the image into the stage
    this.paths = null;
    this.canvas = document.createElement("canvas");
    this.canvas.className = "canvas";
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.context = this.canvas.getContext("2d");
    stage.append(this.canvas);
    this.stage = stage;
    this.frame = 0;
    new ResizeObserver(() => this.draw()).observe(stage);
    this.#listen();
  }

  /** Show other items. */
  set(items) {
    this.items = items;
    this.paths = null;
    this.draw();
  }

  /** Draw before the next frame. */
  draw() {
    if (!this.frame) this.frame = requestAnimationFrame(() => { this.frame = 0; this.#draw(); });
  }

  fitted() {
    const [w, h] = [this.stage.clientWidth, this.stage.clientHeight];
    const margin = w < 768 ? 0 : MARGIN_PX;
    const scale = Math.max(Math.min((w - 2 * margin) / this.width, (h - 2 * margin) / this.height), 0.001);
    return { scale, x: (w - this.width * scale) / 2, y: (h - this.height * scale) / 2 };
  }

  current() { return this.view ?? this.fitted(); }

  /** Zoom by a factor around a point of the stage; 0 fits the image again. */
  zoom(factor, x = this.stage.clientWidth / 2, y = this.stage.clientHeight / 2) {
    if (!factor) { this.view = null; this.draw(); return; }
    const view = this.current(), least = this.fitted().scale;
    const scale = Math.min(Math.max(view.scale * factor, least), Math.max(MAX_SCALE, least));
    const ratio = scale / view.scale;
    this.view = scale === least ? null : { scale, x: x - (x - view.x) * ratio, y: y - (y - view.y) * ratio };
    this.draw();
  }

  pan(dx, dy) {
    const view = this.current();
    this.view = { ...view, x: view.x + dx, y: view.y + dy };
    this.draw();
  }

  /** Point of the image under a pointer. */
  toImage(event) {
    const box = this.canvas.getBoundingClientRect(), view = this.current();
    return [(event.clientX - box.left - view.x) / view.scale, (event.clientY - box.top - view.y) / view.scale];
  }

  /** Topmost, and there smallest, item at a point of the image. */
  at(x, y, among = this.items) {
    const slack = 4 / this.current().scale;
    const size = ({ bounds: [l, t, r, b] }) => (r - l) * (b - t);
    return among.filter((item) => item.rings.length && x > item.bounds[0] - slack && x < item.bounds[2] + slack && y > item.bounds[1] - slack && y < item.bounds[3] + slack
      && (contains(item.rings, x, y) || item.rings.some((ring) => ring.length === 4) || edgeNear(item.rings, [x, y], slack) >= 0)).sort((a, b) => size(a) - size(b))[0] ?? null;
  }

  /** Whether two points of the image are one for the hand. */
  isSame([u, v], [x, y]) { return Math.hypot(u - x, v - y) < (GRIP_PX + 2) / this.current().scale; }

  /** Number of the chosen item's corner at a point, through all of its rings, or -1. */
  gripAt(x, y) {
    if (!this.hasGrips || !this.chosen?.rings.length) return -1;
    return this.chosen.rings.flat().findIndex((corner) => this.isSame(corner, [x, y]));
  }

  /** Bounds of an item, in pixels of the stage. */
  onStage({ bounds: [left, top, right, bottom] }) {
    const { scale, x, y } = this.current();
    return [x + left * scale, y + top * scale, x + right * scale, y + bottom * scale];
  }

  /** Pixels of an item's bounds that a box [left, top, right, bottom] on the stage covers. */
  covers(item, [left, top, right, bottom]) {
    if (!item.rings.length) return 0;
    const [l, t, r, b] = this.onStage(item);
    return Math.max(Math.min(r, right) - Math.max(l, left), 0) * Math.max(Math.min(b, bottom) - Math.max(t, top), 0);
  }

  #listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.03 : 0.0015)), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    const pointers = new Map();
    canvas.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, event);
      if (pointers.size === 1 && event.button === 0 && this.onPress?.(event, this.toImage(event))) { pointers.clear(); return; }
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      if (pointers.size === 2) {
        const other = [...pointers.values()].find(({ pointerId }) => pointerId !== event.pointerId), box = canvas.getBoundingClientRect();
        const distance = ({ clientX, clientY }) => Math.max(Math.hypot(clientX - other.clientX, clientY - other.clientY), 1);
        this.zoom(distance(event) / distance(before), (event.clientX + other.clientX) / 2 - box.left, (event.clientY + other.clientY) / 2 - box.top);
      } else if (this.view || event.pointerType !== "touch") {
        this.pan(event.clientX - before.clientX, event.clientY - before.clientY);
      }
      pointers.set(event.pointerId, event);
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => pointers.delete(event.pointerId));
  }

  // One path for all outlines of a state, in pixels of the image, made again only if the items change.
  #paths() {
    if (this.paths) return this.paths;
    this.paths = new Map();
    for (const item of this.items) {
      if (!item.rings.length) continue;
      if (!this.paths.has(item.state)) this.paths.set(item.state, new Path2D());
      const path = this.paths.get(item.state);
      for (const ring of item.rings) {
        ring.forEach(([x, y], i) => (i ? path.lineTo(x, y) : path.moveTo(x, y)));
        path.closePath();
      }
    }
    return this.paths;
  }

  #draw() {
    const [w, h] = [this.stage.clientWidth, this.stage.clientHeight], ratio = devicePixelRatio || 1, { canvas, context } = this;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
      [canvas.width, canvas.height] = [Math.round(w * ratio), Math.round(h * ratio)];
    }
    const view = this.current(), scale = view.scale * ratio;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.setTransform(scale, 0, 0, scale, view.x * ratio, view.y * ratio);
    if (this.image) {
      context.imageSmoothingEnabled = scale < 4; // pixels are told apart when they are large
      context.imageSmoothingQuality = "high";
      context.drawImage(this.image, 0, 0, this.width, this.height);
    }
    context.lineJoin = "round";
    const paths = this.#paths();
    context.setLineDash([]);
    context.strokeStyle = RIM;
    context.lineWidth = RIM_PX / view.scale;
    for (const path of paths.values()) context.stroke(path);
    context.lineWidth = LINE_PX / view.scale;
    for (const state of ORDER) {
      const path = paths.get(state);
      if (!path) continue;
      context.strokeStyle = COLOURS[state];
      context.setLineDash(DASHED.has(state) ? [5 / view.scale, 3 / view.scale] : []);
      context.stroke(path);
    }
    context.setLineDash([]);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (this.chosen) this.#drawChosen(view);
    if (this.outline?.length) this.#drawOutline(view);
    if (this.hasLabels) this.#drawLabels(view, w, h);
    this.onDraw?.();
  }

  #drawChosen(view) {
    const { context } = this;
    let number = 0;
    for (const ring of this.chosen.rings) {
      const points = ring.map(([x, y]) => [view.x + x * view.scale, view.y + y * view.scale]);
      context.beginPath();
      points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
      context.closePath();
      context.fillStyle = "rgb(255 255 255 / .14)";
      context.fill("evenodd");
      if (!this.hasGrips) continue;
      for (const [x, y] of points) this.#drawGrip(x, y, number++ === this.grip);
    }
  }

  #drawOutline(view) {
    const { context } = this, points = this.outline.map(([x, y]) => [view.x + x * view.scale, view.y + y * view.scale]);
    for (const [colour, width] of [[RIM, RIM_PX], [COLOURS.truth, LINE_PX]]) {
      context.beginPath();
      points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
      [context.strokeStyle, context.lineWidth] = [colour, width];
      context.stroke();
    }
    points.forEach(([x, y], i) => this.#drawGrip(x, y, i === 0));
  }

  #drawGrip(x, y, isMeant) {
    const { context } = this;
    [context.fillStyle, context.strokeStyle, context.lineWidth] = [isMeant ? COLOURS.missed : "#fff", "#0b1116", 1.25];
    context.beginPath();
    context.roundRect(x - GRIP_PX / 2, y - GRIP_PX / 2, GRIP_PX, GRIP_PX, 2);
    context.fill();
    context.stroke();
  }

  // Labels stand above their object, or inside at the edge of the image; of many, those of the best scores.
  #drawLabels(view, w, h) {
    const { context } = this;
    const fontPx = w < SMALL_PX ? SMALL_FONT_PX : FONT_PX;
    context.font = `600 ${fontPx}px ${colour("--font")}`;
    context.textBaseline = "middle";
    const taken = [];
    for (const item of this.items) {
      if (!item.rings.length || (item.state === "matched" && item.kind === "truth")) continue;
      const left = view.x + item.bounds[0] * view.scale, top = view.y + item.bounds[1] * view.scale;
      const [right, bottom] = [view.x + item.bounds[2] * view.scale, view.y + item.bounds[3] * view.scale];
      if (right < 0 || bottom < 0 || left > w || top > h) continue;
      if (taken.length >= MAX_PLATES) break;
      item.plate ??= item.label.slice(0, 40) + (item.score == null ? "" : ` ${item.score.toFixed(2)}`);
      if (item.plateFontPx !== fontPx) [item.plateFontPx, item.plateWidth] = [fontPx, context.measureText(item.plate).width];
      const glyph = GLYPHS[item.state], width = item.plateWidth + (glyph ? 14 : 0) + 12, height = fontPx + 7;
      const x = Math.max(Math.min(left, w - width), 0);
      // Above the object, below it, or inside: the first place that is in the picture and free.
      const places = [top - height - 3, bottom + 3, top + 3, bottom - height - 3].filter((y) => y >= 0 && y + height <= h);
      const isFree = (y) => taken.every((box) => x > box[0] + box[2] || x + width < box[0] || y > box[1] + height || y + height < box[1]);
      const y = places.find(isFree) ?? places[0] ?? Math.min(Math.max(top + 3, 0), h - height);
      taken.push([x, y, width]);
      context.fillStyle = "rgb(8 12 16 / .8)";
      context.beginPath();
      context.roundRect(x, y, width, height, 3);
      context.fill();
      if (glyph) {
        context.fillStyle = COLOURS[item.state];
        context.fillText(glyph, x + 6, y + height / 2 + 0.5);
      }
      context.fillStyle = "#fff";
      context.fillText(item.plate, x + 6 + (glyph ? 14 : 0), y + height / 2 + 0.5);
    }
  }
}

/** A prediction or annotation as the picture shows it. */
export function drawn(item, kind, number, rings) {
  return { kind, number, source: item, label: String(item.label ?? ""), score: typeof item.score === "number" ? item.score : null, rings, bounds: boundsOf(rings), state: kind };
}
