// Values as people read them: the same words as in the reports and on the command line.

const SIZES = [[1e12, 'TB', 2], [9.995e9, 'GB', 1, 1e9], [9.995e8, 'GB', 2, 1e9], [9.95e6, 'MB', 0, 1e6], [9.995e5, 'MB', 1, 1e6], [1e3, 'kB', 0]];
const known = value => value !== null && value !== undefined && !Number.isNaN(value);

export function bytes(value) {
  if (!known(value)) return '–';
  const found = SIZES.find(([from]) => Math.abs(value) >= from);
  return found ? `${(value / (found[3] || found[0])).toFixed(found[2])} ${found[1]}` : `${Math.round(value)} B`;
}

/** Labels of an axis of bytes: one unit for all. */
export function bytesLabels(values) {
  const [from, unit, , scale] = SIZES.find(([from]) => Math.max(...values.map(Math.abs)) >= from) ?? [1, 'B'];
  return values.map(value => `${number(value / (scale ?? from))} ${unit}`);
}

export function number(value) {
  if (!known(value)) return '–';
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size < 1e-3 || size >= 1e7) return value.toExponential(2).replace(/\.?0+e/, 'e').replace('e+', 'e');
  return String(Number(value.toPrecision(Math.max(4, Math.ceil(Math.log10(size))))));
}

export const count = value => known(value) ? Math.round(value).toLocaleString('en') : '–';
export const percent = value => known(value) ? `${number(100 * value)} %` : '–';
export const are = value => value === 1 ? 'is' : 'are';
export const counted = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

const two = value => String(value).padStart(2, '0');

/** Seconds as a clock shows them. */
export function clock(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** Seconds in words, rounded to what matters. */
export function duration(seconds) {
  if (!known(seconds)) return '–';
  if (seconds < 1) return 'less than a second';
  if (seconds < 90) return counted(seconds, 'second');
  if (seconds < 5400) return counted(seconds / 60, 'minute');
  if (seconds < 129600) return `${number(Math.round(seconds / 360) / 10)} hours`;
  return counted(seconds / 86400, 'day');
}

/** A moment, in seconds since 1970: how long ago, with the date as its title. */
export function ago(moment, now = Date.now() / 1000) {
  if (!moment) return '–';
  const since = now - moment;
  return since < 5 ? 'just now' : since < 0 ? date(moment) : `${duration(since)} ago`;
}

export const date = moment => new Date(1000 * moment).toLocaleString(undefined, {dateStyle: 'medium', timeStyle: 'short'});

/** Energy in joules as watt-hours. */
export function energy(joules) {
  if (!known(joules)) return '–';
  const hours = joules / 3600;
  return hours >= 1000 ? `${number(Math.round(hours) / 1000)} kWh` : `${number(Number(hours.toPrecision(3)))} Wh`;
}

export const mass = grams => !known(grams) ? '–' : grams >= 1000 ? `${number(Math.round(grams) / 1000)} kg` : `${number(Number(grams.toPrecision(3)))} g`;

/** The first sentence of a longer text: up to a full stop or a semicolon, or the end of the line. */
export const firstSentence = text => text.split('\n')[0].split(/(?<=[^.])[.;](?=\s)/)[0];

/** Words of the command line for a page: a flag is the setting of its name. */
export const withoutFlags = text => text.replace(/(?<![\w-])--([a-z][a-z0-9-]*)/g, (_, flag) => flag.replaceAll('-', '_'));

/** What is wrong with a row, without the file that it is in and the flags of the command line. */
export const rowWords = text => sentence(withoutFlags(text.replace(/^[^,:]*, (row \d+:)/, '$1')));

/** The first letter of a sentence is a capital one. */
export const sentence = text => text ? text[0].toUpperCase() + text.slice(1) : '';

/** Names of states, and the tone of their chips. */
const TONES = {validating: 'waits', queued: 'waits', paused: 'held', running: 'grows', stopping: 'held', succeeded: 'good', failed: 'bad', cancelled: 'over'};
export const stateTone = state => TONES[state] ?? 'over';
const VERDICTS = {steady: 'good', 'warm-up': 'waits', fill: 'held', leak: 'bad', undecided: 'over'};
export const verdictTone = verdict => VERDICTS[verdict] ?? 'over';
