// The panel that says all about one step, or about the time between two.
"use strict";

class Details {
  constructor(trace, view, panel) {
    this.trace = trace;
    this.view = view;
    this.panel = panel;
    this.selected = null; // {from, to} in milliseconds
    this.listeners = [];
  }

  // Whatever is at that time: a step, a span between steps, or nothing.
  showTime(ms) {
    const step = firstAbove(this.trace.steps.starts, ms) - 1;
    if (step >= 0 && ms < this.trace.steps.ends[step]) return this.showStep(step);
    const span = firstAbove(this.trace.spans.starts, ms) - 1;
    if (span >= 0 && ms < this.trace.spans.ends[span]) return this.showSpan(span, step);
    return this.close();
  }

  showStep(step) {
    const { columns, steps } = this.trace;
    const value = (name) => columns[`step_${name}`][step];
    const kind = kindOf(value("prefill"), value("decode"));
    const length = steps.ends[step] - steps.starts[step];
    const facts = [
      ["began at", duration(steps.starts[step])],
      ["took", duration(length)],
      ["expected", value("expected") ? duration(value("expected") / 1e6) : "-"],
      ["policy generation", number(value("generation"))],
      ["prefill tokens", number(value("prefill"))],
      ["of them again", number(value("recomputed"))],
      ["decode sequences", number(value("decode"))],
      ["rows of padding", number(value("padding"))],
      ["running", number(value("running"))],
      ["waiting", number(value("waiting"))],
      ["KV blocks free", number(value("free"))],
      ["blocks swapped out", number(value("swapped_out"))],
      ["blocks swapped in", number(value("swapped_in"))],
    ];
    const lists = [
      ["prompt chunks", this.list("chunk", step, (at) => `${columns.chunk_request[at]} (${columns.chunk_tokens[at]} tokens)`)],
      ["began to run", this.list("admit", step, (at) => columns.admit_request[at])],
      ["ran again", this.list("resume", step, (at) => columns.resume_request[at])],
      ["preempted", this.list("preempt", step, (at) => this.preempted(at))],
      ["waiting for", this.list("wait", step, (at) => `${this.trace.reasons[columns.wait_reason[at]]}: ${columns.wait_count[at]}`)],
    ].filter(([, words]) => words);
    this.open(`Step ${grouped.format(value("number"))}, ${kind}`, steps.starts[step], steps.ends[step], step);
    this.panel.append(table(facts.slice(0, 7)), table(facts.slice(7)), table(this.phases(step, length)), ...(lists.length ? [table(lists)] : []));
  }

  showSpan(span, stepBefore) {
    const { spans, phases, columns } = this.trace;
    const [from, to] = [spans.starts[span], spans.ends[span]];
    this.open(`Between steps: ${phases[columns.span_phase[span]]}`, from, to, stepBefore);
    const payload = columns.span_payload[span];
    this.panel.append(table([["began at", duration(from)], ["took", duration(to - from)], ...(payload ? [["payload", number(payload)]] : [])]));
  }

  phases(step, length) {
    const { spans, columns, phases, steps } = this.trace;
    const sums = new Map();
    const first = firstAbove(spans.ends, steps.starts[step]);
    for (let at = first; at < spans.starts.length && spans.starts[at] < steps.ends[step]; at++) {
      const name = phases[columns.span_phase[at]];
      sums.set(name, (sums.get(name) ?? 0) + spans.ends[at] - spans.starts[at]);
    }
    return [...sums].map(([name, ms]) => [name, `${duration(ms)} (${share(ms / length)})`]);
  }

  preempted(at) {
    const { columns } = this.trace;
    const how = columns.preempt_swapped[at] ? "swap" : "recompute";
    return `${columns.preempt_request[at]} (by ${how}, ${grouped.format(columns.preempt_tokens[at])} tokens)`;
  }

  list(name, step, wordsOf) {
    const [from, to] = rowsOf(this.trace.columns[`${name}_step`], step);
    const shown = Array.from({ length: Math.min(to - from, 24) }, (_, index) => wordsOf(from + index));
    return shown.join(", ") + (to - from > 24 ? ` and ${to - from - 24} more` : "");
  }

  // Selects; with the buttons one walks from step to step, and the view follows.
  open(title, from, to, step) {
    this.selected = { from, to };
    const heading = document.createElement("h3");
    heading.textContent = title;
    const bar = document.createElement("div");
    bar.className = "bar";
    const { starts, ends } = this.trace.steps;
    const button = (label, hint, action) => {
      const made = Object.assign(document.createElement("button"), { textContent: label, title: hint, disabled: !action });
      if (action) made.addEventListener("click", action);
      return made;
    };
    const walk = (to_) => to_ >= 0 && to_ < this.trace.count && (() => {
      if (starts[to_] < this.view.from || ends[to_] > this.view.to) this.view.showAround(starts[to_], ends[to_]);
      this.showStep(to_);
    });
    const isStep = starts[step] === from;
    bar.append(
      heading,
      button("◀", "the step before", walk(isStep ? step - 1 : step)),
      button("▶", "the next step", walk(step + 1)),
      button("zoom to it", "", () => this.view.showAround(from, to)),
      button("✕", "close", () => this.close()),
    );
    this.panel.replaceChildren(bar);
    this.panel.hidden = false;
    for (const listener of this.listeners) listener();
  }

  close() {
    this.selected = null;
    this.panel.hidden = true;
    for (const listener of this.listeners) listener();
  }
}

function number(value) {
  return value < 0 ? "-" : grouped.format(value);
}

function table(rows) {
  const made = document.createElement("table");
  for (const [name, value] of rows) {
    const row = made.insertRow();
    row.append(Object.assign(document.createElement("th"), { textContent: name }));
    row.insertCell().textContent = value;
  }
  return made;
}
