// What a drag, a corner or a turn makes of an annotation of this page's image. Knows nothing of what is stored.

import { data } from "./inference.js";
import { withPoint } from "./contours.js";
import { ringsOf } from "./geometry.js";

/** The form of the objects of this task: `box`, `oriented`, `contour`; undefined for none. */
export const shape = { OBJECT_DETECTION: "box", ORIENTED_OBJECT_DETECTION: "oriented", IMAGE_SEGMENTATION: "contour" }[data.task];

const round = (value, digits) => Number(value.toFixed(digits));
const clamp = (value, most) => round(Math.min(Math.max(value, 0), most), 2);

/** A new box, oriented or not, with a label between two corners. */
export function boxFrom(label, [x1, y1], [x2, y2]) {
  const [left, right] = [clamp(Math.min(x1, x2), data.width), clamp(Math.max(x1, x2), data.width)];
  const [top, bottom] = [clamp(Math.min(y1, y2), data.height), clamp(Math.max(y1, y2), data.height)];
  if (shape === "box") return { label, xmin: left, ymin: top, xmax: right, ymax: bottom };
  return { label, ...relative((left + right) / 2, (top + bottom) / 2, right - left, bottom - top, 0) };
}

/** A new contour with a label around points, in pixels of the page. */
export function contourFrom(label, points) {
  return { label, contour: [points.map(([x, y]) => ({ x: round(clamp(x, data.width) - 0.5, 2), y: round(clamp(y, data.height) - 0.5, 2) }))] };
}

const relative = (cx, cy, w, h, r) => ({ cx: round(cx / data.width, 7), cy: round(cy / data.height, 7), w: round(w / data.width, 7), h: round(h / data.height, 7), r: round(r, 6) });

/** An object moved by so many pixels. */
export function moved(item, dx, dy) {
  if ("xmin" in item) {
    const [w, h] = [item.xmax - item.xmin, item.ymax - item.ymin];
    const [xmin, ymin] = [clamp(item.xmin + dx, Math.max(data.width - w, 0)), clamp(item.ymin + dy, Math.max(data.height - h, 0))];
    return { ...item, xmin, ymin, xmax: round(xmin + w, 2), ymax: round(ymin + h, 2) };
  }
  if ("cx" in item) return { ...item, cx: round(item.cx + dx / data.width, 7), cy: round(item.cy + dy / data.height, 7) };
  if (item.contour) return { ...item, contour: item.contour.map((ring) => ring.map(({ x, y }) => ({ x: round(x + dx, 2), y: round(y + dy, 2) }))) };
  return item;
}

/** An oriented box turned by an angle; others stay as they are. */
export function turned(item, by) { return "cx" in item ? { ...item, r: round((item.r ?? 0) + by, 6) } : item; }

/** An object whose corner or point was dragged to a place. */
export function dragged(item, grip, [x, y], isTurning) {
  const ring = ringsOf(item, data.width, data.height)[0];
  if (item.contour) return withPoint(item, grip, [x, y]);
  const [u, v] = ring[(grip + 2) % 4];
  if ("xmin" in item) return { ...item, ...boxFrom(item.label, [u, v], [x, y]) };
  const r = item.r ?? 0, [cx, cy] = [item.cx * data.width, item.cy * data.height];
  if (isTurning) {
    const [gx, gy] = ring[grip];
    return turned(item, Math.atan2(y - cy, x - cx) - Math.atan2(gy - cy, gx - cx));
  }
  const [dx, dy] = [x - u, y - v], [cos, sin] = [Math.cos(r), Math.sin(r)];
  const [w, h] = [Math.abs(dx * cos + dy * sin), Math.abs(dy * cos - dx * sin)];
  return { ...item, ...relative((x + u) / 2, (y + v) / 2, w, h, r) };
}
