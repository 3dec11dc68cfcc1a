// Curves over the steps in view, with few enough points for the screen.
"use strict";

// field: the column; worst: what matters of several values on one pixel; gap: the value where no step is, if not the last.
const CURVES = [
  { title: "decode sequences", colour: "decode", field: "step_decode", worst: Math.max, worstName: "highest", gap: 0 },
  { title: "prefill tokens", colour: "prefill", field: "step_prefill", worst: Math.max, worstName: "highest", gap: 0 },
  { title: "KV blocks free", colour: "blocks", field: "step_free", worst: Math.min, worstName: "lowest" },
  { title: "waiting", colour: "waiting", field: "step_waiting", worst: Math.max, worstName: "highest" },
];

// For each curve [times, the worst on each pixel, their average]; while there is room each step is a point of its own.
function pointsInView(trace, view, width) {
  const { starts, ends } = trace.steps;
  const from = Math.max(0, firstAbove(ends, view.from) - 1);
  const to = Math.min(trace.count, firstAbove(starts, view.to) + 1);
  const pixelMs = view.length / width;
  const times = [];
  const curves = CURVES.map((curve) => ({ ...curve, values: trace.columns[curve.field], worsts: [], averages: [] }));
  for (let step = from; step < to; ) {
    const edge = starts[step] + pixelMs;
    let end = step + 1;
    // One point a pixel; a step that is wider than that stands alone.
    while (end < to && starts[end] < edge) end++;
    times.push(starts[step]);
    for (const curve of curves) addPoint(curve, step, end);
    // Between most steps there is a little time; a gap is one that a step would have had room in.
    const gap = (end < to ? starts[end] : Infinity) - ends[end - 1];
    if (gap > Math.max(pixelMs, ends[end - 1] - starts[end - 1])) {
      times.push(ends[end - 1]);
      for (const curve of curves) addGap(curve, end - 1);
    }
    step = end;
  }
  return curves.map((curve) => [times, curve.worsts, curve.averages]);
}

function addPoint({ values, worst, worsts, averages }, from, to) {
  let [extreme, sum] = [values[from], values[from]];
  for (let at = from + 1; at < to; at++) {
    extreme = worst(extreme, values[at]);
    sum += values[at];
  }
  worsts.push(known(extreme));
  averages.push(known(sum / (to - from)));
}

function addGap({ values, gap, worsts, averages }, step) {
  const value = known(gap ?? values[step]);
  worsts.push(value);
  averages.push(value);
}

// The source did not tell what is below zero.
function known(value) {
  return value < 0 ? null : value;
}
