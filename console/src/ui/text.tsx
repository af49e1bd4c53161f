// Text of others: shown as text, with everything that a reader would not see.
import type { ComponentChildren } from 'preact';

const UNSEEN =
  /([\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}\u00a0\u034f\u115f\u1160\u2000-\u200a\u202f\u205f\u2800\u3000\u3164\uffa0\ufe00-\ufe0f\u{e0100}-\u{e01ef}])/u;

function codePoint(char: string): string {
  return `U+${(char.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, '0')}`;
}

/** Returns how many characters of a text are not seen. Line breaks and tabs are. */
export function unseenIn(text: string): number {
  return [...text].filter(char => char !== '\n' && char !== '\t' && UNSEEN.test(char)).length;
}

/** Returns a text with marks in place of what is not seen, for places that hold text alone. */
export function plain(text: string): string {
  return text
    .split(UNSEEN)
    .map((part, at) => (at % 2 === 0 ? part : part === '\n' || part === '\t' ? ' ' : `<${codePoint(part)}>`))
    .join('');
}

/** Shows a text with marks for characters that are not seen. No direction of it reaches the text around it. */
export function Text({ children, multiline = false }: { children: string; multiline?: boolean }) {
  const parts = children.split(UNSEEN);
  const shown: ComponentChildren[] = parts.map((part, at) => {
    if (at % 2 === 0) return part;
    if (part === '\n' || part === '\t') return multiline ? part : ' ';
    return (
      <span class="unseen" key={at}>
        {codePoint(part)}
      </span>
    );
  });
  return <bdi class={multiline ? 'text multiline' : 'text'}>{shown}</bdi>;
}

/** Returns a short form of a time: the time of today, or the date before. */
export function shortTime(at: string | undefined | null): string {
  if (!at) return '–';
  const time = new Date(at);
  if (Number.isNaN(time.getTime())) return at;
  const isToday = time.toDateString() === new Date().toDateString();
  return isToday ? time.toLocaleTimeString() : time.toLocaleString([], { dateStyle: 'short', timeStyle: 'short' });
}

export function Time({ at }: { at: string | undefined | null }) {
  return at ? (
    <time dateTime={at} title={at}>
      {shortTime(at)}
    </time>
  ) : (
    <span class="faint">–</span>
  );
}

/** Returns a duration in its two largest units. */
export function duration(seconds: number): string {
  const units: [string, number][] = [['d', 86_400], ['h', 3_600], ['min', 60], ['s', 1]];
  const parts: string[] = [];
  let rest = Math.floor(seconds);
  for (const [name, size] of units) {
    if (rest >= size && parts.length < 2) {
      parts.push(`${Math.floor(rest / size)} ${name}`);
      rest %= size;
    }
  }
  return parts.join(' ') || '0 s';
}

export function number(value: number): string {
  return value.toLocaleString('en-US');
}

export function bytes(value: number): string {
  if (value < 1_024) return `${value} B`;
  return value < 1_048_576 ? `${(value / 1_024).toFixed(1)} KiB` : `${(value / 1_048_576).toFixed(1)} MiB`;
}

export function milliseconds(value: number | undefined | null): string {
  if (value === undefined || value === null) return '–';
  return value < 10 ? `${value.toFixed(1)} ms` : value < 10_000 ? `${Math.round(value)} ms` : `${(value / 1_000).toFixed(1)} s`;
}
