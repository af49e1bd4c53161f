// What a person enters is what the broker gets: `forms.mjs ORIGIN TOKEN BACKEND`. The stdio backend `odd` has arguments that are not one
// line each, the backend `kept` has the secrets `auth.client_secret` and `auth.provider.client_secret`, and the backends `guarded` and `open`
// have a bearer token and the header `x-team`. BACKEND is the URL of a backend
// whose tool `count` takes the numbers `n` and `x`. Its tool `both` asks two questions at the same time, and returns both answers.
import assert from 'node:assert/strict';

import { Person, launch, ok } from './browser.mjs';

const [origin, token, backend] = process.argv.slice(2);
/** The smallest number that a number of JavaScript does not hold. */
const EXACT = '9007199254740993';

const browser = await launch();
const person = await Person.sit(browser, origin);
const { page } = person;
const further = page.getByRole('textbox', { name: 'Further settings' });
const field = name => page.locator('.field.faulty', { hasText: name });

async function oddArguments() {
  await person.signIn(token);
  await person.open('backends/default/odd?edit=1');
  assert.equal(await page.getByLabel('Arguments').inputValue(), '');
  assert.deepEqual(JSON.parse(await further.inputValue()).transport.args, ['-c', 'two\nlines', '', '--last']);
  await page.getByLabel('Arguments').fill('--other');
  await person.button('Store and reconnect').click();
  await field('Arguments').getByText('also in the further settings').waitFor();
  await page.getByLabel('Arguments').fill('');
  await page.getByLabel('Environment').fill('LEVEL=a=b\n\nTRACE');
  await person.button('Store and reconnect').click();
  await field('Environment').getByText('line 3 is not NAME=value').waitFor();
  await person.judge('a refused line');
  await page.getByLabel('Environment').fill('LEVEL=a=b');
  await person.button('Store and reconnect').click();
  await page.getByText('The backend is stored, and it is').waitFor();
  ok('arguments that are not lines');
}

/** The broker shows no secret, so the form must not store what it shows. */
async function maskedSecrets() {
  await person.open('backends/default/kept?edit=1');
  const masked = ['auth.client_secret', 'auth.provider.client_secret'];
  await page.getByText(`Stored, and not shown: ${masked.join(', ')}.`).waitFor();
  const settings = JSON.parse(await further.inputValue());
  const { auth } = settings;
  assert.deepEqual([auth.client_secret, auth.provider.client_secret], ['***', '***']);
  const refused = member => page.getByRole('listitem').filter({ hasText: `${member} holds ***` });
  await person.button('Store and reconnect').click();
  await page.getByText('2 fields are not accepted.').waitFor();
  for (const member of masked) await refused(member).waitFor();
  await person.judge('a form with masked secrets');
  auth.client_secret = 'other-secret-of-the-client';
  await further.fill(JSON.stringify(settings));
  await person.button('Store and reconnect').click();
  await page.getByText('A field is not accepted.').waitFor();
  await refused('auth.provider.client_secret').waitFor();
  auth.provider.client_secret = 'other-secret-at-the-provider';
  await further.fill(JSON.stringify(settings));
  await person.button('Store and reconnect').click();
  await page.getByText(/The backend is stored, and it is|kept is ready/).first().waitFor();
  ok('masked secrets');
}

/** Opens the form of a backend with stored credentials, and fills in what it demands. */
async function editCredentials(name, credentials, token) {
  await person.open(`backends/default/${name}?edit=1`);
  await page.getByText('Stored, and not shown: the bearer token, the header x-team.').waitFor();
  const settings = JSON.parse(await further.inputValue());
  await person.button('Store and reconnect').click();
  await page.getByText('2 fields are not accepted.').waitFor();
  await field('Bearer token').getByText('is stored and not shown').waitFor();
  await page.getByRole('listitem').filter({ hasText: 'credentials.headers has x-team' }).waitFor();
  await page.getByLabel('Bearer token').fill(token);
  await further.fill(JSON.stringify({ ...settings, credentials }));
  await person.button('Store and reconnect').click();
  await page.getByText(`${name} is ready`).waitFor();
}

/** Settings without a word about the credentials are not stored. */
async function storedCredentials() {
  await editCredentials('guarded', { headers: { 'x-team': 'acme' } }, 'other-token');
  await editCredentials('open', { bearer: null, headers: {} }, '');
  ok('stored credentials');
}

/** The first connection fails, and the form can still store other settings. */
async function failedConnection() {
  await person.open('backends/+');
  await page.getByLabel('Name (required)').fill('late');
  await page.getByLabel('URL').fill('http://127.0.0.1:9/mcp');
  for (let time = 0; time < 2; time++) {
    await person.button('Add and connect').click();
    await page.getByText('The backend is stored, and it is').waitFor();
  }
  await page.getByLabel('Name (required)').fill('odd');
  await person.button('Add and connect').click();
  await page.getByRole('alert').waitFor(); // another backend has this name
  await page.getByLabel('Name (required)').fill('late');
  await page.getByLabel('URL').fill(backend);
  await person.button('Add and connect').click();
  await person.heading('late').waitFor();
  await page.getByText('late is ready').waitFor();
  ok('a second attempt');
}

/** Returns the messages of the trial as the page shows them. */
async function wire() {
  await page.locator('.wire').getByText('tools/call', { exact: true }).click();
  await page.locator('.wire').getByText(/^result for/).last().click();
  return (await page.locator('.wire pre').allTextContents()).join('\n');
}

async function exactNumbers() {
  await person.open('try/default/late__count');
  await page.getByLabel('n', { exact: true }).fill(' ');
  await page.getByLabel('x', { exact: true }).fill('.5');
  await person.button('Call the tool').click();
  await field('n').getByText('is not a whole number').waitFor();
  await field('x').getByText('is not a number').waitFor();
  await page.getByLabel('n', { exact: true }).fill(EXACT);
  await page.getByLabel('x', { exact: true }).fill('0.5');
  await person.button('Call the tool').click();
  const structured = page.getByRole('region', { name: 'Structured content' });
  await structured.getByText('"next": 9007199254740995').waitFor();
  const shown = await wire();
  assert.ok(shown.includes(`"n": ${EXACT}`) && shown.includes('"next": 9007199254740995'), shown);
  ok('numbers of a form');

  await person.button('JSON').click();
  const json = page.getByLabel('Arguments as JSON');
  assert.equal(await json.inputValue(), `{\n  "n": ${EXACT},\n  "x": 0.5\n}`);
  await json.fill(`{"n": ${EXACT}, "x": 0.5`);
  await person.button('Call the tool').click();
  await field('Arguments as JSON').getByText('is not JSON').waitFor();
  await json.fill(`{"n": ${EXACT}, "x": 0.5}`);
  await person.button('Call the tool').click();
  await structured.waitFor({ state: 'detached' });
  await structured.waitFor();
  ok('numbers of JSON');

  await person.open('catalog/default?item=late%2Fcount');
  await page.getByText('Definition as the backend lists it').click();
  await page.getByRole('region', { name: 'Definition' }).getByText(`"maximum": ${EXACT}`).waitFor();
  ok('numbers of a definition');
}

/** Two questions of one call, shown one after the other. */
async function twoQuestions() {
  await person.open('try/default/late__both');
  await person.button('Call the tool').click();
  await page.locator('.wire').getByText('elicitation/create', { exact: true }).nth(1).waitFor();
  const question = page.locator('.question');
  const field = question.getByLabel('name', { exact: true });
  for (const [asked, name] of [['Who is first?', 'Ada'], ['Who is second?', 'Bob']]) {
    await question.getByText(asked).waitFor();
    assert.equal(await field.inputValue(), '');
    await field.fill(name);
    await question.getByRole('button', { name: 'Answer' }).click();
  }
  await page.getByRole('region', { name: 'Text' }).getByText('Ada and Bob').waitFor();
  assert.equal(await question.count(), 0);
  ok('two questions of one call');
}

try {
  await oddArguments();
  await maskedSecrets();
  await storedCredentials();
  await failedConnection();
  await exactNumbers();
  await twoQuestions();
  person.check();
} catch (error) {
  console.error(error, (await page.locator('body').innerText()).slice(0, 3_000), person.complaints);
  process.exitCode = 1;
}
await browser.close();
