// Two people at the same broker, an admin and a viewer: `roles.mjs ORIGIN ADMIN_TOKEN VIEWER_TOKEN`. The viewer's console has nothing
// that would be refused, and ends when the admin revokes it.
import assert from 'node:assert/strict';

import { Person, launch, ok } from './browser.mjs';

const [origin, adminToken, viewerToken] = process.argv.slice(2);
const VIEWS = ['overview', 'backends', 'backends/default/b', 'catalog', 'toolsets', 'toolsets/default/research', 'policy', 'connections', 'sessions', 'tasks', 'activity', 'keys', 'setup'];
const CHANGES = ['Add a backend', 'Edit', 'Remove', 'Test the connection', 'Hold the breaker open', 'Try it', 'Write a policy', 'Make a link', 'Create a key', 'Export', 'End', 'Revoke', 'Add a toolset', 'Show the lists'];

const browser = await launch();
const admin = await Person.sit(browser, origin);
const viewer = await Person.sit(browser, origin);
const refused = [];
viewer.page.on('response', response => {
  if (response.status() === 403) refused.push(response.url());
});

const entries = person => person.page.getByRole('navigation', { name: 'Views' }).getByRole('link').allInnerTexts();

try {
  await admin.signIn(adminToken);
  await viewer.signIn(viewerToken);
  const shown = await entries(viewer);
  assert.deepEqual((await entries(admin)).filter(view => !shown.includes(view)), ['Try it', 'Operators', 'Audit']);
  for (const view of VIEWS) {
    await viewer.open(view);
    for (const name of CHANGES) {
      for (const role of ['button', 'link']) assert.equal(await viewer.page.getByRole(role, { name, exact: true }).count(), 0, `${name} on ${view}`);
    }
  }
  assert.deepEqual(refused, []);
  ok('a viewer has no button that would be refused');

  await admin.open('backends/default/b');
  for (const name of ['Test the connection', 'Hold the breaker open', 'Remove']) await admin.button(name).waitFor();
  ok('an admin has them');

  await viewer.open('operators');
  await viewer.page.getByText('The role viewer has no access to this view.').waitFor();
  await viewer.open('overview');
  await admin.open('operators');
  await admin.button('Revoke vera').click();
  await admin.button('Revoke the operator').click();
  await viewer.page.getByText('Your login has ended. Sign in again.').waitFor();
  ok('a revoked operator is out');
  admin.check();
  viewer.check();
} catch (error) {
  console.error(error, await viewer.page.locator('body').innerText(), admin.complaints, viewer.complaints);
  process.exitCode = 1;
}
await browser.close();
