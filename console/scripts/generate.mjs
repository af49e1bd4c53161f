// Writes src/api from the broker's OpenAPI document: the types of all bodies, and the permission of each operation.
// With --check it only compares.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import openapiTS, { astToString } from 'openapi-typescript';

const root = join(import.meta.dirname, '..');
const document = JSON.parse(readFileSync(join(root, '../docs/openapi.json'), 'utf8'));

const operations = Object.entries(document.paths).flatMap(([path, item]) =>
  Object.entries(item)
    .filter(([, operation]) => operation['x-permission'])
    .map(([method, operation]) => [`${method.toUpperCase()} ${path}`, operation['x-permission']]),
);
const head = '// Generated from docs/openapi.json by `npm run types`.\n';
const files = {
  'src/api/schema.ts': `${head}${astToString(await openapiTS(document))}`,
  'src/api/operations.ts':
    `${head}\n/** The permission that each operation requires. */\nexport const OPERATIONS = ` +
    `${JSON.stringify(Object.fromEntries(operations), null, 2)} as const;\n`,
};
for (const [name, text] of Object.entries(files)) {
  const path = join(root, name);
  if (!process.argv.includes('--check')) writeFileSync(path, text);
  else if (readFileSync(path, 'utf8') !== text) throw new Error(`${name} differs from docs/openapi.json: npm run types`);
}
