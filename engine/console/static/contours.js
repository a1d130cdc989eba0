// Points of a contour, counted through all of its rings: to find, move, insert and remove one. Annotations have the centres of
// pixels as whole numbers; points on the page lie half a pixel further.

const LEAST = 3; // points of a ring
const round = (value) => Number(value.toFixed(2));
const saved = ([x, y]) => ({ x: round(x - 0.5), y: round(y - 0.5) });

/** Ring and place of a point; null for none. */
function placeOf(contour, number) {
  let place = number;
  for (const [ring, points] of contour.entries()) {
    if (place >= 0 && place < points.length) return [ring, place];
    place -= points.length;
  }
  return null;
}

function changed(item, number, change) {
  const found = placeOf(item.contour, number);
  if (!found) return item;
  const [ring, place] = found;
  return { ...item, contour: item.contour.map((points, at) => (at === ring ? change(points, place) : points)) };
}

export const countPoints = (item) => item.contour.reduce((sum, points) => sum + points.length, 0);

/** Annotation with a point elsewhere, in pixels of the page. */
export const withPoint = (item, number, to) => changed(item, number, (points, place) => points.toSpliced(place, 1, saved(to)));

/** Annotation with a point moved by pixels. */
export const withPointMoved = (item, number, dx, dy) =>
  changed(item, number, (points, place) => points.toSpliced(place, 1, { x: round(points[place].x + dx), y: round(points[place].y + dy) }));

/** Annotation with a new point after another; halfway to the next one, if no place is given. */
export const withPointAfter = (item, number, at) => changed(item, number, (points, place) => {
  const [from, to] = [points[place], points[(place + 1) % points.length]];
  return points.toSpliced(place + 1, 0, at ? saved(at) : { x: round((from.x + to.x) / 2), y: round((from.y + to.y) / 2) });
});

/** Annotation without a point; a ring that would have too few is left out, and the annotation itself, as null, without any. */
export function withoutPoint(item, number) {
  const shorter = changed(item, number, (points, place) => (points.length > LEAST ? points.toSpliced(place, 1) : []));
  const contour = shorter.contour.filter((points) => points.length);
  return contour.length ? { ...shorter, contour } : null;
}

/** Number of the point before the edge that is nearest to a place within some pixels; -1 if none is. */
export function edgeNear(rings, [x, y], within) {
  let best = -1, least = within, number = 0;
  for (const ring of rings) {
    ring.forEach(([u, v], i) => {
      const [s, t] = ring[(i + 1) % ring.length], [dx, dy] = [s - u, t - v];
      const share = Math.min(Math.max(((x - u) * dx + (y - v) * dy) / (dx * dx + dy * dy || 1), 0), 1);
      const distance = Math.hypot(x - u - share * dx, y - v - share * dy);
      if (distance <= least) [best, least] = [number + i, distance];
    });
    number += ring.length;
  }
  return best;
}
