// Names and descriptions of people who want to be seen as something else: `hostile.mjs ORIGIN TOKEN`. Then the console below the prefix
// of a reverse proxy.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, request } from 'node:http';

import { Person, launch, ok } from './browser.mjs';

const [origin, token] = process.argv.slice(2);
const browser = await launch();
const person = await Person.sit(browser, origin);
const { page } = person;
page.on('dialog', dialog => person.complaints.push(`dialog: ${dialog.message()}`));

/** Nothing but the console's own elements is in the page. */
async function nothingRan(where) {
  const strange = await page.evaluate(() => ({
    elements: [...document.querySelectorAll('img, iframe, object, embed, marquee, link:not([href^="./assets/"]), script:not([src^="./assets/"])')].map(one => one.outerHTML),
    inline: [...document.querySelectorAll('*')].filter(one => [...one.attributes].some(attribute => attribute.name.startsWith('on'))).length,
    owned: globalThis.owned ?? false,
  }));
  assert.deepEqual(strange, { elements: [], inline: 0, owned: false }, where);
}

/** Passes requests on from a path below a prefix, as reverse proxies do. */
async function behindPrefix(prefix) {
  const { hostname, port } = new URL(origin);
  const proxy = createServer((incoming, outgoing) => {
    if (!incoming.url.startsWith(`${prefix}/`)) {
      outgoing.writeHead(404).end();
      return;
    }
    const passed = request({ hostname, port, path: incoming.url.slice(prefix.length), method: incoming.method, headers: incoming.headers }, answer => {
      outgoing.writeHead(answer.statusCode, answer.headers);
      answer.pipe(outgoing);
    });
    incoming.pipe(passed);
  }).listen(0, '127.0.0.1');
  await once(proxy, 'listening');
  return { proxy, origin: `http://127.0.0.1:${proxy.address().port}` };
}

try {
  await person.signIn(token);
  await person.open('catalog');
  await page.getByText('<img src=x onerror=').first().waitFor();
  await nothingRan('the catalog');
  await page.getByRole('link', { name: 'hidden' }).click();
  await page.getByText('invisible characters').waitFor();
  for (const mark of ['U+200B', 'U+202E', 'U+E0041']) await page.locator('.pane .unseen', { hasText: mark }).first().waitFor();
  await nothingRan('a tool');
  await person.judge('a hostile tool');
  ok('descriptions are text, and hide nothing');

  await person.open('try/default/b__hidden');
  await page.getByLabel('<b>bold</b>').waitFor();
  await page.getByLabel('side').locator('option', { hasText: '<U+202E>right' }).waitFor({ state: 'attached' });
  await person.button('Call the tool').click();
  await page.locator('.answer').getByText('<script>').waitFor();
  await page.locator('.answer .unseen', { hasText: 'U+200B' }).waitFor();
  await nothingRan('an answer');
  ok('answers are text');

  for (const view of ['catalog/default?item=b%2Fmalformed', 'try/default/b__malformed']) {
    await person.open(view);
    await page.getByText('list', { exact: true }).waitFor();
    await nothingRan(view);
  }
  await person.button('Call the tool').waitFor();
  await page.route(url => url.pathname.endsWith('/admin/v1/sessions'), route => route.fulfill({ json: { sessions: [null] } }));
  await person.open('sessions');
  await page.getByText('This view cannot show the data').waitFor();
  await person.judge('a view that failed');
  await person.button('Try again').click();
  await page.getByText('This view cannot show the data').waitFor();
  await page.unrouteAll();
  await page.goto(`${origin}/console/#/catalog/%`);
  await page.reload();
  await person.heading('Catalog').waitFor();
  await person.open('__proto__');
  await person.heading('Nothing here').waitFor();
  ok('malformed definitions and addresses');

  await person.open('backends/default/b');
  await page.getByRole('region', { name: 'Pins' }).getByRole('button', { name: 'ask' }).click();
  await page.getByRole('dialog').getByRole('heading', { level: 2 }).locator('.unseen', { hasText: 'U+200B' }).waitFor();
  await page.keyboard.press('Escape');
  for (const view of ['catalog/default?item=b%2Fmalformed', 'try/default/b__malformed']) {
    await person.open(view);
    await page.locator('h2 .unseen', { hasText: 'U+200B' }).waitFor();
  }
  ok('titles hide nothing');

  for (const view of ['sessions', 'backends/default/b', 'activity', 'overview', 'audit']) {
    await person.open(view);
    await nothingRan(view);
  }
  await person.open('sessions');
  await page.getByText('<img src=x onerror=owned=1>').first().waitFor();
  person.check();
  ok('names of clients and servers are text');

  const prefixed = await behindPrefix('/ops/broker');
  const guest = await Person.sit(browser, prefixed.origin);
  await guest.page.goto(`${prefixed.origin}/ops/broker/console`);
  await guest.page.getByLabel('Operator token').fill(token);
  await guest.button('Sign in').click();
  await guest.heading('Overview').waitFor();
  await guest.open('catalog');
  await guest.page.getByRole('link', { name: 'hidden' }).waitFor();
  guest.check();
  prefixed.proxy.close();
  ok('below a prefix');
} catch (error) {
  console.error(error, await page.locator('body').innerText(), person.complaints);
  process.exitCode = 1;
}
await browser.close();
process.exit();
