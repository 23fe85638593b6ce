// Numbers with three digits and a unit.

const NONE = "–";

function scaled(value, base, units) {
  let place = 0;
  while (Math.abs(value) >= base * 0.9995 && place + 1 < units.length) {
    value /= base;
    place += 1;
  }
  const digits = value >= 99.95 || place === 0 && Number.isInteger(value) ? 0 : value >= 9.995 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[place]}`;
}

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);
const of = (write) => (value) => (known(value) ? write(value) : NONE);

export const rate = of((bps) => scaled(bps, 1000, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"]));
export const bytes = of((n) => scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]));
export const perSecond = of((n) => (n < 9.95 ? `${Number(n.toFixed(1))}/s` : `${scaled(n, 1000, ["", "k", "M", "G"]).trim()}/s`));
export const count = of((n) => Math.round(n).toLocaleString("en"));
export const percent = of((share) => `${(share * 100).toFixed(share < 0.0995 && share > 0 ? 1 : 0)} %`);

export const duration = of((seconds) => {
  if (seconds === 0) return "0 µs";
  if (seconds < 0.9995e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 0.9995) return `${(seconds * 1e3).toFixed(seconds < 9.995e-3 ? 1 : 0)} ms`;
  return `${seconds.toFixed(seconds < 9.95 ? 1 : 0)} s`;
});

/** A time of a sample, as the clock here says it. */
export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB");
}

/** Seconds as the uptime of something. */
export function uptime(seconds) {
  const [days, rest] = [Math.floor(seconds / 86400), Math.floor(seconds % 86400)];
  const time = [rest / 3600, (rest % 3600) / 60, rest % 60].map((n) => String(Math.floor(n)).padStart(2, "0"));
  return (days ? `${days} d ` : "") + time.join(":");
}
