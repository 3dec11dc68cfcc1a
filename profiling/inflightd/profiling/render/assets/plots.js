// The lanes and the curves under each other, all on one time axis; uPlot gives axes, cursor and canvas.
"use strict";

const LEFT = 76; // of every plot, so that they are aligned
const LANE_HEIGHTS = { engine: 56, gpu: 12, admit: 9, resume: 9, preempt: 9, requests: 132 };
const LANE_NAMES = { engine: "engine", gpu: "GPU", admit: "admitted", resume: "resumed", preempt: "preempted", requests: "requests" };
const LANE_GAP = 7;

class Plots {
  constructor(trace, view, details, { lanes, curves, legend }) {
    Object.assign(this, { trace, view, details, legend });
    this.lanesBox = lanes;
    this.curvesBox = curves;
    this.requests = new RequestLane(trace);
    this.markTimes = Object.fromEntries(
      MARKS.map((name) => [name, Float64Array.from(trace.columns[`${name}_step`], (step) => trace.steps.starts[step])]),
    );
    // Marked over all plots: policy swaps, and what is alarming.
    this.moments = [false, true].map((alarming) => trace.moments.filter((moment) => moment.alarming === alarming));
    this.momentTimes = this.moments.map((moments) => Float64Array.from(moments, (moment) => moment.at_ms));
    this.laneNames = Object.keys(LANE_HEIGHTS).filter((name) => name !== "gpu" || trace.has_kernels);
    this.readPalette();
    this.lanes = this.plot(lanes, this.laneNames.reduce((sum, name) => sum + LANE_HEIGHTS[name] + LANE_GAP, 0) + 56, [], true);
    this.curves = CURVES.map((curve, at) => this.plot(curves, at === CURVES.length - 1 ? 118 : 88, [curve], at === CURVES.length - 1));
    view.listeners.push(() => this.redraw());
    details.listeners.push(() => this.all().forEach((plot) => plot.redraw(false)));
    new ResizeObserver(() => this.resize()).observe(lanes);
    this.redraw();
  }

  all() {
    return [this.lanes, ...this.curves];
  }

  readPalette() {
    const style = getComputedStyle(document.documentElement);
    const paint = (name) => style.getPropertyValue(`--${name.replaceAll(" ", "-")}`).trim();
    const names = [...this.trace.colourNames, ...LIFE_KINDS, ...MARKS, "kernel", "blocks", "waiting", "text", "faint", "grid", "selection", "policy-mark"];
    this.palette = Object.fromEntries(names.map((name) => [name, paint(name)]));
  }

  plot(parent, height, curves, hasTimes) {
    const palette = (name) => () => this.palette[name];
    const font = "11px system-ui, sans-serif";
    const timeAxis = {
      scale: "x",
      stroke: palette("faint"),
      font,
      size: hasTimes ? 30 : 6,
      grid: { stroke: palette("grid"), width: 1 },
      ticks: { show: hasTimes, stroke: palette("grid"), width: 1, size: 4 },
      space: 96,
      values: (plot, splits, axis, space, stepMs) =>
        splits.map((ms) => (hasTimes ? axisTime(ms, stepMs || 1, this.view.to) : "")),
    };
    const valueAxis = {
      scale: "y",
      stroke: palette("faint"),
      font,
      size: LEFT,
      space: 22,
      grid: { stroke: palette("grid"), width: 1 },
      ticks: { show: false },
      values: (plot, splits) => splits.map((value) => (Number.isInteger(value) ? grouped.format(value) : "")),
    };
    const isLanes = !curves.length;
    return new uPlot(
      {
        width: this.width(parent),
        height,
        padding: [isLanes ? 20 : 16, 30, 0, 0],
        legend: { show: false },
        scales: { x: { time: false, range: () => [this.view.from, this.view.to] }, y: { range: isLanes ? [0, 1] : (plot, low, high) => [0, Math.max(1, high * 1.08)] } },
        axes: [timeAxis, isLanes ? { ...valueAxis, grid: { show: false }, values: () => [] } : valueAxis],
        series: [{}, ...(isLanes ? [{ show: false }] : curves.flatMap((curve) => [this.series(curve, "55"), this.series(curve, "")]))],
        cursor: {
          y: false,
          points: { show: !isLanes, size: 6 },
          sync: { key: "steps", setSeries: false },
          drag: { x: true, y: false, setScale: false, dist: 4 },
          // Shift with a drag moves the view; only a plain drag marks a stretch to zoom to.
          bind: {
            mousedown: (plot, target, handler) => (event) => (event.shiftKey ? this.startPan(plot, event) : handler(event)),
            dblclick: () => () => this.view.reset(),
          },
        },
        hooks: {
          ready: [(plot) => this.listen(plot)],
          setSelect: [(plot) => this.zoomToSelection(plot)],
          setCursor: isLanes ? [] : [(plot) => this.readOut(plot, curves[0])],
          draw: [...(isLanes ? [(plot) => this.drawLanes(plot)] : []), (plot) => this.drawOver(plot)],
        },
      },
      isLanes ? [[0, this.view.full[1]], [null, null]] : [[0], [0], [0]],
      parent.appendChild(this.holder(curves[0])),
    );
  }

  // Each curve has its name and its value at the cursor above it.
  holder(curve) {
    const made = document.createElement("div");
    made.className = "plot";
    if (curve) {
      const caption = Object.assign(document.createElement("div"), { className: "caption", textContent: curve.title });
      curve.output = caption.appendChild(document.createElement("output"));
      made.append(caption);
    }
    return made;
  }

  // The worst is a pale line over a pale ground, the average a full line; zoomed in they are one.
  series(curve, alpha) {
    return {
      stroke: () => this.palette[curve.colour] + alpha,
      fill: alpha ? () => `${this.palette[curve.colour]}38` : undefined,
      width: 1.25,
      paths: uPlot.paths.stepped({ align: 1 }),
      points: { show: false },
    };
  }

  width(parent) {
    return Math.max(320, Math.floor(parent.clientWidth));
  }

  resize() {
    const width = this.width(this.lanesBox);
    if (width === this.lanes.width) return;
    for (const plot of this.all()) plot.setSize({ width, height: plot.height });
    this.redraw();
  }

  recolour() {
    this.readPalette();
    this.all().forEach((plot) => plot.redraw());
  }

  redraw() {
    const points = pointsInView(this.trace, this.view, this.lanes.bbox.width / devicePixelRatio);
    this.lanes.setScale("x", { min: this.view.from, max: this.view.to });
    this.curves.forEach((plot, at) => plot.setData(points[at]));
  }

  listen(plot) {
    let pressedAt = null;
    plot.over.addEventListener("wheel", (event) => this.wheel(plot, event), { passive: false });
    plot.over.addEventListener("mousedown", (event) => (pressedAt = event.shiftKey ? null : event.clientX));
    plot.over.addEventListener("click", (event) => {
      if (pressedAt === null || Math.abs(event.clientX - pressedAt) > 3) return; // that was a drag
      this.details.showTime(this.timeAt(plot, event));
    });
  }

  timeAt(plot, event) {
    const { left, width } = plot.over.getBoundingClientRect();
    return this.view.from + ((event.clientX - left) / width) * this.view.length;
  }

  // Sideways, or with shift, the wheel pans.
  wheel(plot, event) {
    event.preventDefault();
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) this.view.pan(sideways / 1000);
    else this.view.zoom(Math.exp(Math.max(-240, Math.min(240, event.deltaY)) * 0.002), this.timeAt(plot, event));
  }

  startPan(plot, event) {
    const { from, to, length } = this.view;
    const perPixel = length / plot.over.getBoundingClientRect().width;
    const move = (moved) => {
      const by = (event.clientX - moved.clientX) * perPixel;
      this.view.show(from + by, to + by);
    };
    document.addEventListener("mousemove", move);
    document.addEventListener("mouseup", () => document.removeEventListener("mousemove", move), { once: true });
    return null;
  }

  zoomToSelection(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const perPixel = this.view.length / plot.over.getBoundingClientRect().width;
    const from = this.view.from + left * perPixel;
    for (const each of this.all()) each.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.view.show(from, from + width * perPixel);
  }

  readOut(plot, curve) {
    const at = plot.cursor.idx;
    const [worst, average] = [plot.data[1][at ?? -1] ?? null, plot.data[2][at ?? -1] ?? null];
    const words = average === null ? "" : grouped.format(Number(average.toFixed(1)));
    curve.output.textContent = worst === average ? words : `${words} (${curve.worstName} ${grouped.format(worst)})`;
  }

  drawLanes(plot) {
    const ratio = devicePixelRatio;
    const { left, width, top } = plot.bbox;
    const box = { left: Math.round(left), width: Math.round(width) };
    const boxes = {};
    let y = Math.round(top);
    for (const name of this.laneNames) {
      boxes[name] = { ...box, top: y, height: Math.round(LANE_HEIGHTS[name] * ratio) };
      y += Math.round((LANE_HEIGHTS[name] + LANE_GAP) * ratio);
    }
    const context = plot.ctx;
    context.save();
    const shares = drawPhases(context, this.trace, this.view, boxes.engine, this.palette);
    if (boxes.gpu) drawKernels(context, this.trace, this.view, boxes.gpu, this.palette.kernel);
    for (const name of MARKS) drawMarks(context, this.markTimes[name], this.view, boxes[name], this.palette[name], ratio);
    const states = LIFE_KINDS.map((name) => this.palette[name]);
    this.drawNames(context, boxes, ratio);
    this.requests.draw(context, this.view, boxes.requests, states, this.palette.faint, ratio);
    const across = { ...box, top: boxes.engine.top - 4 * ratio, height: y - boxes.engine.top };
    this.drawMoments(context, across, ratio);
    this.drawMomentNames(context, across, ratio);
    context.restore();
    this.legend.show(shares);
  }

  drawNames(context, boxes, ratio) {
    context.fillStyle = this.palette.text;
    context.font = `${11 * ratio}px system-ui, sans-serif`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    for (const [name, { top, height }] of Object.entries(boxes)) {
      context.fillText(LANE_NAMES[name], 2 * ratio, name === "requests" ? top + 7 * ratio : top + height / 2);
    }
  }

  drawMoments(context, box, ratio) {
    const paints = [this.palette["policy-mark"], this.palette.preempt];
    this.momentTimes.forEach((times, at) => drawMarks(context, times, this.view, box, paints[at], ratio));
  }

  // Each at its mark, as far as there is room before the next.
  drawMomentNames(context, box, ratio) {
    context.font = `${11 * ratio}px system-ui, sans-serif`;
    context.textAlign = "left";
    context.textBaseline = "bottom";
    let freeFrom = -Infinity;
    for (const { at_ms, words, alarming } of this.trace.moments) {
      const left = box.left + ((at_ms - this.view.from) / this.view.length) * box.width;
      const width = context.measureText(words).width;
      if (at_ms < this.view.from || left < freeFrom || left + width > box.left + box.width) continue;
      context.fillStyle = this.palette[alarming ? "preempt" : "policy-mark"];
      context.fillText(words, left, box.top - ratio);
      freeFrom = left + width + 8 * ratio;
    }
  }

  // The selected step or span, and on the curves the moments.
  drawOver(plot) {
    const { left, width, top, height } = plot.bbox;
    const box = { left, width, top, height };
    const context = plot.ctx;
    if (plot !== this.lanes) this.drawMoments(context, box, devicePixelRatio);
    const { selected } = this.details;
    if (!selected || selected.to < this.view.from || selected.from > this.view.to) return;
    const scale = width / this.view.length;
    const from = Math.max(0, (selected.from - this.view.from) * scale);
    const to = Math.min(width, (selected.to - this.view.from) * scale);
    context.save();
    context.strokeStyle = this.palette.selection;
    context.lineWidth = 1.5 * devicePixelRatio;
    const beside = to - from < 6 ? 2 * devicePixelRatio : 0; // what is narrow stays visible between the lines
    context.strokeRect(left + from - beside, top, to - from + 2 * beside, height);
    context.restore();
  }
}
