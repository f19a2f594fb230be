"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip"), live = document.getElementById("live");
  const SVG = "http://www.w3.org/2000/svg";

  // Figures as the tables have them.
  const plain = (v) => {
    const text = v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e5) ? v.toExponential(1).replace(".0e", "e").replace("e+", "e")
      : Math.abs(v) < 1000 ? String(Number(v.toPrecision(3))) : Math.round(v).toLocaleString("en");
    return text.replaceAll("-", "−");
  };
  const two = (v) => v.toFixed(2).replace(/^-0\.00$/, "0.00").replace("-", "−");
  const shown = (v, form) => form === "percent" ? (100 * v).toFixed(1) + " %"
    : form === "seconds" ? (v >= 0.1 ? v.toFixed(2) + " s" : plain(1000 * v) + " ms") : plain(v);

  // The tip: lines of [name, value]; text only, never markup.
  const say = (title, lines, x, y) => {
    tip.replaceChildren();
    if (title) tip.append(Object.assign(document.createElement("b"), { textContent: title }));
    for (const [name, value] of lines) {
      const line = document.createElement("div");
      line.append(Object.assign(document.createElement("span"), { textContent: name }));
      if (value !== undefined) line.append(Object.assign(document.createElement("span"), { textContent: value }));
      tip.append(line);
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth - 6 ? x - 14 - box.width : x + 14;
    tip.style.left = Math.max(6, Math.min(left, innerWidth - box.width - 6)) + "px";
    tip.style.top = Math.max(6, Math.min(y - box.height / 2, innerHeight - box.height - 6)) + "px";
  };
  const hush = () => { tip.hidden = true; };
  let again = null;  // says the tip once more, where it now belongs: the page may still scroll to a chart that got the focus

  // Curves: the values of the round nearest to the pointer, or by the arrow keys.
  for (const svg of document.querySelectorAll("svg[data-chart]")) {
    const chart = data.charts[svg.dataset.chart];
    if (!chart) continue;
    const cursor = svg.querySelector(".cursor"), bar = cursor.querySelector("line");
    const rounds = [...new Set(chart.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const scale = ([low, high, start, end], v, log) => {
      if (log) { v = Math.log10(Math.max(v, low)); low = Math.log10(low); high = Math.log10(high); }
      return start + (high > low ? (v - low) / (high - low) : 0.5) * (end - start);
    };
    let at = rounds.length - 1;
    const point = (index, x, y) => {
      at = index;
      const round = rounds[at], px = scale(chart.x, round, false), lines = [];
      cursor.querySelectorAll("circle").forEach((c) => c.remove());
      for (const line of chart.lines) {
        const i = line.x.indexOf(round);
        if (i < 0) continue;
        const band = line.low && line.high[i] > line.low[i] ? ` (${shown(line.low[i], chart.form)} … ${shown(line.high[i], chart.form)})` : "";
        lines.push([line.label, line.told ? line.told[i] : shown(line.y[i], chart.form) + band]);
        const dot = document.createElementNS(SVG, "circle");
        dot.setAttribute("class", "c" + line.colour);
        dot.setAttribute("cx", px); dot.setAttribute("cy", scale(chart.y, line.y[i], chart.log)); dot.setAttribute("r", 3.5);
        cursor.append(dot);
      }
      bar.setAttribute("x1", px); bar.setAttribute("x2", px);
      cursor.removeAttribute("hidden");
      const title = chart.lines[0].told ? "" : chart.bins ? "at " + plain(round) : "round " + round.toLocaleString("en");
      const box = svg.getBoundingClientRect(), width = svg.viewBox.baseVal.width;
      say(title, lines, x ?? box.left + px * box.width / width, y ?? box.top + box.height / 2);
      return (title && title + ": ") + lines.map((l) => l.join(" ")).join("; ");
    };
    const leave = () => { cursor.setAttribute("hidden", ""); again = null; hush(); };
    svg.addEventListener("pointermove", (event) => {
      again = null;
      const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      let best = 0;
      rounds.forEach((r, i) => { if (Math.abs(scale(chart.x, r, false) - place.x) < Math.abs(scale(chart.x, rounds[best], false) - place.x)) best = i; });
      point(best, event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -rounds.length, End: rounds.length }[event.key];
      if (event.key === "Escape") return leave();
      if (!step) return;
      event.preventDefault();
      live.textContent = point(Math.max(0, Math.min(rounds.length - 1, at + step)));
      again = () => point(at);
    });
  }

  // Marks that know their own words, and images of matrices.
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest?.("[data-tip]"), image = event.target.closest?.("[data-matrix]");
    if (mark) say("", [[mark.dataset.tip]], event.clientX, event.clientY);
    else if (image) {
      const matrix = data.matrices[image.dataset.matrix], box = image.getBoundingClientRect(), n = matrix.names.length;
      const cell = (v, size) => Math.max(0, Math.min(n - 1, Math.floor(v / size * n)));
      const i = cell(event.clientY - box.top, box.height), j = cell(event.clientX - box.left, box.width);
      const value = matrix.values[i][j] / 100;
      say(matrix.names[i] + " – " + matrix.names[j], [[i === j ? "the class itself" : matrix.what, i === j ? undefined : plain(matrix.what === "cosine" ? value : 100 * value)]], event.clientX, event.clientY);
    } else if (!event.target.closest?.("svg[data-chart]")) hush();
  });
  addEventListener("scroll", () => again ? again() : hush(), { passive: true });

  // The classes over time.
  const slider = document.getElementById("round"), play = document.getElementById("play");
  if (slider && data.rounds) {
    const name = document.getElementById("round-name");
    const panels = data.planes.map((plane, number) => ({
      ...plane,
      dots: [...document.querySelectorAll(`svg[data-plane="${number}"] .dot`)],
      told: document.querySelector(`[data-told="${number}"]`),
    }));
    const show = () => {
      const round = data.rounds[slider.value], words = "round " + round.toLocaleString("en");
      name.textContent = words;
      slider.setAttribute("aria-valuetext", words);
      for (const panel of panels) {
        let step = 0;
        panel.rounds.forEach((r, i) => { if (r <= round) step = i; });
        panel.dots.forEach((dot, i) => {
          const place = panel.places[step][i];
          dot.toggleAttribute("hidden", !place);
          if (place) dot.style.transform = `translate(${place[0]}px,${-place[1]}px)`;
        });
        panel.told.textContent = `largest cosine ${two(panel.largest[step])}\nmean ${two(panel.mean[step])}`;
      }
    };
    let timer = 0;
    const stop = () => { clearInterval(timer); timer = 0; play.setAttribute("aria-pressed", "false"); play.setAttribute("aria-label", "Play"); };
    slider.addEventListener("input", () => { stop(); show(); });
    play.addEventListener("click", () => {
      if (timer) return stop();
      if (slider.value === slider.max) { slider.value = 0; show(); }
      play.setAttribute("aria-pressed", "true");
      play.setAttribute("aria-label", "Pause");
      timer = setInterval(() => {
        slider.value = Number(slider.value) + 1;
        show();
        if (slider.value === slider.max) stop();
      }, 300);
    });
  }

  // On paper every table is open, and the classes are where they ended.
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
})();
