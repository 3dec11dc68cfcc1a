// Starts the page: reads the trace, draws it, and joins buttons, keys and tables to the view.
"use strict";

class Legend {
  constructor(trace, box, palette) {
    this.items = trace.colourNames.map((name) => {
      const item = document.createElement("span");
      const swatch = Object.assign(document.createElement("i"), { className: `swatch ${palette(name)}` });
      item.append(swatch, name, " ", document.createElement("b"));
      item.hidden = true;
      box.append(item);
      return item;
    });
  }

  // Shares of the time in view; a phase that the trace does not have is not listed.
  show(shares) {
    this.items.forEach((item, at) => {
      if (shares[at] > 0) item.hidden = false;
      item.lastChild.textContent = share(shares[at]);
    });
  }
}

function joinControls(view, details, trace) {
  const actions = {
    closer: () => view.zoom(0.5),
    wider: () => view.zoom(2),
    left: () => view.pan(-0.5),
    right: () => view.pan(0.5),
    reset: () => view.reset(),
  };
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", actions[button.dataset.do]);
  const keys = { "+": "closer", "=": "closer", "-": "wider", ArrowLeft: "left", ArrowRight: "right", 0: "reset" };
  document.addEventListener("keydown", (event) => {
    if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") details.close();
    else if (keys[event.key]) actions[keys[event.key]]();
    else return; // not ours
    event.preventDefault();
  });
  // A row that has a place on the timeline leads there.
  for (const row of document.querySelectorAll("tr[data-from]")) {
    const go = () => {
      view.showAround(Number(row.dataset.from), Number(row.dataset.to));
      details.showTime(Number(row.dataset.at));
      document.getElementById("timeline").scrollIntoView({ block: "start" });
    };
    row.tabIndex = 0;
    row.addEventListener("click", go);
    row.addEventListener("keydown", (event) => event.key === "Enter" && go());
  }
  document.getElementById("go").addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = Number(event.target.elements.step.value);
    const step = trace.columns.step_number.lastIndexOf(wanted); // an engine that was restarted counts from 1 again
    if (step < 0) return;
    view.showAround(trace.steps.starts[step], trace.steps.ends[step]);
    details.showStep(step);
  });
}

function tellView(view, trace) {
  const range = document.getElementById("range");
  const tell = () => {
    const steps = firstAbove(trace.steps.starts, view.to) - firstAbove(trace.steps.ends, view.from);
    range.textContent = `${duration(view.length)} from ${duration(view.from)}, ${grouped.format(steps)} steps`;
    Object.assign(range.dataset, { from: view.from, to: view.to, steps });
  };
  view.listeners.push(tell);
  tell();
}

// As the system is, until the button is pressed or the system changes.
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

function useTheme(isDark) {
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}

function joinTheme(recolour) {
  const change = (isDark) => {
    useTheme(isDark);
    recolour();
  };
  document.getElementById("theme").addEventListener("click", () => change(document.documentElement.dataset.theme !== "dark"));
  systemIsDark.addEventListener("change", () => change(systemIsDark.matches));
}

async function start() {
  useTheme(systemIsDark.matches);
  const trace = await readTrace(JSON.parse(document.getElementById("data").textContent));
  const view = new View(trace.length_ms);
  const details = new Details(trace, view, document.getElementById("details"));
  const legend = new Legend(trace, document.getElementById("legend"), (name) => name.replaceAll(" ", "-"));
  const boxes = { lanes: document.getElementById("lanes"), curves: document.getElementById("curves"), legend };
  const plots = new Plots(trace, view, details, boxes);
  joinControls(view, details, trace);
  joinTheme(() => plots.recolour());
  tellView(view, trace);
  document.body.dataset.steps = trace.count;
  document.body.dataset.ready = "1";
}

start().catch((error) => {
  const box = document.getElementById("failed");
  box.textContent = `The timeline could not be drawn (it needs a browser of 2023 or later): ${error}`;
  box.hidden = false;
  throw error;
});
