// Every view by the rules of WCAG 2.2 AA: in the light theme and on a narrow screen by all of them, in the dark theme by those of
// colours. Then with the keyboard alone.
// `pages.mjs ORIGIN TOKEN [IMAGES]`: writes the pictures of the documentation into a folder.
import assert from 'node:assert/strict';
import { join } from 'node:path';

import { COLOURS, Person, launch, ok } from './browser.mjs';

const [origin, token, images] = process.argv.slice(2);
const VIEWS = [
  'overview', 'backends', 'backends/default/everything', 'backends/acme/crm', 'backends/default/everything?edit=1', 'backends/+',
  'catalog/default?item=everything%2Fget-structured-content', 'toolsets', 'toolsets/default/research', 'toolsets/default/research?edit=1',
  'toolsets/+', 'try/default/everything__echo', 'policy/default', 'connections', 'approvals', 'sessions', 'tasks',
  'activity', 'audit', 'keys', 'operators', 'setup',
];
/** Views of the documentation, with the name of the picture. */
const PICTURES = { overview: 'console-overview', 'catalog/default?item=everything%2Fget-structured-content': 'console-catalog' };

/** Compressed bytes of the first view. */
const FIRST_BYTES_MAX = 150 * 1024;

const browser = await launch();

async function everyView(settings, name, rules) {
  const person = await Person.sit(browser, origin, settings);
  await person.page.goto(`${origin}/console/`);
  await person.page.getByLabel('Operator token').waitFor();
  await person.judge('login', rules);
  await person.signIn(token);
  for (const view of VIEWS) {
    await person.open(view);
    await person.judge(`${view}, ${name}`, rules);
    const picture = PICTURES[view];
    if (images && picture && name === (view === 'overview' ? 'light' : 'dark')) await person.page.screenshot({ path: join(images, `${picture}.png`) });
  }
  person.check();
  await person.leave();
  ok(`every view, ${name}`);
}

/** Takes the way of a person without a mouse, from the sign-in to a dialog and back. */
async function byKeyboard() {
  const person = await Person.sit(browser, origin);
  const { page } = person;
  const focused = () => page.evaluate(() => document.activeElement?.textContent?.trim() || document.activeElement?.getAttribute('aria-label') || '');
  const press = async (key, until) => {
    for (let step = 0; step < 60; step++) {
      await page.keyboard.press(key);
      if ((await focused()).includes(until)) return;
    }
    assert.fail(`${key} never reaches ${until}`);
  };
  await page.goto(`${origin}/console/`);
  await page.getByLabel('Operator token').waitFor();
  await page.keyboard.type(token);
  await page.keyboard.press('Enter');
  await person.heading('Overview').waitFor();
  await page.reload();
  await person.heading('Overview').waitFor();
  await page.keyboard.press('Tab');
  assert.equal(await focused(), 'Skip to the content');
  await page.keyboard.press('Enter');
  assert.equal(await page.evaluate(() => document.activeElement?.id), 'main');
  await page.keyboard.press('Home');
  await page.evaluate(() => document.querySelector('.skip').focus());
  await press('Tab', 'Keys');
  await page.keyboard.press('Enter');
  await person.heading('Keys').waitFor();
  assert.equal(await page.evaluate(() => document.activeElement?.id), 'main', 'the new view has the focus');
  await press('Tab', 'Create a key');
  await page.keyboard.press('Enter');
  const dialog = page.getByRole('dialog');
  await dialog.waitFor();
  assert.ok(await page.evaluate(() => document.querySelector('dialog').contains(document.activeElement)));
  await person.judge('a dialog');
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  assert.equal(await focused(), 'Create a key', 'the focus is where it was');
  person.check();
  await person.leave();
  ok('the keyboard alone');
}

/** What a browser that knows nothing loads until the overview is there. */
async function firstView() {
  const person = await Person.sit(browser, origin);
  await person.signIn(token);
  await person.page.getByText('Backends ready').waitFor();
  const loaded = await person.page.evaluate(() => {
    const entries = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
    return entries.filter(entry => new URL(entry.name).pathname.includes('/console/')).map(entry => [entry.name, entry.encodedBodySize]);
  });
  const bytes = loaded.reduce((sum, [, size]) => sum + size, 0);
  console.error(`the first view takes ${bytes} bytes in ${loaded.length} files`);
  assert.ok(bytes > 10_000 && bytes <= FIRST_BYTES_MAX, JSON.stringify(loaded));
  person.check();
  await person.leave();
  ok('the size of the first view');
}

/** Back and reload return to what was shown. */
async function byAddress() {
  const person = await Person.sit(browser, origin);
  const { page } = person;
  await person.signIn(token);
  await person.open('backends?state=failed');
  await person.row('crm').waitFor();
  assert.equal(await person.row('everything').count(), 0);
  await page.getByRole('link', { name: 'crm' }).click();
  await person.heading('crm').waitFor();
  await page.reload();
  await person.heading('crm').waitFor();
  await page.goBack();
  await person.row('crm').waitFor();
  assert.equal(await page.getByLabel('State', { exact: true }).inputValue(), 'failed');
  const begun = performance.now();
  await page.goto(`${origin}/console/#/overview`);
  await page.reload();
  await page.getByText('Backends ready').waitFor();
  console.error(`first view after ${Math.round(performance.now() - begun)} ms`);
  person.check();
  await person.leave();
  ok('addresses, Back and reload');
}

/** A view that asks only once, in a tab that was opened in the background. */
async function inBackground() {
  const person = await Person.sit(browser, origin);
  const { page } = person;
  await person.signIn(token);
  await person.open('try/default/everything__echo');
  await page.addInitScript(() => {
    let state = 'hidden';
    Object.defineProperty(document, 'visibilityState', { get: () => state });
    globalThis.bringToFront = () => {
      state = 'visible';
      document.dispatchEvent(new Event('visibilitychange'));
    };
  });
  await page.reload();
  await person.heading('Try it').waitFor();
  // Effects of the view run after a frame.
  await page.evaluate(() => new Promise(done => requestAnimationFrame(() => setTimeout(done))));
  await page.locator('.loading').waitFor();
  await page.evaluate(() => globalThis.bringToFront());
  await page.getByLabel('message').waitFor();
  await person.settled();
  person.check();
  await person.leave();
  ok('a tab that was opened in the background');
}

try {
  await everyView({}, 'light');
  await everyView({ dark: true }, 'dark', COLOURS);
  await everyView({ width: 375, height: 740 }, 'narrow');
  await byKeyboard();
  await byAddress();
  await inBackground();
  await firstView();
} catch (error) {
  console.error(error);
  process.exitCode = 1;
}
await browser.close();
