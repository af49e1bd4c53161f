// API keys of a tenant. A key is shown once.
import { useState } from 'preact/hooks';

import { call, callAll, type List, type Schemas } from '../api/client';
import { useLive } from '../live';
import { chooseTenant, may, oneTenant, tenants } from '../session';
import { Button, Confirm, Dialog, Empty, Filter, Input, Loading, Refused, Secret, tell, useSubmit } from '../ui/controls';
import { Cut, Page, Toolbar } from '../ui/page';
import { Table } from '../ui/table';
import { Text, Time, number } from '../ui/text';

type Key = Schemas['KeyView'];

export function Keys() {
  const owner = oneTenant.value;
  const [sought, setSought] = useState('');
  const [creating, setCreating] = useState(false);
  const [made, setMade] = useState<Schemas['KeyShown']>();
  const [revoking, setRevoking] = useState<Key>();
  const live = useLive<List<Key>>(() => callAll<Key>('GET /admin/v1/tenants/{tenant}/keys', 'keys', { params: { tenant: owner } }), [owner], 10_000);
  const rows = (live.value ?? []).filter(row => !sought || `${row.name} ${row.principal} ${row.id} ${(row.groups ?? []).join(' ')}`.toLowerCase().includes(sought.toLowerCase()));
  const mayRevoke = may('DELETE /admin/v1/tenants/{tenant}/keys/{id}');
  return (
    <Page
      title="Keys"
      lead="Credentials of clients. The broker stores only their hashes."
      problem={live.problem}
      actions={
        may('POST /admin/v1/tenants/{tenant}/keys') && (
          <Button kind="primary" icon="plus" run={() => setCreating(true)}>
            Create a key
          </Button>
        )
      }
    >
      <Toolbar count={live.value && number(rows.length)}>
        <Filter label="Search keys" value={sought} set={setSought} />
        {tenants.value.length > 1 && <Filter label="Tenant" value={owner} set={chooseTenant} options={tenants.value.map(name => [name, name] as const)} />}
      </Toolbar>
      <Cut list={live.value} />
      {!live.value && !live.problem && <Loading />}
      {live.value && !rows.length && (
        <div class="card">
          <Empty title={live.value.length ? 'No key fits the filter.' : `Tenant ${owner} has no keys.`} />
        </div>
      )}
      {rows.length > 0 && (
        <Table
          label="Keys"
          tall
          rows={rows}
          id={row => row.id}
          order={[4, -1]}
          columns={[
            { title: 'Name', by: row => row.name, cell: row => <Text>{row.name || row.id}</Text> },
            { title: 'Principal', by: row => row.principal, cell: row => <Text>{row.principal}</Text> },
            { title: 'Groups', width: '15%', wide: true, cell: row => <Text>{(row.groups ?? []).join(', ') || '–'}</Text> },
            { title: 'Scopes', width: '15%', wide: true, cell: row => <Text>{(row.scopes ?? []).join(', ') || '–'}</Text> },
            { title: 'Created', width: '130px', wide: true, by: row => row.created_at, cell: row => <Time at={row.created_at} /> },
            { title: 'Expires', width: '130px', wide: true, by: row => row.expires_at ?? '~', cell: row => (row.expires_at ? <Time at={row.expires_at} /> : 'never') },
            ...(mayRevoke ? [{ title: 'Act', width: '90px', end: true, cell: (row: Key) => <Button kind="quiet" label={`Revoke key ${row.name || row.id}`} run={() => setRevoking(row)}>Revoke</Button> }] : []),
          ]}
        />
      )}
      {creating && (
        <Create
          owner={owner}
          close={() => setCreating(false)}
          made={key => {
            setCreating(false);
            setMade(key);
            void live.again();
          }}
        />
      )}
      {made && (
        <Secret title={`Key of ${made.principal}`} text={made.key} close={() => setMade(undefined)}>
          <p class="soft">Clients send it as Authorization: Bearer KEY.</p>
        </Secret>
      )}
      {revoking && (
        <Confirm
          title="Revoke this key?"
          act="Revoke the key"
          close={() => setRevoking(undefined)}
          run={async () => {
            await call('DELETE /admin/v1/tenants/{tenant}/keys/{id}', { params: { tenant: owner, id: revoking.id } });
            tell('The key is revoked.');
            await live.again();
          }}
        >
          <p>
            <Text>{`Clients with the key ${revoking.name || revoking.id} of ${revoking.principal} are refused at once, and its sessions end.`}</Text>
          </p>
        </Confirm>
      )}
    </Page>
  );
}

function list(text: string): string[] | undefined {
  const parts = text.split(/[\s,]+/).filter(Boolean);
  return parts.length ? parts : undefined;
}

function Create({ owner, close, made }: { owner: string; close: () => void; made: (key: Schemas['KeyShown']) => void }) {
  const [draft, setDraft] = useState({ name: '', principal: '', groups: '', scopes: '', expires_in: '' });
  const set = (member: keyof typeof draft) => (value: string) => setDraft({ ...draft, [member]: value });
  const { problem, isSending, submit } = useSubmit(async () => {
    const body = {
      name: draft.name || undefined,
      principal: draft.principal || undefined,
      groups: list(draft.groups),
      scopes: list(draft.scopes),
      expires_in: draft.expires_in || undefined,
    };
    made(await call('POST /admin/v1/tenants/{tenant}/keys', { params: { tenant: owner }, body }));
  });
  return (
    <Dialog title={`Create a key of ${owner}`} close={close}>
      <form onSubmit={submit}>
        <Input label="Name" value={draft.name} set={set('name')} autofocus fault={problem?.of('name')} placeholder="build server" />
        <Input label="Principal" value={draft.principal} set={set('principal')} fault={problem?.of('principal')} hint="The key can use the sessions and tasks of this principal. Empty: the id of the key." />
        <div class="pair">
          <Input label="Groups" value={draft.groups} set={set('groups')} fault={problem?.of('groups')} hint="With spaces between them." />
          <Input label="Scopes" value={draft.scopes} set={set('scopes')} fault={problem?.of('scopes')} hint="With spaces between them." />
        </div>
        <Input label="Expires in" value={draft.expires_in} set={set('expires_in')} fault={problem?.of('expires_in')} placeholder="720h" hint="Empty: never." />
        <Refused problem={problem} except={Object.keys(draft)} />
        <div class="actions">
          <Button run={close}>Cancel</Button>
          <Button kind="primary" submit isSending={isSending}>
            Create the key
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
