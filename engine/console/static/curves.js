// The score of the curves of precision and recall: a slider moves the points, and the numbers beside them.

const card = document.querySelector("[data-curves]");
const control = card?.querySelector("[data-curve-score]");
if (control) {
  const size = Number(card.dataset.curves);
  const input = control.querySelector("input");
  const output = control.querySelector("output");
  const lines = [...card.querySelectorAll("[data-points]")];
  const dots = [...card.querySelectorAll("[data-dot]")];
  const rows = [...card.querySelectorAll("[data-curve-row]")];
  const curves = lines.map((line) => JSON.parse(line.dataset.points)); // points are recall, precision, lowest score
  const show = () => {
    const score = Number(input.value);
    output.textContent = score.toFixed(2);
    curves.forEach((points, number) => {
      const reached = points.filter((point) => point[2] >= score);
      const chosen = reached.reduce((best, point) => (best && best[0] >= point[0] ? best : point), null);
      const [, recall, precision] = rows[number].cells;
      recall.textContent = chosen ? chosen[0].toFixed(2) : "–";
      precision.textContent = chosen ? chosen[1].toFixed(2) : "–";
      dots[number].setAttribute("visibility", chosen ? "visible" : "hidden");
      if (chosen) {
        dots[number].setAttribute("cx", chosen[0] * size);
        dots[number].setAttribute("cy", (1 - chosen[1]) * size);
      }
    });
  };
  control.hidden = false;
  input.addEventListener("input", show);
  show(); // a browser may keep the place of the slider
}
