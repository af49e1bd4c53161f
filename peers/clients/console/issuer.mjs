// An operator signs in at an authorization server: `issuer.mjs ORIGIN ISSUER NAME`. Then a stranger sends the browser an answer of that
// server which belongs to another login.
import assert from 'node:assert/strict';

import { Person, launch, ok } from './browser.mjs';

const [origin, issuer, name] = process.argv.slice(2);
const browser = await launch();
const person = await Person.sit(browser, origin, { alsoAt: [issuer] });
const { page } = person;
const answers = [];
page.on('request', request => {
  if (new URL(request.url()).pathname === '/console/callback') answers.push(request.url());
});

try {
  await page.goto(`${origin}/console/`);
  await page.getByRole('button', { name: `Sign in at ${new URL(issuer).host}` }).waitFor();
  await person.judge('login with an issuer');
  await page.getByRole('button', { name: `Sign in at ${new URL(issuer).host}` }).click();
  await person.heading('Overview').waitFor();
  await page.getByText(name, { exact: true }).waitFor();
  await page.getByText('auditor', { exact: true }).waitFor();
  assert.equal(await page.getByRole('link', { name: 'Try it' }).count(), 0);
  ok('signed in at the issuer');

  const cookies = await page.context().cookies();
  assert.deepEqual(cookies.filter(cookie => cookie.name.includes('begun')), []);
  const login = cookies.find(cookie => cookie.name === 'mcp-broker');
  assert.ok(login.httpOnly && login.sameSite === 'Strict' && !login.value.includes('.'), 'the token is sealed');
  await person.button('Sign out').click();
  await page.getByLabel('Operator token').waitFor();
  ok('signed out again');

  for (const answer of [answers[0], `${origin}/console/callback?code=x&state=y`, `${origin}/console/callback`]) {
    await page.goto(answer);
    await page.getByText('The login at the issuer did not succeed.').waitFor();
    assert.equal((await page.context().cookies()).filter(cookie => cookie.name === 'mcp-broker').length, 0);
  }
  ok('an answer to another login counts for nothing');
  person.check();
} catch (error) {
  console.error(error, await page.locator('body').innerText(), person.complaints);
  process.exitCode = 1;
}
await browser.close();
