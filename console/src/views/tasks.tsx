// Durable tasks, on all replicas. Their results are not shown.
import { useState } from 'preact/hooks';

import { call, callAll, type List, type Schemas } from '../api/client';
import { useLive } from '../live';
import { route, setQuery } from '../router';
import { chooseTenant, may, tenant, tenants } from '../session';
import { Button, Confirm, Dialog, Empty, Failed, Filter, Loading, State, tell } from '../ui/controls';
import { Cut, Facts, Page, Toolbar } from '../ui/page';
import { Table } from '../ui/table';
import { Text, Time, number } from '../ui/text';

type Task = Schemas['TaskView'];

const STATUSES = ['working', 'input_required', 'completed', 'failed', 'cancelled'];
const LIVING = ['working', 'input_required'];

export function Tasks() {
  const chosen = tenant.value;
  const { query } = route.value;
  const status = query.get('status') ?? '';
  const sought = (query.get('q') ?? '').toLowerCase();
  const [cancelling, setCancelling] = useState<Task>();
  const [shown, setShown] = useState<string>();
  const live = useLive<List<Task>>(() => callAll<Task>('GET /admin/v1/tasks', 'tasks', { query: { tenant: chosen, status } }), [chosen, status], 4_000);
  const rows = (live.value ?? []).filter(row => !sought || `${row.id} ${row.principal} ${row.backend} ${row.tenant}`.toLowerCase().includes(sought));
  const mayCancel = may('POST /admin/v1/tasks/{id}/cancel');
  return (
    <Page title="Tasks" lead="Calls whose outcome is collected later, on all replicas." problem={live.problem}>
      <Toolbar count={live.value && number(rows.length)}>
        <Filter label="Search tasks" value={query.get('q') ?? ''} set={q => setQuery({ q })} />
        <Filter label="Status" value={status} set={value => setQuery({ status: value })} options={[['', 'Every status'], ...STATUSES.map(name => [name, name.replace('_', ' ')] as const)]} />
        {tenants.value.length > 1 && (
          <Filter label="Tenant" value={chosen} set={chooseTenant} options={[['', 'Every tenant'], ...tenants.value.map(name => [name, name] as const)]} />
        )}
      </Toolbar>
      <Cut list={live.value} />
      {!live.value && !live.problem && <Loading />}
      {live.value && !rows.length && (
        <div class="card">
          <Empty title={status || sought ? 'No task fits the filter.' : 'There are no tasks.'} />
        </div>
      )}
      {rows.length > 0 && (
        <Table
          label="Tasks"
          tall
          rows={rows}
          id={row => row.id}
          order={[4, -1]}
          columns={[
            { title: 'Task', width: '19%', cell: row => <Button kind="quiet" run={() => setShown(row.id)}><span class="mono">{row.id}</span></Button> },
            { title: 'Principal', by: row => row.principal, cell: row => <Text>{`${row.tenant} / ${row.principal}`}</Text> },
            { title: 'Backend', width: '14%', wide: true, by: row => row.backend, cell: row => row.backend },
            { title: 'Status', width: '150px', by: row => row.status, cell: row => <State>{row.status}</State> },
            { title: 'Created', width: '130px', wide: true, by: row => row.created_at, cell: row => <Time at={row.created_at} /> },
            { title: 'Message', wide: true, cell: row => <Text>{row.message ?? ''}</Text> },
            ...(mayCancel
              ? [{ title: 'Act', width: '85px', end: true, cell: (row: Task) => LIVING.includes(row.status) && <Button kind="quiet" label={`Cancel task ${row.id}`} run={() => setCancelling(row)}>Cancel</Button> }]
              : []),
          ]}
        />
      )}
      {shown && <Shown id={shown} close={() => setShown(undefined)} />}
      {cancelling && (
        <Confirm
          title="Cancel this task?"
          act="Cancel the task"
          close={() => setCancelling(undefined)}
          run={async () => {
            await call('POST /admin/v1/tasks/{id}/cancel', { params: { id: cancelling.id }, body: {} });
            tell('The task is cancelled.');
            await live.again();
          }}
        >
          <p>The backend {cancelling.backend} is asked to stop. Its completed work is not undone.</p>
        </Confirm>
      )}
    </Page>
  );
}

function Shown({ id, close }: { id: string; close: () => void }) {
  const live = useLive<Schemas['TaskShown']>(() => call('GET /admin/v1/tasks/{id}', { params: { id } }), [id], 3_000);
  const task = live.value;
  return (
    <Dialog title="Task" close={close}>
      <Failed problem={live.problem} />
      {!task && !live.problem && <Loading />}
      {task && (
        <>
          <Facts>
            {[
              ['Id', <span class="mono">{task.id}</span>],
              ['Status', <State>{task.status}</State>],
              ['Principal', <Text>{task.principal}</Text>],
              ['Backend', task.backend],
              ['Created', <Time at={task.created_at} />],
              ['Deleted at', <Time at={task.expires_at} />],
            ]}
          </Facts>
          {task.message && <Text>{task.message}</Text>}
          <h3>History</h3>
          <ul class="list">
            {task.history.map(step => (
              <li key={step.at + step.to}>
                <State>{step.to}</State> <Time at={step.at} />
              </li>
            ))}
          </ul>
        </>
      )}
    </Dialog>
  );
}
