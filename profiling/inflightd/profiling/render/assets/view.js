// The stretch of time on show, and who is told when it changes.
"use strict";

class View {
  constructor(lengthMs) {
    this.full = [0, Math.max(lengthMs, 0.001)];
    [this.from, this.to] = this.full;
    this.listeners = [];
  }

  get length() {
    return this.to - this.from;
  }

  // Keeps the stretch inside the trace and at least a microsecond long; listeners run once a frame.
  show(from, to) {
    const whole = this.full[1] - this.full[0];
    const length = Math.min(whole, Math.max(to - from, 0.001));
    this.from = Math.min(Math.max(from + (to - from - length) / 2, this.full[0]), this.full[1] - length);
    this.to = this.from + length;
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      for (const listener of this.listeners) listener();
    });
  }

  // factor < 1 is closer; the time `at` stays where it is.
  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(fraction) {
    this.show(this.from + fraction * this.length, this.to + fraction * this.length);
  }

  // A stretch with something around it, so that one sees what it lies between.
  showAround(from, to) {
    const margin = Math.max((to - from) * 0.75, this.full[1] * 1e-6, 0.05);
    this.show(from - margin, to + margin);
  }

  reset() {
    this.show(...this.full);
  }
}
