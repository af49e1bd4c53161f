// Long lists: 5,000 tools of a real backend, and up to 25,000 sessions and 5,000 backends that the script answers in the broker's place.
// `scale.mjs ORIGIN TOKEN`. Only the rows in sight are in the page, and it never stops for a second. It reads 20,000 entries of a list.
import assert from 'node:assert/strict';

import { Person, launch, ok } from './browser.mjs';

const [origin, token] = process.argv.slice(2);
const ROWS_MAX = 80;
const PAUSE_MAX_MS = 1_000;

const browser = await launch();
const person = await Person.sit(browser, origin);
const { page } = person;

function session(number) {
  return {
    id: `s${number}`, tenant: 'default', principal: `person-${String(number).padStart(5, '0')}`, transport: 'http', endpoint: 'aggregated', protocol_version: '2025-11-25',
    client_name: 'client', client_version: '1', state: 'ready', subscriptions: 0, idle_seconds: number, created_at: '2026-01-01T00:00:00Z',
  };
}

function backend(number) {
  return {
    tenant: 'default', backend: `backend-${String(number).padStart(5, '0')}`, state: number % 7 ? 'ready' : 'failed', tools: number, prompts: 0, resources: 0, resource_templates: 0, links: 1,
    breaker: { state: 'closed', failures_in_a_row: 0 }, calls_in_flight: 0, calls_queued: 0, calls_max: 100, failed_attempts: 0,
  };
}

/** Answers a list page by page, as the broker does. */
async function answerList(path, member, entries) {
  await page.route(url => url.pathname.endsWith(path), route => {
    const after = Number(new URL(route.request().url()).searchParams.get('after') ?? 0);
    const next = after + 1_000;
    const body = { [member]: entries.slice(after, next), ...(next < entries.length ? { next: String(next) } : {}) };
    return route.fulfill({ contentType: 'application/json', body: JSON.stringify(body) });
  });
}

/** Scrolls a table to its end and back. Returns the longest pause between two frames. */
async function scroll(label) {
  return page.locator(`.table[aria-label="${label}"]`).evaluate(async box => {
    let longest = 0;
    let before = performance.now();
    const frame = () =>
      new Promise(resolve =>
        requestAnimationFrame(now => {
          longest = Math.max(longest, now - before);
          before = now;
          resolve();
        }),
      );
    await frame();
    longest = 0;
    const end = box.scrollHeight;
    for (let step = 0; step <= 60; step++) {
      box.scrollTop = (end * step) / 60;
      await frame();
    }
    return longest;
  });
}

async function check(view, label, first, last, sought, total) {
  await person.open(view);
  await page.getByText(first).first().waitFor();
  await page.getByText(total).first().waitFor();
  const pause = await scroll(label);
  await page.getByText(last).first().waitFor();
  const rows = await page.locator('tbody tr').count();
  assert.ok(rows <= ROWS_MAX, `${rows} rows are in the page`);
  assert.ok(pause < PAUSE_MAX_MS, `the page stops for ${pause} ms`);
  await page.getByRole('searchbox').fill(sought);
  await page.getByText(`1 of ${total.split(' ').at(-1)}`).first().waitFor();
  console.error(`${view}: ${rows} rows in the page, longest pause ${Math.round(pause)} ms`);
  ok(`${label} of ${total}`);
}

try {
  await person.signIn(token);
  await check('catalog', 'Catalog', 'b__tool-00000', 'b__tool-04999', 'tool-01234', '5,000 of 5,000');
  await answerList('/admin/v1/sessions', 'sessions', Array.from({ length: 10_000 }, (_, number) => session(number)));
  await check('sessions', 'Sessions', 'person-00000', 'person-09999', 'person-04321', '10,000 of 10,000');
  await answerList('/admin/v1/backends', 'backends', Array.from({ length: 5_000 }, (_, number) => backend(number)));
  await check('backends', 'Backends', 'backend-00000', 'backend-04999', 'backend-01234', '5,000 of 5,000');
  await answerList('/admin/v1/sessions', 'sessions', Array.from({ length: 25_000 }, (_, number) => session(number)));
  await check('sessions', 'Sessions', 'person-00000', 'person-19999', 'person-04321', '20,000 of 20,000');
  await page.getByText('shows and searches the first 20,000 entries').waitFor();
  person.check();
} catch (error) {
  console.error(error, (await page.locator('body').innerText()).slice(0, 3_000), person.complaints);
  process.exitCode = 1;
}
await browser.close();
