// Tools, prompts and resources of a tenant. Their texts come from others and are shown as text.
import { callAll, callText, type List, type Schemas } from '../api/client';
import { indented, objectOf, valueText } from '../json';
import { useLive } from '../live';
import { href, route, setQuery } from '../router';
import { chooseTenant, may, oneTenant, tenants } from '../session';
import { Empty, Failed, Filter, Loading, Note, Tag } from '../ui/controls';
import { Icon } from '../ui/icons';
import { Card, Cut, Facts, Json, Page, Toolbar } from '../ui/page';
import { propertiesOf, requiredOf } from '../ui/schema-form';
import { Table } from '../ui/table';
import { Text, bytes, number, unseenIn } from '../ui/text';

type Item = Schemas['CatalogItemView'];
type Json = Record<string, unknown>;

const KINDS = [['tool', 'Tools'], ['prompt', 'Prompts'], ['resource', 'Resources'], ['template', 'Resource templates']] as const;
/** Bytes of JSON that a model's token stands for, roughly. */
const BYTES_A_TOKEN = 4;

export function Catalog() {
  const { rest, query } = route.value;
  // A tenant that the page does not know may be new.
  const owner = rest[0] || oneTenant.value;
  const kind = query.get('kind') ?? 'tool';
  const sought = (query.get('q') ?? '').toLowerCase();
  const backend = query.get('backend') ?? '';
  const chosen = query.get('item') ?? '';
  const live = useLive<List<Item>>(
    () => callAll<Item>('GET /admin/v1/tenants/{tenant}/catalog', 'items', { params: { tenant: owner }, query: { kind } }),
    [owner, kind],
    15_000,
  );
  const items = live.value ?? [];
  const backends = [...new Set(items.map(item => item.backend))].sort();
  const rows = items.filter(
    item => (!backend || item.backend === backend) && (!sought || `${item.exposed_name} ${item.title ?? ''} ${item.description ?? ''}`.toLowerCase().includes(sought)),
  );
  const tokens = Math.round(rows.reduce((sum, item) => sum + item.bytes, 0) / BYTES_A_TOKEN);
  const selected = rows.find(item => `${item.backend}/${item.name}` === chosen);
  return (
    <Page title="Catalog" lead="What the backends offer, as they describe it themselves." problem={live.problem}>
      <Toolbar count={live.value && `${number(rows.length)} of ${number(items.length)}, about ${number(tokens)} tokens`}>
        <Filter label="Kind" value={kind} set={value => setQuery({ kind: value, item: '' })} options={KINDS} />
        <Filter label="Search the catalog" value={query.get('q') ?? ''} set={q => setQuery({ q })} />
        <Filter label="Backend" value={backend} set={value => setQuery({ backend: value, item: '' })} options={[['', 'Every backend'], ...backends.map(name => [name, name] as const)]} />
        {tenants.value.length > 1 && (
          <Filter
            label="Tenant"
            value={owner}
            set={name => {
              chooseTenant(name);
              location.hash = href('catalog', [name], { kind });
            }}
            options={tenants.value.map(name => [name, name] as const)}
          />
        )}
      </Toolbar>
      <Cut list={live.value} />
      {!live.value && !live.problem && <Loading />}
      {live.value && !rows.length && (
        <div class="card">
          <Empty title={items.length ? 'Nothing fits the filter.' : `No backend of ${owner} has such entries.`} />
        </div>
      )}
      {rows.length > 0 && (
        <div class={selected ? 'panes' : ''}>
          <Table
            label="Catalog"
            tall
            rows={rows}
            id={item => `${item.backend}/${item.name}`}
            order={[0, 1]}
            columns={[
              {
                title: 'Name',
                width: selected ? undefined! : '30%',
                by: item => item.exposed_name,
                cell: item => (
                  <a href={href('catalog', [owner], { ...Object.fromEntries(query), kind, item: `${item.backend}/${item.name}` })} aria-current={item === selected}>
                    <Text>{item.exposed_name}</Text>
                  </a>
                ),
              },
              ...(selected
                ? []
                : [
                    {
                      title: 'Description',
                      wide: true,
                      cell: (item: Item) => <Text>{item.description ?? item.title ?? ''}</Text>,
                    },
                  ]),
              { title: 'Size', width: '95px', end: true, by: item => item.bytes, cell: item => bytes(item.bytes) },
            ]}
          />
          {selected && <Detail key={chosen} owner={owner} item={selected} />}
        </div>
      )}
    </Page>
  );
}

function Detail({ owner, item }: { owner: string; item: Item }) {
  const live = useLive<string | undefined>(
    async () => {
      const found = await callText('GET /admin/v1/tenants/{tenant}/catalog', {
        params: { tenant: owner },
        query: { kind: item.kind, backend: item.backend, name: item.name, definitions: true },
      });
      return valueText(found, ['items', 0, 'definition']);
    },
    [item.hash],
  );
  const definition = live.value === undefined ? undefined : (JSON.parse(live.value) as Json);
  const hints = objectOf(definition?.['annotations']);
  // A definition that is not known yet says nothing, also not by a missing hint.
  const isTool = item.kind === 'tool' && definition !== undefined;
  const prompted = Array.isArray(definition?.['arguments']) ? definition['arguments'].map(objectOf) : undefined;
  const unseen = unseenIn(JSON.stringify(definition ?? '')) + unseenIn(item.description ?? '');
  return (
    <div class="pane">
      <Card
        title={item.title ?? item.name}
        actions={
          item.kind === 'tool' &&
          may('POST /admin/v1/tenants/{tenant}/try') && (
            <a class="button primary" href={href('try', [owner, item.exposed_name])}>
              <Icon name="try" />
              Try it
            </a>
          )
        }
      >
        <div class="tags">
          <Tag>{item.kind}</Tag>
          {item.stale && <Tag tone="warn">may be outdated</Tag>}
          {hints['readOnlyHint'] === true && <Tag tone="good">says it only reads</Tag>}
          {isTool && hints['readOnlyHint'] !== true && hints['destructiveHint'] !== false && <Tag tone="warn">may destroy</Tag>}
          {isTool && hints['openWorldHint'] !== false && <Tag>open world</Tag>}
          {hints['idempotentHint'] === true && <Tag>idempotent</Tag>}
        </div>
        <Failed problem={live.problem} />
        {unseen > 0 && <Note tone="warn">The definition has invisible characters. The text below marks them.</Note>}
        {item.description && (
          <p class="described">
            <Text multiline>{item.description}</Text>
          </p>
        )}
        <Facts>
          {[
            ['Backend', <a href={href('backends', [owner, item.backend])}>{item.backend}</a>],
            ['Name at the backend', <span class="mono"><Text>{item.name}</Text></span>],
            ['Name on /mcp', <span class="mono"><Text>{item.exposed_name}</Text></span>],
            ['Size', `${bytes(item.bytes)}, about ${number(Math.ceil(item.bytes / BYTES_A_TOKEN))} tokens`],
            ['Hash', <code>{item.hash.slice(0, 19)}…</code>],
          ]}
        </Facts>
        {definition?.['inputSchema'] != null && <Properties title="Arguments" schema={objectOf(definition['inputSchema'])} />}
        {definition?.['outputSchema'] != null && <Properties title="Result" schema={objectOf(definition['outputSchema'])} />}
        {prompted && (
          <Properties
            title="Arguments"
            schema={{
              properties: Object.fromEntries(prompted.map(one => [String(one['name']), one])),
              required: prompted.filter(one => one['required']).map(one => one['name']),
            }}
          />
        )}
        {live.value !== undefined && (
          <details>
            <summary>Definition as the backend lists it</summary>
            <pre class="json" tabIndex={0} role="region" aria-label="Definition">
              <Text multiline>{indented(live.value)}</Text>
            </pre>
          </details>
        )}
      </Card>
    </div>
  );
}

function typeOf(schema: Json): string {
  if (Array.isArray(schema['enum'])) return schema['enum'].map(value => JSON.stringify(value)).join(' | ');
  if (schema['const'] !== undefined) return JSON.stringify(schema['const']);
  const { type } = schema;
  const names = Array.isArray(type) ? type.join(' | ') : typeof type === 'string' ? type : schema['anyOf'] || schema['oneOf'] ? 'one of several' : 'any';
  return names === 'array' && typeof schema['items'] === 'object' && schema['items'] ? `${typeOf(schema['items'] as Json)}[]` : names;
}

function Properties({ title, schema }: { title: string; schema: Json }) {
  const properties = propertiesOf(schema);
  const required = requiredOf(schema);
  return (
    <section>
      <h3>{title}</h3>
      {properties.length === 0 && <p class="faint">none are named</p>}
      {properties.map(([name, property]) => (
        <div class="property" key={name}>
          <div class="head">
            <strong class="mono">
              <Text>{name}</Text>
            </strong>
            <span class="faint mono">
              <Text>{typeof property === 'object' && property ? typeOf(property) : 'any'}</Text>
            </span>
            {required.has(name) && <Tag tone="info">required</Tag>}
          </div>
          {typeof property?.['description'] === 'string' && (
            <span class="soft">
              <Text multiline>{property['description']}</Text>
            </span>
          )}
        </div>
      ))}
    </section>
  );
}
