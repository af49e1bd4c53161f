// Compresses the built files next to themselves. The compressor is plain JavaScript, so that every machine gives the same bytes.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { gzipSync } from 'fflate';

const dist = join(import.meta.dirname, '../dist');
let bytes = 0;
for (const name of readdirSync(dist, { recursive: true }).sort()) {
  if (!/\.(html|js|css|svg)$/.test(name)) continue;
  const packed = gzipSync(readFileSync(join(dist, name)), { level: 9, mtime: 0 });
  writeFileSync(join(dist, `${name}.gz`), packed);
  bytes += packed.length;
}
console.log(`${bytes} bytes compressed`);
