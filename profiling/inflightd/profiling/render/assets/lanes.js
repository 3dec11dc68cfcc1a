// What lies above the curves: the engine's phases, marks, and the requests, drawn on the canvas of a plot.
"use strict";

const MARKS = ["admit", "resume", "preempt"];
const REQUEST_ROWS = 40; // more in view are shown as numbers, not one by one

// How much of each of `width` pixels each colour covers: rows of `colours` shares, one row a pixel.  Exact at every zoom,
// and one pass over what is in view however many spans that is.
function coverage(starts, ends, colourOf, colours, view, width, first = firstAbove(ends, view.from)) {
  const cover = new Float32Array(width * colours);
  const scale = width / view.length;
  for (let at = first; at < starts.length && starts[at] < view.to; at++) {
    const left = Math.max(0, (starts[at] - view.from) * scale);
    const right = Math.min(width, (ends[at] - view.from) * scale);
    if (right <= left) continue;
    const colour = colourOf[at];
    const last = Math.min(width - 1, Math.floor(right));
    for (let pixel = Math.floor(left); pixel <= last; pixel++) {
      cover[pixel * colours + colour] += Math.min(right, pixel + 1) - Math.max(left, pixel);
    }
  }
  return cover;
}

// A column a pixel, each colour as high as its share; `whole` is what fills the height.
function drawCoverage(context, cover, paints, box, whole = 1) {
  const colours = paints.length;
  const width = cover.length / colours;
  for (let colour = 0, done = new Float32Array(width); colour < colours; colour++) {
    context.fillStyle = paints[colour];
    for (let pixel = 0; pixel < width; ) {
      const high = cover[pixel * colours + colour] / whole;
      // Neighbours that look alike are one rectangle.
      let end = pixel + 1;
      while (end < width && cover[end * colours + colour] / whole === high && done[end] === done[pixel]) end++;
      if (high > 0) {
        const bottom = box.top + box.height * (1 - done[pixel]);
        context.fillRect(box.left + pixel, bottom - high * box.height, end - pixel, high * box.height);
      }
      for (let at = pixel; at < end; at++) done[at] += high;
      pixel = end;
    }
  }
}

function drawPhases(context, trace, view, box, palette) {
  const { starts, ends } = trace.spans;
  const paints = trace.colourNames.map((name) => palette[name]);
  const cover = coverage(starts, ends, trace.spanColours, paints.length, view, box.width);
  drawCoverage(context, cover, paints, box);
  const sums = new Float64Array(paints.length);
  for (let at = 0; at < cover.length; at++) sums[at % paints.length] += cover[at];
  return sums.map((sum) => sum / box.width);
}

function drawKernels(context, trace, view, box, paint) {
  const { starts, ends } = trace.kernels;
  drawCoverage(context, coverage(starts, ends, new Uint8Array(starts.length), 1, view, box.width), [paint], box);
}

// A tick for each, at least two pixels wide; what falls on one place is one tick.
function drawMarks(context, timesMs, view, box, paint, ratio) {
  const scale = box.width / view.length;
  const wide = Math.max(2, Math.round(1.5 * ratio));
  context.fillStyle = paint;
  let drawnTo = -1;
  for (let at = firstAbove(timesMs, view.from - 1e-9); at < timesMs.length && timesMs[at] <= view.to; at++) {
    const left = Math.round((timesMs[at] - view.from) * scale);
    if (left <= drawnTo) continue;
    context.fillRect(box.left + left, box.top, wide, box.height);
    drawnTo = left + wide - 1;
  }
}

// Requests in rows while they are few enough to be told apart, else their number in each state.
class RequestLane {
  constructor(trace) {
    this.lives = trace.lives;
    this.kinds = trace.columns.life_kind;
    this.requests = trace.columns.life_request;
    // Lives overlap, so their ends are not in order: up to which place all have ended by then?
    this.latestEnd = new Float64Array(this.kinds.length);
    let latest = 0;
    this.lives.ends.forEach((end, at) => (this.latestEnd[at] = latest = Math.max(latest, end)));
  }

  draw(context, view, box, paints, textPaint, ratio) {
    const { starts, ends } = this.lives;
    const first = firstAbove(this.latestEnd, view.from);
    const inView = new Set();
    for (let at = first; at < starts.length && starts[at] < view.to && inView.size <= REQUEST_ROWS; at++) {
      if (ends[at] > view.from) inView.add(this.requests[at]);
    }
    if (inView.size > REQUEST_ROWS) {
      this.drawNumbers(context, view, box, paints, first, textPaint, ratio);
      return;
    }
    const rows = new Map([...inView].sort((one, other) => one - other).map((request, row) => [request, row]));
    const pitch = Math.min(16 * ratio, box.height / Math.max(rows.size, 1));
    const high = Math.max(1, pitch - (pitch > 4 * ratio ? ratio : 0));
    const scale = box.width / view.length;
    for (let at = first; at < starts.length && starts[at] < view.to; at++) {
      if (ends[at] <= view.from) continue;
      const left = Math.max(0, (starts[at] - view.from) * scale);
      const right = Math.min(box.width, (ends[at] - view.from) * scale);
      const thin = this.kinds[at] === 0 ? 0.4 : 1; // who waits is a thin line
      context.fillStyle = paints[this.kinds[at]];
      const top = box.top + rows.get(this.requests[at]) * pitch + (high * (1 - thin)) / 2;
      context.fillRect(box.left + left, top, Math.max(right - left, 1), high * thin);
    }
    if (pitch >= 10 * ratio) this.drawNames(context, rows, box, pitch, textPaint, ratio);
  }

  drawNames(context, rows, box, pitch, paint, ratio) {
    context.fillStyle = paint;
    context.font = `${9 * ratio}px system-ui, sans-serif`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const [request, row] of rows) {
      context.fillText(`${request}`, box.left - 4 * ratio, box.top + (row + 0.5) * pitch);
    }
  }

  drawNumbers(context, view, box, paints, first, textPaint, ratio) {
    const { starts, ends } = this.lives;
    const cover = coverage(starts, ends, this.kinds, paints.length, view, box.width, first);
    let most = 1;
    for (let pixel = 0; pixel < box.width; pixel++) {
      let sum = 0;
      for (let kind = 0; kind < paints.length; kind++) sum += cover[pixel * paints.length + kind];
      most = Math.max(most, sum);
    }
    drawCoverage(context, cover, paints, box, most);
    // The height's scale, as on the axes below.
    context.fillStyle = textPaint;
    context.font = `${11 * ratio}px system-ui, sans-serif`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(grouped.format(Math.round(most)), box.left - 4 * ratio, box.top + 4 * ratio);
    context.fillText("0", box.left - 4 * ratio, box.top + box.height - 4 * ratio);
  }
}
