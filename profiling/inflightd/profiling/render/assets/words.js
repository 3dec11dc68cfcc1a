// Numbers as people read them.
"use strict";

const grouped = new Intl.NumberFormat("en-US");

function duration(ms) {
  if (ms >= 999.5) return `${digits(ms / 1000)} s`;
  if (ms >= 0.9995) return `${digits(ms)} ms`;
  return ms >= 0.0009995 ? `${digits(ms * 1000)} us` : `${Math.round(ms * 1e6)} ns`;
}

function digits(value) {
  return value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : grouped.format(value.toFixed(0));
}

function share(fraction) {
  if (fraction === 0) return "0%";
  if (fraction < 0.001) return "< 0.1%";
  return `${(fraction * 100).toFixed(fraction < 0.0995 ? 1 : 0)}%`;
}

// A time on the axis, with as many digits as tell neighbours apart; a long stretch is in seconds.
function axisTime(ms, stepMs, longestMs) {
  const [scale, unit] = longestMs >= 2000 ? [1000, "s"] : [1, "ms"];
  const decimals = Math.max(0, Math.min(6, Math.ceil(-Math.log10(stepMs / scale) - 1e-9)));
  return `${grouped.format(Math.trunc(ms / scale))}${(Math.abs(ms / scale) % 1).toFixed(decimals).slice(1)} ${unit}`;
}
