// Real apps behind a broker, in a headless Chromium with the official host library: `apps.mjs URL`. URL is the endpoint of all
// backends; these are the servers of `peers/apps` under the names vanilla, monitor and budget. Each app renders, and its own
// calls of tools succeed, on the endpoint of all backends and on that of its own.
import assert from 'node:assert/strict';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { Checks, peersOf } from './checks.mjs';

const CHROMIUM = '/usr/bin/chromium-headless-shell';
const STEP_MS = 30_000;
const SESSIONS = { mode: 'legacy' };
const STATELESS = { mode: { pin: '2026-07-28' } };

const [url] = process.argv.slice(2);
const requireApps = peersOf('apps');
const { chromium } = peersOf('browser')('playwright-core');

async function bundle(file) {
  const { outputFiles } = await requireApps('esbuild').build({
    entryPoints: [join(dirname(fileURLToPath(import.meta.url)), file)],
    bundle: true,
    format: 'iife',
    write: false,
    logLevel: 'error',
    nodePaths: [join(dirname(requireApps.resolve('esbuild/package.json')), '..')],
  });
  return outputFiles[0].text;
}

// The page has the origin of the broker, so it needs no permission of the broker to ask it.
const pageUrl = new URL('/host', url).href;
const script = await bundle('app_host.mjs');
const browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] });
const page = await browser.newPage();
page.setDefaultTimeout(STEP_MS);
await page.route(pageUrl, route => route.fulfill({ contentType: 'text/html', body: '<!doctype html><body></body>' }));
await page.route(({ host }) => host !== new URL(url).host, route => route.abort());
let called = [];
page.on('request', request => {
  const message = request.method() === 'POST' ? request.postDataJSON() : undefined;
  if (message?.method === 'tools/call') called.push(message.params.name);
});

// Shows an app on a fresh page and returns its frame. The link must name the backend exactly where several are behind the URL.
async function show(endpoint, backend, tool, version) {
  const isShared = endpoint === url;
  await page.goto(pageUrl);
  await page.evaluate(script);
  called = [];
  const name = isShared ? `${backend}__${tool}` : tool;
  const link = await page.evaluate(args => globalThis.show(...args), [endpoint, name, version]);
  assert.equal(link.startsWith(`ui://${backend}+`), isShared, link);
  assert.deepEqual(called, [name]);
  return page.frameLocator('iframe');
}

const checks = new Checks();
for (const [where, endpoint] of [['all backends', () => url], ['its own', backend => `${url}/${backend}`]]) {
  for (const [era, version] of [['a session', SESSIONS], ['2026-07-28', STATELESS]]) {
    const at = `at the endpoint of ${where}, with ${era}`;

    // This app calls the tool that shows it.
    await checks.run(`vanilla ${at}`, async () => {
      const app = await show(endpoint('vanilla'), 'vanilla', 'get-time', version);
      const time = app.locator('#server-time');
      await app.getByText(/^\d{4}-\d\d-\d\dT/).waitFor();
      const before = await time.textContent();
      await app.locator('#get-time-btn').click();
      await app.locator(`#server-time:not(:text-is("${before}"))`).waitFor();
      assert.match(await time.textContent(), /^\d{4}-\d\d-\d\dT/);
      assert.equal(called.at(-1), 'get-time');
    }, 2 * STEP_MS);

    // This app polls a tool that is for apps only, by its own name.
    await checks.run(`monitor ${at}`, async () => {
      const app = await show(endpoint('monitor'), 'monitor', 'get-system-info', version);
      await app.locator('#info-hostname:not(:text-is("--"))').waitFor();
      await app.locator('#poll-toggle-btn').click();
      await app.locator('#memory-percent').getByText(/^\d+%$/).waitFor();
      assert.equal(called.at(-1), 'poll-system-stats');
    }, 2 * STEP_MS);

    // This app shows what its tool returned.
    await checks.run(`budget ${at}`, async () => {
      const app = await show(endpoint('budget'), 'budget', 'get-budget-data', version);
      await app.locator('#status-bar').getByText(/\$[1-9]/).waitFor();
      await app.locator('#sliders-container input').first().waitFor();
    }, 2 * STEP_MS);
  }
}
await browser.close();
process.exit(checks.failed === 0 ? 0 : 1);
