// Operators of the admin plane. A token is shown once.
import { useState } from 'preact/hooks';

import { call, type Schemas } from '../api/client';
import { useLive } from '../live';
import { may, operator } from '../session';
import { Button, Confirm, Dialog, Empty, Input, Loading, Note, Refused, Secret, Select, Tag, tell, useSubmit } from '../ui/controls';
import { Page } from '../ui/page';
import { Table } from '../ui/table';
import { Text, Time } from '../ui/text';

type View = Schemas['OperatorView'];

const ROLES = [
  ['viewer', 'viewer: reads all but audit and operators'],
  ['operator', 'operator: also probes, ends sessions, cancels tasks'],
  ['tenant_admin', 'tenant admin: manages keys, backends and policies'],
  ['auditor', 'auditor: reads all, with audit and operators'],
  ['backend_owner', 'backend owner: sees and operates given backends'],
  ['scraper', 'scraper: reads the metrics only'],
  ['admin', 'admin: everything'],
] as const;

export function Operators() {
  const [creating, setCreating] = useState(false);
  const [made, setMade] = useState<Schemas['OperatorShown']>();
  const [revoking, setRevoking] = useState<View>();
  const live = useLive(() => call<Schemas['OperatorList']>('GET /admin/v1/operators'), [], 10_000);
  const rows = live.value?.operators ?? [];
  const refused = rows.filter(row => row.fault);
  const mayRevoke = may('DELETE /admin/v1/operators/{id}');
  return (
    <Page
      title="Operators"
      lead="People and programs that use this console, the command line or the admin API."
      problem={live.problem}
      actions={
        may('POST /admin/v1/operators') && (
          <Button kind="primary" icon="plus" run={() => setCreating(true)}>
            Create an operator
          </Button>
        )
      }
    >
      {!live.value && !live.problem && <Loading />}
      {live.value && !rows.length && (
        <div class="card">
          <Empty title="No operator has a name yet.">
            <p>A person who knows auth.admin_token is the operator “admin”. Named operators have a role, and the audit log has their names.</p>
          </Empty>
        </div>
      )}
      {refused.length > 0 && (
        <Note tone="bad">
          <strong>The broker refuses the tokens of these operators:</strong>
          <ul>
            {refused.map(row => (
              <li key={row.id}>
                <Text>{`${row.name}: ${row.fault}`}</Text>
              </li>
            ))}
          </ul>
        </Note>
      )}
      {rows.length > 0 && (
        <Table
          label="Operators"
          tall
          rows={rows}
          id={row => row.id}
          order={[0, 1]}
          columns={[
            {
              title: 'Name',
              by: row => row.name,
              cell: row => (
                <>
                  <strong>
                    <Text>{row.name}</Text>
                  </strong>{' '}
                  {row.name === operator.value?.name && <Tag tone="info">you</Tag>}
                </>
              ),
            },
            { title: 'Role', width: '130px', by: row => row.role, cell: row => (row.fault ? <Tag tone="bad">{row.role}</Tag> : row.role.replace('_', ' ')) },
            { title: 'Sees', wide: true, cell: row => <Text>{(row.backends?.join(', ') ?? row.tenants?.join(', ') ?? 'all tenants') || '–'}</Text> },
            { title: 'From', width: '150px', wide: true, by: row => row.source, cell: row => (row.source === 'config' ? 'the configuration' : <Time at={row.created_at} />) },
            ...(mayRevoke ? [{ title: 'Act', width: '90px', end: true, cell: (row: View) => row.source === 'api' && <Button kind="quiet" label={`Revoke ${row.name}`} run={() => setRevoking(row)}>Revoke</Button> }] : []),
          ]}
        />
      )}
      {creating && (
        <Create
          close={() => setCreating(false)}
          made={shown => {
            setCreating(false);
            setMade(shown);
            void live.again();
          }}
        />
      )}
      {made && (
        <Secret title={`Token of ${made.name}`} text={made.token} close={() => setMade(undefined)}>
          <p class="soft">Use the token to sign in here, or as MCP_BROKER_ADMIN_TOKEN for the command line.</p>
        </Secret>
      )}
      {revoking && (
        <Confirm
          title={`Revoke ${revoking.name}?`}
          act="Revoke the operator"
          close={() => setRevoking(undefined)}
          run={async () => {
            await call('DELETE /admin/v1/operators/{id}', { params: { id: revoking.id } });
            tell(`${revoking.name} is revoked.`);
            await live.again();
          }}
        >
          <p>The token is refused at once, here and in open consoles.</p>
        </Confirm>
      )}
    </Page>
  );
}

function Create({ close, made }: { close: () => void; made: (shown: Schemas['OperatorShown']) => void }) {
  const [draft, setDraft] = useState({ name: '', role: 'viewer', tenants: '', backends: '' });
  const set = (member: keyof typeof draft) => (value: string) => setDraft({ ...draft, [member]: value });
  const names = (text: string) => {
    const parts = text.split(/[\s,]+/).filter(Boolean);
    return parts.length ? parts : undefined;
  };
  const { problem, isSending, submit } = useSubmit(async () => {
    const owns = draft.role === 'backend_owner';
    const body = { name: draft.name, role: draft.role, tenants: owns ? undefined : names(draft.tenants), backends: owns ? names(draft.backends) : undefined };
    made(await call('POST /admin/v1/operators', { body }));
  });
  return (
    <Dialog title="Create an operator" close={close}>
      <form onSubmit={submit}>
        <Input label="Name" value={draft.name} set={set('name')} required autofocus fault={problem?.of('name')} hint="As the audit log shows it." />
        <Select label="Role" value={draft.role} set={set('role')} options={ROLES} fault={problem?.of('role')} />
        {draft.role === 'backend_owner' ? (
          <Input label="Backends" value={draft.backends} set={set('backends')} fault={problem?.of('backends')} hint="TENANT/BACKEND, with spaces between them." />
        ) : (
          <Input label="Tenants" value={draft.tenants} set={set('tenants')} fault={problem?.of('tenants')} hint="With spaces between them. Empty: all tenants, and the broker itself." />
        )}
        <Refused problem={problem} except={Object.keys(draft)} />
        <div class="actions">
          <Button run={close}>Cancel</Button>
          <Button kind="primary" submit isSending={isSending}>
            Create the operator
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
