// Sessions of clients, on all replicas.
import { useState } from 'preact/hooks';

import { call, callAll, type List, type Schemas } from '../api/client';
import { useLive } from '../live';
import { route, setQuery } from '../router';
import { chooseTenant, may, tenant, tenants } from '../session';
import { Button, Confirm, Empty, Filter, Loading, State, tell } from '../ui/controls';
import { Cut, Page, Toolbar } from '../ui/page';
import { Table } from '../ui/table';
import { Text, duration, number } from '../ui/text';

type Session = Schemas['SessionView'];

export function Sessions() {
  const chosen = tenant.value;
  const { query } = route.value;
  const sought = (query.get('q') ?? '').toLowerCase();
  const [ending, setEnding] = useState<Session>();
  const live = useLive<List<Session>>(() => callAll<Session>('GET /admin/v1/sessions', 'sessions', { query: { tenant: chosen } }), [chosen], 6_000);
  const rows = (live.value ?? []).filter(
    row => !sought || `${row.principal} ${row.client_name} ${row.endpoint} ${row.transport} ${row.node ?? ''} ${row.id} ${row.tenant}`.toLowerCase().includes(sought),
  );
  const mayEnd = may('DELETE /admin/v1/sessions/{id}');
  return (
    <Page title="Sessions" lead="Conversations of clients with the broker, on all replicas. Ids are digests." problem={live.problem}>
      <Toolbar count={live.value && `${number(rows.length)} of ${number(live.value.length)}`}>
        <Filter label="Search sessions" value={query.get('q') ?? ''} set={q => setQuery({ q })} />
        {tenants.value.length > 1 && (
          <Filter label="Tenant" value={chosen} set={chooseTenant} options={[['', 'Every tenant'], ...tenants.value.map(name => [name, name] as const)]} />
        )}
      </Toolbar>
      <Cut list={live.value} />
      {!live.value && !live.problem && <Loading />}
      {live.value && !rows.length && (
        <div class="card">
          <Empty title={live.value.length ? 'No session fits the filter.' : 'No client has a session.'} />
        </div>
      )}
      {rows.length > 0 && (
        <Table
          label="Sessions"
          tall
          rows={rows}
          id={row => row.id}
          columns={[
            { title: 'Principal', by: row => row.principal, cell: row => <Text>{row.principal}</Text> },
            { title: 'Tenant', width: '10%', wide: true, by: row => row.tenant, cell: row => row.tenant },
            { title: 'Client', width: '16%', by: row => row.client_name, cell: row => <Text>{`${row.client_name} ${row.client_version}`}</Text> },
            { title: 'Revision', width: '118px', wide: true, by: row => row.protocol_version, cell: row => row.protocol_version },
            { title: 'Wire', width: '90px', wide: true, by: row => row.transport, cell: row => row.transport },
            { title: 'Endpoint', width: '11%', wide: true, by: row => row.endpoint, cell: row => row.endpoint },
            { title: 'State', width: '118px', by: row => row.state, cell: row => <State>{row.state}</State> },
            { title: 'Idle', width: '95px', wide: true, end: true, by: row => row.idle_seconds, cell: row => duration(row.idle_seconds) },
            ...(mayEnd ? [{ title: 'Act', width: '75px', end: true, cell: (row: Session) => <Button kind="quiet" label={`End the session of ${row.principal}`} run={() => setEnding(row)}>End</Button> }] : []),
          ]}
        />
      )}
      {ending && (
        <Confirm
          title="End this session?"
          act="End the session"
          close={() => setEnding(undefined)}
          run={async () => {
            await call('DELETE /admin/v1/sessions/{id}', { params: { id: ending.id } });
            tell('The session has ended.');
            await live.again();
          }}
        >
          <p>
            <Text>{`${ending.client_name} of ${ending.principal} loses its calls in flight and has to initialize again.`}</Text>
          </p>
        </Confirm>
      )}
    </Page>
  );
}
