// Accounts that people connected at backends.
import { useState } from 'preact/hooks';

import { call, callAll, type List, type Schemas } from '../api/client';
import { useLive } from '../live';
import { chooseTenant, may, oneTenant, tenants } from '../session';
import { Button, Confirm, Dialog, Empty, Filter, Input, Loading, Refused, Secret, State, tell, useSubmit } from '../ui/controls';
import { Cut, Page, Toolbar } from '../ui/page';
import { Table } from '../ui/table';
import { Text, Time, duration, number } from '../ui/text';

type Connection = Schemas['ConnectionView'];

export function Connections() {
  const owner = oneTenant.value;
  const [sought, setSought] = useState('');
  const [ending, setEnding] = useState<Connection>();
  const [linking, setLinking] = useState(false);
  const [link, setLink] = useState<Schemas['ConnectLinkView']>();
  const live = useLive<List<Connection>>(
    () => callAll<Connection>('GET /admin/v1/tenants/{tenant}/connections', 'connections', { params: { tenant: owner } }),
    [owner],
    8_000,
  );
  const rows = (live.value ?? []).filter(row => !sought || `${row.principal} ${row.backend} ${row.issuer}`.toLowerCase().includes(sought.toLowerCase()));
  const mayEnd = may('DELETE /admin/v1/tenants/{tenant}/connections/{principal}/{backend}');
  return (
    <Page
      title="Connections"
      lead="Accounts that people connected at backends. The broker uses and renews their tokens."
      problem={live.problem}
      actions={
        may('POST /admin/v1/tenants/{tenant}/connections') && (
          <Button icon="plus" run={() => setLinking(true)}>
            Make a link
          </Button>
        )
      }
    >
      <Toolbar count={live.value && number(rows.length)}>
        <Filter label="Search connections" value={sought} set={setSought} />
        {tenants.value.length > 1 && <Filter label="Tenant" value={owner} set={chooseTenant} options={tenants.value.map(name => [name, name] as const)} />}
      </Toolbar>
      <Cut list={live.value} />
      {!live.value && !live.problem && <Loading />}
      {live.value && !rows.length && (
        <div class="card">
          <Empty title={`No principal of ${owner} has connected an account.`}>
            <p>People connect accounts at /connect of the broker, for backends with auth type oauth_user.</p>
          </Empty>
        </div>
      )}
      {rows.length > 0 && (
        <Table
          label="Connections"
          tall
          rows={rows}
          id={row => `${row.backend} ${row.principal}`}
          columns={[
            { title: 'Principal', by: row => row.principal, cell: row => <Text>{row.principal}</Text> },
            { title: 'Backend', width: '16%', by: row => row.backend, cell: row => row.backend },
            { title: 'Authorization server', wide: true, by: row => row.issuer, cell: row => <Text>{row.issuer}</Text> },
            { title: 'State', width: '130px', by: row => row.state, cell: row => <State>{row.state}</State> },
            { title: 'Last error', width: '130px', wide: true, by: row => row.last_error ?? '', cell: row => <Text>{row.last_error ?? '–'}</Text> },
            { title: 'Token until', width: '140px', wide: true, cell: row => <Time at={row.expires_at} /> },
            ...(mayEnd ? [{ title: 'Act', width: '75px', end: true, cell: (row: Connection) => <Button kind="quiet" label={`End the connection of ${row.principal}`} run={() => setEnding(row)}>End</Button> }] : []),
          ]}
        />
      )}
      {linking && (
        <Link
          owner={owner}
          close={() => setLinking(false)}
          made={view => {
            setLinking(false);
            setLink(view);
          }}
        />
      )}
      {link && (
        <Secret title="One-time link" text={link.url} close={() => setLink(undefined)}>
          <p>Give it to this person only. It is valid once, within {duration(link.expires_in)}.</p>
        </Secret>
      )}
      {ending && (
        <Confirm
          title="End this connection?"
          act="End the connection"
          close={() => setEnding(undefined)}
          run={async () => {
            await call('DELETE /admin/v1/tenants/{tenant}/connections/{principal}/{backend}', { params: { tenant: owner, principal: ending.principal, backend: ending.backend } });
            tell('The connection has ended.');
            await live.again();
          }}
        >
          <p>
            <Text>{`${ending.principal} must connect the account at ${ending.backend} again before its tools work.`}</Text>
          </p>
        </Confirm>
      )}
    </Page>
  );
}

function Link({ owner, close, made }: { owner: string; close: () => void; made: (link: Schemas['ConnectLinkView']) => void }) {
  const [principal, setPrincipal] = useState('');
  const [backend, setBackend] = useState('');
  const { problem, isSending, submit } = useSubmit(async () => {
    made(await call('POST /admin/v1/tenants/{tenant}/connections', { params: { tenant: owner }, body: { principal, backend } }));
  });
  return (
    <Dialog title="Link to the connect page" close={close}>
      <form onSubmit={submit}>
        <p class="soft">For a person who has only an API key. The link signs this person in at /connect, once.</p>
        <Input label="Principal" value={principal} set={setPrincipal} required fault={problem?.of('principal')} hint="As sessions show it." />
        <Input label="Backend" value={backend} set={setBackend} required fault={problem?.of('backend')} />
        <Refused problem={problem} except={['principal', 'backend']} />
        <div class="actions">
          <Button run={close}>Cancel</Button>
          <Button kind="primary" submit isSending={isSending}>
            Make the link
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
