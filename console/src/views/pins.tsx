// Pins of a backend: what it lists, what operators accepted of it, and what has changed since.
import { useState } from 'preact/hooks';

import { call, Problem, type Schemas } from '../api/client';
import { asProblem, useLive } from '../live';
import { may } from '../session';
import { Button, Confirm, Dialog, Empty, Failed, Loading, Note, Refused, State, Tag, tell } from '../ui/controls';
import { Card, Facts } from '../ui/page';
import { Table } from '../ui/table';
import { Text, Time, number } from '../ui/text';

type Pin = Schemas['PinView'];

// Of the type of the API: another severity there is a fault of types here.
const SEVERITY: Record<Schemas['FindingSeverity'], string> = { serious: 'bad', notable: 'warn' };

const APPROVE = 'POST /admin/v1/tenants/{tenant}/backends/{backend}/pins/approve';
/** Length of the names in one request, far below what a body may have. */
const NAMES_MAX = 100_000;
/** Definitions of one request. The broker approves all of them or none. */
const ITEMS_MAX = 1_000;

interface Item {
  kind: string;
  name: string;
  hash: string;
}

/** Returns the definitions in parts that fit into one request each. */
function partsOf(pins: readonly Pin[]): Item[][] {
  const parts: Item[][] = [];
  let length = 0;
  for (const { kind, name, hash } of pins) {
    const part = parts.at(-1);
    length += name.length;
    if (part && part.length < ITEMS_MAX && length <= NAMES_MAX) part.push({ kind, name, hash });
    else {
      parts.push([{ kind, name, hash }]);
      length = name.length;
    }
  }
  return parts;
}

/** Approves definitions by the hashes that the page showed. The broker refuses those that have changed since. */
async function approveShown(params: Record<string, string>, pins: readonly Pin[]): Promise<void> {
  let approved = 0;
  for (const items of partsOf(pins)) {
    try {
      await call(APPROVE, { params, body: { items } });
    } catch (error) {
      const problem = asProblem(error);
      const before = approved ? `${number(approved)} definitions are approved, and the others are not.` : 'Nothing is approved.';
      throw new Problem(problem.status, problem.kind, `${before} ${problem.message}`, problem.faults);
    }
    approved += items.length;
  }
}

export function Pins({ owner, backend }: { owner: string; backend: string }) {
  const params = { tenant: owner, backend };
  const [shown, setShown] = useState<Pin>();
  /** The definitions that the operator is asked about. What changes meanwhile is not among them. */
  const [asked, setAsked] = useState<Pin[]>();
  const live = useLive<Schemas['PinList']>(() => call('GET /admin/v1/tenants/{tenant}/backends/{backend}/pins', { params }), [owner, backend], 6_000);
  const pins = live.value?.pins ?? [];
  const open = pins.filter(pin => pin.state === 'pending' || pin.state === 'changed');
  const mayApprove = may(APPROVE);
  return (
    <Card
      title="Pins"
      wide
      actions={
        <>
          {live.value && <Tag>{`mode: ${live.value.mode.replace('_', ' ')}`}</Tag>}
          {open.length > 0 && <Tag tone="warn">{`${open.length} not accepted`}</Tag>}
          {mayApprove && open.length > 0 && <Button run={() => setAsked(open)}>Approve all</Button>}
        </>
      }
    >
      {!live.value && !live.problem && <Loading />}
      <Failed problem={live.problem} />
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
      {asked && (
        <Confirm
          title={`Approve ${asked.length === 1 ? 'this definition' : `these ${number(asked.length)} definitions`} of ${backend}?`}
          act="Approve all"
          wide
          close={() => setAsked(undefined)}
          run={async () => {
            try {
              await approveShown(params, asked);
            } finally {
              await live.again();
            }
            tell(asked.length === 1 ? '1 definition is trusted.' : `${number(asked.length)} definitions are trusted.`);
          }}
        >
          <p>A definition that changes before the approval is not approved. Blocked ones stay blocked.</p>
          <Table
            label="Definitions to approve"
            rows={asked}
            id={pin => `${pin.kind} ${pin.name}`}
            columns={[
              { title: 'Kind', width: '110px', wide: true, by: pin => pin.kind, cell: pin => pin.kind },
              { title: 'Name', by: pin => pin.name, cell: pin => <Text>{pin.name}</Text> },
              { title: 'State', width: '110px', by: pin => pin.state, cell: pin => <State>{pin.state}</State> },
              { title: 'Findings', width: '100px', end: true, wide: true, by: pin => pin.findings.length, cell: pin => number(pin.findings.length) },
              { title: 'Hash', width: '130px', wide: true, cell: pin => <code>{pin.hash.slice(0, 12)}…</code> },
            ]}
          />
        </Confirm>
      )}
    </Card>
  );
}

function Difference({ owner, backend, pin, close, decided }: { owner: string; backend: string; pin: Pin; close: () => void; decided: () => void }) {
  const params = { tenant: owner, backend, kind: pin.kind, name: pin.name };
  const live = useLive<Schemas['PinDiffView']>(() => call('GET /admin/v1/tenants/{tenant}/backends/{backend}/pins/{kind}/{name}/diff', { params }), [pin.hash]);
  const [problem, setProblem] = useState<Problem>();
  const view = live.value;
  const decide = async (decision: Promise<unknown>, done: string) => {
    setProblem(undefined);
    try {
      await decision;
    } catch (error) {
      setProblem(asProblem(error));
      // The dialog shows what there is to decide about now.
      await live.again();
      return;
    }
    tell(`${pin.name} is ${done}.`);
    decided();
  };
  // The hash that this dialog shows: a definition that moved meanwhile is refused.
  const approve = () => decide(call(APPROVE, { params, body: { items: [{ kind: pin.kind, name: pin.name, hash: view?.hash ?? pin.hash }] } }), 'trusted');
  const block = () => decide(call('POST /admin/v1/tenants/{tenant}/backends/{backend}/pins/block', { params, body: { items: [{ kind: pin.kind, name: pin.name }] } }), 'blocked');
  return (
    <Dialog title={`${pin.kind} ${pin.name}`} close={close} wide>
      <Facts>
        {[
          ['State', <State>{view?.state ?? pin.state}</State>],
          ['Hash', <code>{(view?.hash ?? pin.hash).slice(0, 19)}…</code>],
          ['First seen', <Time at={pin.first_seen_at} />],
          ['Last change', <Time at={pin.seen_at} />],
          pin.decided_by != null && ['Decided by', <Text>{pin.decided_by}</Text>],
        ]}
      </Facts>
      <Failed problem={live.problem} />
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
      <Refused problem={problem} />
      {may(APPROVE) && view && (
        <div class="actions">
          <Button kind="danger" run={block} disabled={view.state === 'blocked'}>
            Block
          </Button>
          <Button kind="primary" run={approve} disabled={view.state === 'trusted'}>
            Approve
          </Button>
        </div>
      )}
    </Dialog>
  );
}
