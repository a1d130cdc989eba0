// Predictions and annotations as rings of points in pixels of the image, and which of them are the same object.

/** Ring of points [[x, y], ...], of a shape; none for labels and answers. */
export function ringsOf(item, width, height) {
  if (Array.isArray(item.contour)) return item.contour.filter((ring) => ring.length).map((ring) => ring.map(({ x, y }) => [x + 0.5, y + 0.5]));
  if (Array.isArray(item.corners)) return [item.corners.map(([x, y]) => [x, y])];
  if ("cx" in item && "w" in item) {
    const { r = 0 } = item, [cx, cy] = [item.cx * width, item.cy * height], [w, h] = [item.w * width / 2, item.h * height / 2];
    const [cos, sin] = [Math.cos(r), Math.sin(r)];
    return [[[-w, -h], [w, -h], [w, h], [-w, h]].map(([x, y]) => [cx + x * cos - y * sin, cy + x * sin + y * cos])];
  }
  if ("xmin" in item) {
    const { xmin, ymin, xmax, ymax } = item;
    return [[[xmin, ymin], [xmax, ymin], [xmax, ymax], [xmin, ymax]]];
  }
  return [];
}

/** Bounds [left, top, right, bottom] of rings. */
export function boundsOf(rings) {
  const bounds = [Infinity, Infinity, -Infinity, -Infinity];
  for (const ring of rings) for (const [x, y] of ring) {
    if (x < bounds[0]) bounds[0] = x;
    if (y < bounds[1]) bounds[1] = y;
    if (x > bounds[2]) bounds[2] = x;
    if (y > bounds[3]) bounds[3] = y;
  }
  return bounds;
}

/** Whether a point is inside rings; a ring within another is a hole. */
export function contains(rings, x, y) {
  let inside = false;
  for (const ring of rings) for (let i = 0, j = ring.length - 1; i < ring.length; j = i++) {
    const [xi, yi] = ring[i], [xj, yj] = ring[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) inside = !inside;
  }
  return inside;
}

const areaOf = (ring) => ring.reduce((sum, [x, y], i) => { const [u, v] = ring[(i + 1) % ring.length]; return sum + x * v - u * y; }, 0) / 2;
const oriented = (ring) => (areaOf(ring) < 0 ? [...ring].reverse() : ring);

// Sutherland and Hodgman: the part of a polygon inside a convex one.
function clipped(ring, convex) {
  let points = ring;
  for (let i = 0; i < convex.length && points.length; i++) {
    const [ax, ay] = convex[i], [bx, by] = convex[(i + 1) % convex.length];
    const side = ([x, y]) => (bx - ax) * (y - ay) - (by - ay) * (x - ax);
    const kept = [];
    for (let j = 0; j < points.length; j++) {
      const from = points[j], to = points[(j + 1) % points.length], [a, b] = [side(from), side(to)];
      if (a >= 0) kept.push(from);
      if (a >= 0 !== b >= 0) kept.push([from[0] + (to[0] - from[0]) * a / (a - b), from[1] + (to[1] - from[1]) * a / (a - b)]);
    }
    points = kept;
  }
  return points;
}

const SIDE = 128; // of the canvas on which contours are compared
let canvas = null;

/** Opacities of the pixels of a part of the image that rings cover, also those that an outline runs through, as an evaluation counts them. */
function painted(rings, left, top, scale) {
  canvas ??= Object.assign(document.createElement("canvas"), { width: SIDE, height: SIDE }).getContext("2d", { willReadFrequently: true });
  canvas.setTransform(1, 0, 0, 1, 0, 0);
  canvas.clearRect(0, 0, SIDE, SIDE);
  canvas.setTransform(scale, 0, 0, scale, -left * scale, -top * scale);
  canvas.beginPath();
  for (const ring of rings) {
    canvas.moveTo(...ring[0]);
    for (const point of ring) canvas.lineTo(...point);
    canvas.closePath();
  }
  canvas.fill("evenodd");
  canvas.stroke();
  return canvas.getImageData(0, 0, SIDE, SIDE).data.filter((_, place) => place % 4 === 3);
}

const isContour = (item) => Array.isArray(item.source?.contour);

/** Overlap of two shapes, 0 to 1: exact for boxes, upright or not; of contours by their pixels. */
export function overlap(a, b) {
  const [p, q] = [a.bounds, b.bounds];
  if (p[0] > q[2] || q[0] > p[2] || p[1] > q[3] || q[1] > p[3]) return 0;
  if (!isContour(a) && !isContour(b)) {
    const [s, t] = [oriented(a.rings[0]), oriented(b.rings[0])];
    const common = clipped(s, t), shared = common.length > 2 ? Math.abs(areaOf(common)) : 0;
    const all = areaOf(s) + areaOf(t) - shared;
    return all > 0 ? shared / all : 0;
  }
  const [left, top] = [Math.floor(Math.min(p[0], q[0])) - 1, Math.floor(Math.min(p[1], q[1])) - 1];
  const scale = Math.min(SIDE / (Math.max(p[2], q[2]) + 2 - left), SIDE / (Math.max(p[3], q[3]) + 2 - top), 1);
  const [ofA, ofB] = [painted(a.rings, left, top, scale), painted(b.rings, left, top, scale)];
  let both = 0, either = 0;
  ofA.forEach((alpha, place) => {
    both += alpha > 127 && ofB[place] > 127;
    either += alpha > 127 || ofB[place] > 127;
  });
  return either ? both / either : 0;
}

/**
 * Say of each prediction and annotation how it went, in `state`: predictions with the best scores first take the annotation of
 * their label that they overlap most, from `least` on. Without a truth, nothing is said of predictions.
 */
export function match(predictions, truth, least = 0.5) {
  if (truth === null) {
    for (const item of predictions) item.state = "pred";
    return;
  }
  const byLabel = new Map();
  for (const item of truth) {
    item.state = "missed";
    if (!byLabel.has(item.label)) byLabel.set(item.label, []);
    byLabel.get(item.label).push(item);
  }
  for (const item of [...predictions].sort((a, b) => (b.score ?? 1) - (a.score ?? 1))) {
    let best = null, most = least;
    for (const other of byLabel.get(item.label) ?? []) {
      if (other.state !== "missed") continue;
      const shared = item.rings.length && other.rings.length ? overlap(item, other) : Number(!item.rings.length && !other.rings.length);
      if (shared >= most) [best, most] = [other, shared];
    }
    item.state = best ? "matched" : "false";
    if (best) best.state = "matched";
  }
}
