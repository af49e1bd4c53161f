// A console that stays open while a replica dies: `failover.mjs TOKEN PID ADMIN ADMIN`. A balancer without memory is in front of the
// two admin listeners; PID is the process behind the first.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, createServer } from 'node:net';

import { Person, launch, ok } from './browser.mjs';

const [token, pid, ...admins] = process.argv.slice(2);

/** Passes each connection to the next replica that takes it. */
async function balancer(addresses) {
  let turn = 0;
  const server = createServer(client => {
    client.on('error', () => undefined);
    const attempt = left => {
      const [host, port] = addresses[turn++ % addresses.length].split(':');
      const replica = connect(Number(port), host);
      replica.once('connect', () => client.pipe(replica).pipe(client));
      replica.once('error', () => (left && !replica.bytesRead ? attempt(left - 1) : client.destroy()));
      client.once('close', () => replica.destroy());
    };
    attempt(addresses.length);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return `http://127.0.0.1:${server.address().port}`;
}

const origin = await balancer(admins);
const browser = await launch();
const person = await Person.sit(browser, origin);
const { page } = person;
try {
  await person.signIn(token);
  await person.open('backends');
  await person.row('b').first().waitFor();
  await person.open('overview');
  await page.getByText('Backends ready').waitFor();
  process.kill(Number(pid), 'SIGKILL');
  // The page follows the other replica, with the same login, and finds one replica left.
  await page.waitForFunction(() => {
    const replicas = [...document.querySelectorAll('.card')].find(card => card.querySelector('h2')?.textContent === 'Replicas');
    return replicas?.querySelectorAll('li').length === 1 && !document.querySelector('.note.bad');
  });
  ok('the page follows the replica that is left');
  await person.open('keys');
  await person.button('Create a key').click();
  await page.getByLabel('Name').fill('after the fall');
  await page.getByRole('dialog').getByRole('button', { name: 'Create the key' }).click();
  await person.button('Done').click();
  await person.row('after the fall').waitFor();
  assert.equal(await page.getByLabel('Operator token').count(), 0);
  ok('the login is good at the other replica');
} catch (error) {
  console.error(error, await page.locator('body').innerText(), person.complaints);
  process.exitCode = 1;
}
await browser.close();
process.exit();
