// Columns of numbers as columns.py packed them, and the model of the trace that everything here draws from.
"use strict";

const ELEMENT_BYTES = { u1: 1, u4: 4, i4: 4, u8: 8 };
const FORWARD_KINDS = ["prefill", "decode", "mixed"];
const LIFE_KINDS = ["queued", "prefilling", "decoding", "preempted"];

async function inflate(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function column(buffer, kind, count) {
  switch (kind) {
    case "u1":
      return new Uint8Array(buffer);
    case "u4":
      return new Uint32Array(buffer);
    case "i4":
      return new Int32Array(buffer);
    default: {
      // 64 bits are all low halves, then all high ones.  Nanoseconds of a month are exact in a double.
      const halves = new Uint32Array(buffer);
      return Float64Array.from({ length: count }, (_, at) => halves[count + at] * 2 ** 32 + halves[at]);
    }
  }
}

async function readColumns(packed) {
  const blob = await inflate(packed.blob);
  const columns = {};
  let at = 0;
  for (const [name, kind, count] of packed.index) {
    const length = ELEMENT_BYTES[kind] * count;
    columns[name] = column(blob.slice(at, at + length), kind, count); // a copy, so that it is aligned
    at += length;
  }
  return columns;
}

// Differences and lengths in nanoseconds -> starts and ends in milliseconds since what is drawn began.
function times(deltas, lengths) {
  const starts = new Float64Array(deltas.length);
  const ends = new Float64Array(deltas.length);
  let now = 0;
  for (let at = 0; at < deltas.length; at++) {
    now += deltas[at];
    starts[at] = now / 1e6;
    ends[at] = (now + lengths[at]) / 1e6;
  }
  return { starts, ends };
}

async function readTrace(data) {
  const columns = await readColumns(data.columns);
  const steps = times(columns.step_start, columns.step_length);
  const spans = times(columns.span_start, columns.span_length);
  const lives = times(columns.life_start, columns.life_length);
  const kernels = times(columns.kernel_start, columns.kernel_length);
  const forward = data.phases.indexOf("forward");
  // What a span is drawn as: its phase, and a forward by what its step computed.
  const colourNames = [...FORWARD_KINDS, ...data.phases.filter((name) => name !== "forward")];
  const colourOfPhase = data.phases.map((name) => colourNames.indexOf(name));
  const spanColours = new Uint8Array(spans.starts.length);
  let step = 0;
  for (let at = 0; at < spanColours.length; at++) {
    const phase = columns.span_phase[at];
    if (phase !== forward) {
      spanColours[at] = colourOfPhase[phase];
      continue;
    }
    while (step + 1 < steps.starts.length && steps.ends[step] <= spans.starts[at]) step++;
    spanColours[at] = FORWARD_KINDS.indexOf(kindOf(columns.step_prefill[step], columns.step_decode[step]));
  }
  return { ...data, columns, steps, spans, lives, kernels, colourNames, spanColours, count: steps.starts.length };
}

function kindOf(prefillTokens, decodeSequences) {
  if (!prefillTokens) return "decode";
  return decodeSequences ? "mixed" : "prefill";
}

// The first place in `sorted` whose value is above `value`.
function firstAbove(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (sorted[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

// The rows [from, to) of a sorted column of step indices that belong to `step`.
function rowsOf(stepColumn, step) {
  return [firstAbove(stepColumn, step - 1), firstAbove(stepColumn, step)];
}
