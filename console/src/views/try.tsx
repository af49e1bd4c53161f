// Calls a tool as a chosen subject, on the way of every client: what the policy refuses to the subject is refused here.
import { useEffect, useRef, useState } from 'preact/hooks';

import { call, callAll, Problem, type Schemas } from '../api/client';
import { RawJson, indented, jsonOf, valueText, objectOf } from '../json';
import { asProblem, useLive } from '../live';
import { go, href, route } from '../router';
import { chooseTenant, oneTenant, tenants } from '../session';
import { Button, Copy, Empty, Filter, Input, Loading, Note, Refused, State, Tag } from '../ui/controls';
import { Card, Facts, Json, Page, Toolbar } from '../ui/page';
import { SchemaForm, draftsOf, readJson, valueOf, type Drafts, type Schema } from '../ui/schema-form';
import { SubjectFields } from '../ui/subject';
import { Text, milliseconds } from '../ui/text';
import { Trial, type Message, type Noted, type Subject } from '../trial';

type Item = Schemas['CatalogItemView'];

interface Question {
  /** Number of the question in its call. */
  number: number;
  params: Message;
  answer: (result: Message) => void;
}

interface Run {
  trial: Trial;
  /** When it began, by `performance.now`. */
  begun: number;
  messages: Noted[];
  progress?: Message;
  /** Questions without an answer, in the order in which they came. The first one is shown. */
  questions: readonly Question[];
  answer?: Message;
  problem?: Problem;
  took?: number;
}

export function Try() {
  const [owner = oneTenant.value, named = ''] = route.value.rest;
  const tools = useLive<Item[]>(
    () => callAll<Item>('GET /admin/v1/tenants/{tenant}/catalog', 'items', { params: { tenant: owner }, query: { kind: 'tool' } }),
    [owner],
  );
  const all = tools.value ?? [];
  const tool = all.find(one => one.exposed_name === named);
  return (
    <Page title="Try it" lead="Calls a tool as a subject of your choice, on the way of every client. The subject’s policy applies, and the audit log has your name." problem={tools.problem}>
      <Toolbar>
        {tenants.value.length > 1 && (
          <Filter
            label="Tenant"
            value={owner}
            set={name => {
              chooseTenant(name);
              go(href('try', [name]));
            }}
            options={tenants.value.map(name => [name, name] as const)}
          />
        )}
        <Filter
          label="Tool"
          value={named}
          set={name => go(href('try', [owner, name]))}
          options={[['', 'Choose a tool…'], ...all.map(one => [one.exposed_name, one.exposed_name] as const)]}
        />
      </Toolbar>
      {!tools.value && !tools.problem && <Loading />}
      {tools.value && !tool && (
        <div class="card">
          <Empty title={named ? 'No backend offers this tool now.' : all.length ? 'Choose a tool.' : `No backend of ${owner} offers a tool.`} />
        </div>
      )}
      {tool && <Caller key={`${owner} ${tool.exposed_name}`} owner={owner} tool={tool} />}
    </Page>
  );
}

function Caller({ owner, tool }: { owner: string; tool: Item }) {
  const definition = useLive<Schema>(async () => {
    const found = await call<Schemas['CatalogList']>('GET /admin/v1/tenants/{tenant}/catalog', {
      params: { tenant: owner },
      query: { kind: 'tool', backend: tool.backend, name: tool.name, definitions: true },
    });
    const [item] = found.items;
    if (!item) throw new Problem(0, 'page', 'The backend does not list this tool any more.', []);
    return item.definition as Schema;
  }, [tool.hash]);
  const schema = objectOf(definition.value?.['inputSchema']);
  const [drafts, setDrafts] = useState<Drafts>({});
  const [json, setJson] = useState<string>();
  const [faults, setFaults] = useState<Record<string, string>>({});
  const [subject, setSubject] = useState<Subject>({});
  const [run, setRun] = useState<Run>();
  const current = useRef<Run | undefined>(undefined);

  useEffect(() => setDrafts(draftsOf(schema)), [definition.value]);
  useEffect(() => () => current.current?.trial.stop(), []);

  /** Changes the run of a trial, unless another run has begun. */
  const updateOf = (trial: Trial, changes: Partial<Run>) => {
    if (current.current?.trial !== trial) return;
    current.current = { ...current.current, ...changes };
    setRun(current.current);
  };
  /** Ends a run. Its questions need no answer any more. */
  const finish = ({ trial, begun }: Run, changes: Partial<Run> = {}) => updateOf(trial, { ...changes, questions: [], took: performance.now() - begun });
  const isRunning = run !== undefined && run.took === undefined;
  const start = async (event: Event) => {
    event.preventDefault();
    if (isRunning) return;
    let args: RawJson;
    if (json !== undefined) {
      const read = readJson(json || '{}');
      if ('fault' in read) {
        setFaults({ json: read.fault });
        return;
      }
      args = read.value;
    } else {
      const read = valueOf(schema, drafts);
      if (Object.keys(read.faults).length) {
        setFaults(read.faults);
        return;
      }
      args = new RawJson(jsonOf(read.value));
    }
    setFaults({});
    current.current?.trial.stop();
    let asked = 0;
    const update = (changes: Partial<Run>) => updateOf(trial, changes);
    const trial: Trial = new Trial(owner, subject, {
      note: noted => update({ messages: [...(current.current?.messages ?? []), noted] }),
      progress: progress => update({ progress }),
      ask: params =>
        new Promise(resolve => {
          const waiting = () => current.current?.questions ?? [];
          const question: Question = {
            number: asked++,
            params,
            answer: result => {
              update({ questions: waiting().filter(other => other !== question) });
              resolve(result);
            },
          };
          update({ questions: [...waiting(), question] });
        }),
    });
    const own: Run = { trial, begun: performance.now(), messages: [], questions: [] };
    current.current = own;
    setRun(own);
    try {
      const answer = await trial.run(tool.exposed_name, args);
      finish(own, { answer });
    } catch (error) {
      // Stop has finished it.
      if (!trial.isStopped) finish(own, { problem: asProblem(error) });
    }
  };
  const question = run?.questions[0];
  return (
    <div class="panes">
      <Card title={tool.title ?? tool.name}>
        {tool.description && (
          <p class="described">
            <Text multiline>{tool.description}</Text>
          </p>
        )}
        <form onSubmit={start}>
          <SubjectFields owner={owner} set={setSubject} />
          <fieldset>
            <legend>Arguments</legend>
            <div class="actions">
              <Button pressed={json === undefined} run={() => setJson(undefined)}>
                Form
              </Button>
              <Button pressed={json !== undefined} run={() => setJson(json ?? indented(jsonOf(valueOf(schema, drafts).value)))}>
                JSON
              </Button>
            </div>
            {definition.problem ? (
              <Refused problem={definition.problem} />
            ) : !definition.value ? (
              <Loading />
            ) : json === undefined ? (
              <SchemaForm schema={schema} drafts={drafts} set={setDrafts} faults={faults} />
            ) : (
              <Input label="Arguments as JSON" value={json} set={setJson} lines={8} code fault={faults['json']} />
            )}
          </fieldset>
          <div class="actions">
            {isRunning && (
              <Button
                run={() => {
                  run.trial.stop();
                  finish(run);
                }}
              >
                Stop
              </Button>
            )}
            <Button kind="primary" icon="try" submit isSending={isRunning} disabled={!definition.value}>
              {isRunning ? 'Calling…' : 'Call the tool'}
            </Button>
          </div>
        </form>
      </Card>
      <div class="pane list">
        {run ? (
          <>
            {question && <Asked key={`${run.trial.trace} ${question.number}`} question={question} />}
            <Outcome run={run} />
            <Wire messages={run.messages} />
          </>
        ) : (
          <Card>
            <Empty title="The answer will be here." />
          </Card>
        )}
      </div>
    </div>
  );
}

/** A question of the backend in the middle of the call. */
function Asked({ question }: { question: Question }) {
  const { params } = question;
  const schema = objectOf(params['requestedSchema']);
  const [drafts, setDrafts] = useState<Drafts>(draftsOf(schema));
  const [faults, setFaults] = useState<Record<string, string>>({});
  const title = useRef<HTMLHeadingElement>(null);
  useEffect(() => title.current?.focus(), []);
  const url = params['mode'] === 'url' ? String(params['url'] ?? '') : undefined;
  const accept = (event: Event) => {
    event.preventDefault();
    if (url !== undefined) return question.answer({ action: 'accept' });
    const read = valueOf(schema, drafts);
    if (Object.keys(read.faults).length) setFaults(read.faults);
    else question.answer({ action: 'accept', content: read.value });
  };
  return (
    <section class="card question">
      <h2 ref={title} tabIndex={-1}>
        The backend asks
      </h2>
      <p>
        <Text multiline>{String(params['message'] ?? '')}</Text>
      </p>
      <form onSubmit={accept}>
        {url !== undefined ? (
          <>
            <p class="soft">The backend asks you to open this address. Open it only if you trust the backend.</p>
            <pre class="json" tabIndex={0}>
              <Text>{url}</Text>
            </pre>
          </>
        ) : (
          <SchemaForm schema={schema} drafts={drafts} set={setDrafts} faults={faults} />
        )}
        <div class="actions">
          <Button run={() => question.answer({ action: 'cancel' })}>Cancel</Button>
          <Button run={() => question.answer({ action: 'decline' })}>Decline</Button>
          <Button kind="primary" submit>
            Answer
          </Button>
        </div>
      </form>
    </section>
  );
}

function Outcome({ run }: { run: Run }) {
  const { answer, progress } = run;
  const error = answer?.['error'] == null ? undefined : objectOf(answer['error']);
  const kind = objectOf(error?.['data'])['kind'];
  const result = answer && objectOf(answer['result']);
  const content = Array.isArray(result?.['content']) ? result['content'].map(objectOf) : [];
  const structured = valueText(run.messages.findLast(noted => noted.message === answer)?.text ?? '', ['result', 'structuredContent']);
  const total = typeof progress?.['total'] === 'number' ? progress['total'] : undefined;
  return (
    <Card title="Answer">
      <div role="status" class="list">
        {run.took === undefined && (
          <div>
            <progress aria-label="Progress" {...(total ? { max: total, value: Number(progress?.['progress']) } : {})} />
            <p class="faint">
              <Text>{progress ? `${String(progress['progress'])}${total ? ` of ${total}` : ''} ${String(progress['message'] ?? '')}` : 'Waiting for the answer'}</Text>
            </p>
          </div>
        )}
        {run.problem && <Refused problem={run.problem} />}
        {error && (
          <Note tone="bad">
            <Text multiline>{String(error['message'] ?? 'an error')}</Text> {typeof kind === 'string' && <Tag>{kind}</Tag>}
          </Note>
        )}
        {result?.['isError'] && <Note tone="warn">The tool reports an error.</Note>}
        {content.map((part, at) => (
          <Content key={at} part={part} />
        ))}
      </div>
      {structured !== undefined && <Json value={indented(structured)} label="Structured content" />}
      {run.took !== undefined && (
        <Facts>
          {[
            ['Outcome', <State>{run.problem ? 'failed' : error ? 'refused' : result?.['isError'] ? 'tool_error' : answer ? 'ok' : 'cancelled'}</State>],
            ['Took', milliseconds(run.took)],
            ['Messages', String(run.messages.length)],
            ['Trace', <span class="mono">{run.trial.trace}</span>],
          ]}
        </Facts>
      )}
    </Card>
  );
}

/** A part of an answer. Nothing of it is loaded or run. */
function Content({ part }: { part: Message }) {
  if (part['type'] === 'text') {
    return (
      <div class="answer" tabIndex={0} role="region" aria-label="Text">
        <Text multiline>{String(part['text'] ?? '')}</Text>
      </div>
    );
  }
  const size = typeof part['data'] === 'string' ? `${Math.round((part['data'].length * 3) / 4)} bytes` : '';
  return (
    <p>
      <Tag>{String(part['type'])}</Tag> <Text>{`${String(part['mimeType'] ?? part['uri'] ?? part['name'] ?? '')} ${size}`}</Text>
    </p>
  );
}

function labelOf({ message }: Noted): string {
  if (typeof message['method'] === 'string') return message['method'];
  return message['error'] ? `error for ${String(message['id'])}` : `result for ${String(message['id'])}`;
}

function Wire({ messages }: { messages: readonly Noted[] }) {
  if (!messages.length) return null;
  const text = messages.map(({ way, at, text }) => jsonOf({ way, at_ms: Math.round(at), message: new RawJson(text) })).join('\n');
  return (
    <Card title="Messages" actions={<Copy text={text} label="Copy all" />}>
      <ol class="wire">
        {messages.map((noted, at) => (
          <li key={at} class={noted.way}>
            <details>
              <summary>
                <span class="way">{noted.way === 'out' ? 'client →' : '← broker'}</span>
                <span class="mono">
                  <Text>{labelOf(noted)}</Text>
                </span>
                <span class="at">{milliseconds(noted.at)}</span>
              </summary>
              <pre class="json" tabIndex={0} role="region" aria-label={labelOf(noted)}>
                <Text multiline>{indented(noted.text)}</Text>
              </pre>
            </details>
          </li>
        ))}
      </ol>
    </Card>
  );
}
