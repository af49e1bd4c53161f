// Toolsets, made with the keyboard alone, shown for two subjects, changed and removed: `toolsets.mjs ORIGIN TOKEN`. The tenant has a
// backend `b` with the tools `echo` and `wipe`, and a policy that denies `wipe` to guests.
import assert from 'node:assert/strict';

import { Person, launch, ok } from './browser.mjs';

const [origin, token] = process.argv.slice(2);
const browser = await launch();
const person = await Person.sit(browser, origin, { width: 375, height: 740 });
const { page } = person;
const seen = page.getByRole('region', { name: 'What the subject sees' });

/** Presses Tab until the field or button with this label has the focus. */
async function tabTo(label) {
  for (let step = 0; step < 80; step++) {
    await page.keyboard.press('Tab');
    const focused = await page.evaluate(() => {
      const element = document.activeElement;
      return element?.labels?.[0]?.textContent?.trim() || element?.textContent?.trim() || '';
    });
    if (focused === label) return;
  }
  assert.fail(`Tab never reaches ${label}`);
}

async function faults() {
  await person.open('toolsets');
  await page.getByText('Tenant default has no toolset.').waitFor();
  await tabTo('Add a toolset');
  await page.keyboard.press('Enter');
  await person.heading('Add a toolset').waitFor();
  await tabTo('Name (required)');
  await page.keyboard.type('research');
  await tabTo('Tools');
  await page.keyboard.type('absent/echo');
  await tabTo('Not these tools');
  await page.keyboard.type('b/wipe');
  await tabTo('Further members');
  await page.keyboard.type('{"aliases": {"b/echo": "a__b"}, "description_chars_max": 0}');
  await tabTo('Store the toolset');
  await page.keyboard.press('Enter');
  await page.getByText('3 fields are not accepted.').waitFor();
  await page.locator('.field.faulty', { hasText: 'Tools' }).getByText('unknown backend').waitFor();
  for (const field of ['aliases.b/echo', 'description_chars_max']) await page.locator('.note li', { hasText: field }).waitFor();
  await person.judge('a toolset with faults');
  ok('all faults of a toolset');
}

async function made() {
  await page.getByLabel('Tools', { exact: true }).fill('b/*');
  await page.getByLabel('Not these tools').fill('');
  await page.getByLabel('Further members').fill('{"aliases": {"b/echo": "say"}, "exclude": {"classes": ["read"]}}');
  await person.button('Store the toolset').click();
  await person.heading('research').waitFor();
  await page.getByText('Without publication it has no endpoint').waitFor();
  await page.getByRole('link', { name: 'Edit' }).click();
  await person.heading('Edit research').waitFor();
  await page.getByLabel('Published').selectOption('yes');
  await person.button('Store the toolset').click();
  await page.getByText('/mcp/t/research').first().waitFor();
  const document = await page.getByRole('region', { name: 'Document' }).innerText();
  for (const member of ['"say"', '"classes"', '"b/*"']) assert.ok(document.includes(member), `the form lost ${member}`);
  await person.judge('a toolset');
  ok('a toolset, made and published');
}

async function shown() {
  await person.button('Show the lists').click();
  await page.getByText('The endpoint lists 2 entries for this subject.').waitFor();
  for (const name of ['say', 'b__wipe']) await seen.getByText(name, { exact: true }).waitFor();
  await page.getByLabel('List as').selectOption({ label: 'another subject…' });
  await page.getByLabel('Principal').fill('gus');
  await page.getByLabel('Groups').fill('guests');
  await person.button('Show the lists').click();
  await page.getByText('The endpoint lists 1 entry for this subject.').waitFor();
  await seen.getByText('say', { exact: true }).waitFor();
  assert.equal(await seen.getByText('b__wipe').count(), 0, 'the policy hides the tool from guests');
  await person.judge('what a subject sees');
  ok('what a toolset holds for a subject');
}

async function removed() {
  await person.open('toolsets');
  await person.row('research').getByText('published').waitFor();
  await page.getByRole('link', { name: 'research' }).click();
  await person.button('Remove').click();
  await person.button('Remove the toolset').click();
  await page.getByText('Tenant default has no toolset.').waitFor();
  ok('a removed toolset');
}

try {
  await person.signIn(token);
  for (const part of [faults, made, shown, removed]) await part();
  person.check();
} catch (error) {
  console.error(error, await page.locator('body').innerText(), person.complaints);
  process.exitCode = 1;
}
await browser.close();
