// Backends: the list of all, one of them, and the form that adds or changes one.
import { go, href, route, setQuery } from '../router';
import { callAll, type List, type Schemas } from '../api/client';
import { useLive } from '../live';
import { chooseTenant, may, tenant, tenants } from '../session';
import { Empty, Filter, Loading, State } from '../ui/controls';
import { Icon } from '../ui/icons';
import { Cut, Page, Toolbar } from '../ui/page';
import { Table } from '../ui/table';
import { Text, milliseconds, number } from '../ui/text';
import { BackendDetail } from './backend';
import { BackendForm } from './backend-form';

type Status = Schemas['BackendStatus'];

const STATES = ['connecting', 'ready', 'degraded', 'failed', 'disabled'];

export function Backends() {
  const [owner, name] = route.value.rest;
  if (owner === '+') return <BackendForm key="+" />;
  if (owner && name) return route.value.query.has('edit') ? <BackendForm key={`${owner}/${name}`} owner={owner} name={name} /> : <BackendDetail key={`${owner}/${name}`} owner={owner} name={name} />;
  return <BackendTable />;
}

function BackendTable() {
  const { query } = route.value;
  const state = query.get('state') ?? '';
  const sought = (query.get('q') ?? '').toLowerCase();
  const chosen = tenant.value;
  const live = useLive<List<Status>>(
    () => callAll<Status>('GET /admin/v1/backends', 'backends', { query: { tenant: chosen } }),
    [chosen],
    4_000,
  );
  const rows = (live.value ?? []).filter(row => {
    const breaker = row.breaker?.state ?? 'closed';
    const inState = !state || (state === 'breaker' ? breaker !== 'closed' : row.state === state);
    return inState && (!sought || `${row.backend} ${row.tenant} ${row.server_name ?? ''} ${row.last_error ?? ''}`.toLowerCase().includes(sought));
  });
  const mayAdd = may('PUT /admin/v1/tenants/{tenant}/backends/{backend}');
  const add = mayAdd && (
    <a class="button primary" href={href('backends', ['+'])}>
      <Icon name="plus" />
      Add a backend
    </a>
  );
  return (
    <Page title="Backends" lead="MCP servers that the broker connects to. State and numbers are those of the replica that answers." actions={add} problem={live.problem}>
      <Toolbar count={live.value && `${number(rows.length)} of ${number(live.value.length)}`}>
        <Filter label="Search backends" value={query.get('q') ?? ''} set={q => setQuery({ q })} />
        <Filter
          label="State"
          value={state}
          set={value => setQuery({ state: value })}
          options={[['', 'Every state'], ...STATES.map(name => [name, name] as const), ['breaker', 'breaker not closed']]}
        />
        {tenants.value.length > 1 && (
          <Filter label="Tenant" value={chosen} set={chooseTenant} options={[['', 'Every tenant'], ...tenants.value.map(name => [name, name] as const)]} />
        )}
      </Toolbar>
      <Cut list={live.value} />
      {!live.value && !live.problem && <Loading />}
      {live.value && !live.value.length && (
        <div class="card">
          <Empty title="No backend is registered yet.">
            <p>A backend is an MCP server: a program of this machine, or a server elsewhere.</p>
            {add}
          </Empty>
        </div>
      )}
      {live.value && live.value.length > 0 && !rows.length && (
        <div class="card">
          <Empty title="No backend fits the filter." />
        </div>
      )}
      {rows.length > 0 && (
        <Table
          label="Backends"
          tall
          rows={rows}
          id={row => `${row.tenant}/${row.backend}`}
          order={[0, 1]}
          columns={[
            { title: 'Backend', width: '18%', by: row => row.backend, cell: row => <a href={href('backends', [row.tenant, row.backend])}>{row.backend}</a> },
            { title: 'Tenant', width: '11%', wide: true, by: row => row.tenant, cell: row => row.tenant },
            { title: 'State', width: '125px', by: row => STATES.indexOf(row.state), cell: row => <State>{row.state}</State> },
            { title: 'Breaker', width: '110px', wide: true, by: row => row.breaker?.state ?? '', cell: row => (row.breaker ? <State>{row.breaker.state}</State> : '–') },
            { title: 'Tools', width: '75px', end: true, by: row => row.tools, cell: row => number(row.tools) },
            { title: 'In flight', width: '90px', end: true, wide: true, by: row => row.calls_in_flight ?? 0, cell: row => number(row.calls_in_flight ?? 0) },
            { title: 'Latency', width: '95px', end: true, wide: true, by: row => row.latency_ms ?? -1, cell: row => milliseconds(row.latency_ms) },
            { title: 'Server or error', wide: true, cell: row => <Text>{row.last_error ?? [row.server_name, row.server_version].filter(Boolean).join(' ')}</Text> },
          ]}
        />
      )}
    </Page>
  );
}

/** Opens a backend after it was stored. */
export function showBackend(owner: string, name: string): void {
  go(href('backends', [owner, name]));
}
