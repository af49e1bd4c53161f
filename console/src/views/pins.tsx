// Pins of a backend: what it lists, what operators accepted of it, and what has changed since.
import { useState } from 'preact/hooks';

import { call, type Schemas } from '../api/client';
import { useLive } from '../live';
import { may } from '../session';
import { Button, Confirm, Dialog, Empty, Loading, Note, State, Tag, tell } from '../ui/controls';
import { Card, Facts } from '../ui/page';
import { Table } from '../ui/table';
import { Text, Time, number } from '../ui/text';

type Pin = Schemas['PinView'];

// Of the type of the API: another severity there is a fault of types here.
const SEVERITY: Record<Schemas['FindingSeverity'], string> = { serious: 'bad', notable: 'warn' };

export function Pins({ owner, backend }: { owner: string; backend: string }) {
  const params = { tenant: owner, backend };
  const [shown, setShown] = useState<Pin>();
  const [all, setAll] = useState(false);
  const live = useLive<Schemas['PinList']>(() => call('GET /admin/v1/tenants/{tenant}/backends/{backend}/pins', { params }), [owner, backend], 6_000);
  const pins = live.value?.pins ?? [];
  const open = pins.filter(pin => pin.state === 'pending' || pin.state === 'changed');
  const mayApprove = may('POST /admin/v1/tenants/{tenant}/backends/{backend}/pins/approve');
  return (
    <Card
      title="Pins"
      wide
      actions={
        <>
          {live.value && <Tag>{`mode: ${live.value.mode.replace('_', ' ')}`}</Tag>}
          {open.length > 0 && <Tag tone="warn">{`${open.length} not accepted`}</Tag>}
          {mayApprove && open.length > 0 && <Button run={() => setAll(true)}>Approve all</Button>}
        </>
      }
    >
      {!live.value && !live.problem && <Loading />}
      {live.problem && <Note tone="bad">{live.problem.message}</Note>}
      {live.value && !pins.length && <Empty title="Nothing is pinned yet." />}
      {pins.length > 0 && (
        <Table
          label="Pins"
          rows={pins}
          id={pin => `${pin.kind} ${pin.name}`}
          order={[2, 1]}
          columns={[
            { title: 'Kind', width: '110px', wide: true, by: pin => pin.kind, cell: pin => pin.kind },
            { title: 'Name', by: pin => pin.name, cell: pin => <Button kind="quiet" run={() => setShown(pin)}><Text>{pin.name}</Text></Button> },
            { title: 'State', width: '130px', by: pin => ['blocked', 'changed', 'pending', 'gone', 'trusted'].indexOf(pin.state), cell: pin => <State>{pin.state}</State> },
            { title: 'Held', width: '80px', cell: pin => (pin.held ? <Tag tone="bad">held</Tag> : '') },
            { title: 'Findings', width: '100px', end: true, wide: true, by: pin => pin.findings.length, cell: pin => number(pin.findings.length) },
            { title: 'Seen', width: '130px', wide: true, by: pin => pin.seen_at, cell: pin => <Time at={pin.seen_at} /> },
          ]}
        />
      )}
      {shown && (
        <Difference
          owner={owner}
          backend={backend}
          pin={shown}
          close={() => setShown(undefined)}
          decided={() => {
            setShown(undefined);
            void live.again();
          }}
        />
      )}
      {all && (
        <Confirm
          title={`Approve everything that ${backend} lists now?`}
          act="Approve all"
          close={() => setAll(false)}
          run={async () => {
            await call('POST /admin/v1/tenants/{tenant}/backends/{backend}/pins/approve', { params, body: { all: true } });
            tell('Everything that is listed now is trusted.');
            await live.again();
          }}
        >
          <p>{open.length} definitions are pending or changed. Blocked ones stay blocked.</p>
        </Confirm>
      )}
    </Card>
  );
}

function Difference({ owner, backend, pin, close, decided }: { owner: string; backend: string; pin: Pin; close: () => void; decided: () => void }) {
  const params = { tenant: owner, backend, kind: pin.kind, name: pin.name };
  const live = useLive<Schemas['PinDiffView']>(() => call('GET /admin/v1/tenants/{tenant}/backends/{backend}/pins/{kind}/{name}/diff', { params }), [pin.hash]);
  const view = live.value;
  const approve = async () => {
    // The hash that this dialog shows: a definition that moved meanwhile is refused.
    await call('POST /admin/v1/tenants/{tenant}/backends/{backend}/pins/approve', { params, body: { items: [{ kind: pin.kind, name: pin.name, hash: view?.hash ?? pin.hash }] } });
    tell(`${pin.name} is trusted.`);
    decided();
  };
  const block = async () => {
    await call('POST /admin/v1/tenants/{tenant}/backends/{backend}/pins/block', { params, body: { items: [{ kind: pin.kind, name: pin.name }] } });
    tell(`${pin.name} is blocked.`);
    decided();
  };
  return (
    <Dialog title={`${pin.kind} ${pin.name}`} close={close} wide>
      <Facts>
        {[
          ['State', <State>{pin.state}</State>],
          ['Hash', <code>{pin.hash.slice(0, 19)}…</code>],
          ['First seen', <Time at={pin.first_seen_at} />],
          ['Last change', <Time at={pin.seen_at} />],
          pin.decided_by != null && ['Decided by', <Text>{pin.decided_by}</Text>],
        ]}
      </Facts>
      {live.problem && <Note tone="bad">{live.problem.message}</Note>}
      {!view && !live.problem && <Loading />}
      {view?.findings.map((finding, at) => (
        <Note key={at} tone="warn">
          <Tag tone={SEVERITY[finding.severity]}>{finding.severity}</Tag> <strong>{finding.rule}</strong> <code>{finding.pointer}</code>
          <p>
            <Text>{finding.excerpt}</Text>
          </p>
        </Note>
      ))}
      {view?.changes.map(change => (
        <section key={change.pointer}>
          <h3>
            <code>{change.pointer || '/'}</code>
          </h3>
          <div class="diff">
            <pre class="json" tabIndex={0} role="region" aria-label={`Before: ${change.pointer}`}>
              <Text multiline>{change.before ?? 'nothing'}</Text>
            </pre>
            <pre class="json" tabIndex={0} role="region" aria-label={`Now: ${change.pointer}`}>
              <Text multiline>{change.after ?? 'nothing'}</Text>
            </pre>
          </div>
        </section>
      ))}
      {view && (
        <details>
          <summary>Definition as it is now</summary>
          <pre class="json" tabIndex={0} role="region" aria-label="Definition">
            <Text multiline>{view.definition}</Text>
          </pre>
        </details>
      )}
      {may('POST /admin/v1/tenants/{tenant}/backends/{backend}/pins/approve') && view && (
        <div class="actions">
          <Button kind="danger" run={block} disabled={pin.state === 'blocked'}>
            Block
          </Button>
          <Button kind="primary" run={approve} disabled={pin.state === 'trusted'}>
            Approve
          </Button>
        </div>
      )}
    </Dialog>
  );
}
