// The score of the curves of precision and recall: a slider moves the dots, and the numbers beside them.

const card = document.querySelector("[data-curves]");
const control = card?.querySelector("[data-curve-score]");
if (control) {
  const input = control.querySelector("input");
  const output = control.querySelector("output");
  const dots = card.querySelectorAll("[data-dot]");
  const rows = [...card.querySelectorAll("[data-points]")];
  const curves = rows.map((row) => JSON.parse(row.dataset.points)); // points are recall, precision, lowest score, place
  const show = () => {
    const score = Number(input.value);
    output.textContent = score.toFixed(2);
    curves.forEach((points, number) => {
      const reached = points.filter((point) => point[2] >= score);
      const chosen = reached.reduce((best, point) => (best && best[0] >= point[0] ? best : point), null);
      const [, recall, precision] = rows[number].cells;
      recall.textContent = chosen ? chosen[0].toFixed(2) : "–";
      precision.textContent = chosen ? chosen[1].toFixed(2) : "–";
      dots[number].setAttribute("r", chosen ? 4 : 0);
      if (chosen) {
        dots[number].setAttribute("cx", chosen[3]);
        dots[number].setAttribute("cy", chosen[4]);
      }
    });
  };
  control.hidden = false;
  input.addEventListener("input", show);
  show(); // a browser may keep the place of the slider
}
