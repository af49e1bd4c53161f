// An MCP client for one call or one look at the lists, over the trial route of the admin API: Streamable HTTP of revision 2025-11-25.
import { Problem, refuse, send } from './api/client';
import { compact, jsonOf, type RawJson } from './json';

export type Message = Record<string, unknown>;

export interface Noted {
  way: 'out' | 'in';
  /** Milliseconds since the trial began. */
  at: number;
  message: Message;
  /** The message as JSON, with its numbers as they were sent. */
  text: string;
}

export interface Subject {
  principal?: string;
  key?: string;
  groups?: string[];
  scopes?: string[];
}

export interface Hooks {
  note: (noted: Noted) => void;
  progress: (params: Message) => void;
  /** Answers a question of the backend. */
  ask: (params: Message) => Promise<Message>;
}

/** What an endpoint lists. */
export interface Lists {
  tools: Message[];
  prompts: Message[];
  resources: Message[];
  resourceTemplates: Message[];
}

/** The capability, the method and the member of each list. */
const LISTS = [
  ['tools', 'tools/list', 'tools'],
  ['prompts', 'prompts/list', 'prompts'],
  ['resources', 'resources/list', 'resources'],
  ['resources', 'resources/templates/list', 'resourceTemplates'],
] as const;

const PATH = '/admin/v1/tenants/{tenant}/try';
const REVISION = '2025-11-25';
const RESUMES_MAX = 5;

function hex(bytes: number): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(bytes)), byte => byte.toString(16).padStart(2, '0')).join('');
}

function base64url(text: string): string {
  const bytes = new TextEncoder().encode(text);
  return btoa(String.fromCharCode(...bytes)).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '');
}

export class Trial {
  readonly trace = hex(16);
  private readonly begun = performance.now();
  private readonly end = new AbortController();
  private session: string | undefined;
  private next = 1;

  constructor(
    private readonly tenant: string,
    private readonly subject: Subject,
    private readonly hooks: Hooks,
    /** Without one, the endpoint of all backends. */
    private readonly toolset?: string,
  ) {}

  /** Opens a session, calls the tool, ends the session. Returns the answer to the call. */
  async run(tool: string, args: RawJson): Promise<Message> {
    return this.inSession(() => this.request('tools/call', { name: tool, arguments: args, _meta: { progressToken: 'trial' } }));
  }

  /** Opens a session, reads its lists to their ends, ends the session. */
  async lists(): Promise<Lists> {
    const lists: Lists = { tools: [], prompts: [], resources: [], resourceTemplates: [] };
    const opened = await this.inSession(async opened => {
      const offered = ((opened['result'] as Message | undefined)?.['capabilities'] ?? {}) as Message;
      for (const [capability, method, member] of LISTS) {
        let cursor: unknown;
        do {
          if (!offered[capability]) break;
          const answer = await this.request(method, cursor === undefined ? {} : { cursor });
          if (answer['error']) return answer;
          const page = answer['result'] as Message;
          lists[member].push(...((page[member] ?? []) as Message[]));
          cursor = page['nextCursor'];
        } while (cursor !== undefined);
      }
      return opened;
    });
    const error = opened['error'] as Message | undefined;
    if (error) throw new Problem(0, 'trial-refused', String(error['message'] ?? 'The lists are refused.'), []);
    return lists;
  }

  /** Opens a session, works in it, ends it. Returns the answer of the work, or the refusal of the session. */
  private async inSession(work: (opened: Message) => Promise<Message>): Promise<Message> {
    try {
      const opened = await this.request('initialize', {
        protocolVersion: REVISION,
        capabilities: { elicitation: { form: {}, url: {} } },
        clientInfo: { name: 'mcp-broker console', version: '1' },
      });
      if (opened['error']) return opened;
      await this.post({ jsonrpc: '2.0', method: 'notifications/initialized' });
      return await work(opened);
    } finally {
      await this.close();
    }
  }

  /** Gives the trial up. The call is cancelled with its session. */
  stop(): void {
    this.end.abort();
  }

  get isStopped(): boolean {
    return this.end.signal.aborted;
  }

  private async close(): Promise<void> {
    const session = this.session;
    this.session = undefined;
    if (session) await send('DELETE', PATH, { ...this.place(), headers: this.headers(session) }).catch(() => undefined);
  }

  private place() {
    return { params: { tenant: this.tenant }, query: { toolset: this.toolset } };
  }

  private headers(session = this.session): Record<string, string> {
    return {
      accept: 'application/json, text/event-stream',
      'mcp-broker-subject': base64url(JSON.stringify(this.subject)),
      traceparent: `00-${this.trace}-${hex(8)}-01`,
      ...(session ? { 'mcp-session-id': session, 'mcp-protocol-version': REVISION } : {}),
    };
  }

  private note(way: 'out' | 'in', message: Message, text: string): void {
    this.hooks.note({ way, at: performance.now() - this.begun, message, text });
  }

  private async request(method: string, params: Message): Promise<Message> {
    const id = this.next++;
    const answer = await this.post({ jsonrpc: '2.0', id, method, params }, id);
    // The broker did not refuse anything: the outcome is not known.
    if (!answer) throw new Problem(0, 'trial-lost', `The connection ended before the answer to ${method} came. The request may have had its effect.`, []);
    return answer;
  }

  /** Sends a message. Returns the answer to the request `id`. */
  private async post(message: Message, id?: number): Promise<Message | undefined> {
    const text = jsonOf(message);
    this.note('out', message, text);
    const response = await send('POST', PATH, { ...this.place(), body: text, headers: this.headers(), signal: this.end.signal });
    this.session = response.headers.get('mcp-session-id') ?? this.session;
    return this.read(response, id);
  }

  private async read(response: Response, id: number | undefined): Promise<Message | undefined> {
    const kind = response.headers.get('content-type') ?? '';
    if (kind.startsWith('text/event-stream') && response.body) return this.follow(response.body, id);
    if (kind.startsWith('application/json')) {
      return this.receive(await response.text());
    }
    return response.ok ? undefined : refuse(response);
  }

  /** Reads an event stream up to the answer. Opens it again where it broke off. */
  private async follow(first: ReadableStream<Uint8Array>, id: number | undefined): Promise<Message | undefined> {
    let stream: ReadableStream<Uint8Array> | null = first;
    let last: string | undefined;
    for (let resumes = 0; stream && resumes <= RESUMES_MAX; resumes++) {
      for await (const event of events(stream, this.end.signal)) {
        last = event.id ?? last;
        if (!event.data) continue;
        const message = this.receive(event.data);
        if (message['id'] === id && !message['method']) return message;
      }
      stream = null;
      if (last) {
        const again = await send('GET', PATH, { ...this.place(), headers: { ...this.headers(), 'last-event-id': last }, signal: this.end.signal });
        if (again.ok) stream = again.body;
      }
    }
    return undefined;
  }

  private receive(text: string): Message {
    const message = JSON.parse(text) as Message;
    this.note('in', message, compact(text));
    const { method, id } = message;
    const params = (message['params'] ?? {}) as Message;
    if (method === 'notifications/progress') this.hooks.progress(params);
    if (typeof method === 'string' && id !== undefined) void this.answer(method, id, params).catch(() => undefined);
    return message;
  }

  private async answer(method: string, id: unknown, params: Message): Promise<void> {
    const refused = { code: -32601, message: `the console does not answer ${method}` };
    const reply: Message =
      method === 'ping' ? { result: {} } : method === 'elicitation/create' ? { result: await this.hooks.ask(params) } : { error: refused };
    await this.post({ jsonrpc: '2.0', id, ...reply });
  }
}

interface ServerEvent {
  id: string | undefined;
  data: string;
}

/** Reads the events of a stream to its end, also if it breaks off. `stop` fails the reading. */
async function* events(stream: ReadableStream<Uint8Array>, stop: AbortSignal): AsyncGenerator<ServerEvent> {
  const reader = stream.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let text = '';
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(error => {
        if (stop.aborted) throw error;
        return { done: true, value: undefined };
      });
      if (done) return;
      text = (text + value).replaceAll('\r\n', '\n');
      let end: number;
      while ((end = text.indexOf('\n\n')) >= 0) {
        const lines = text.slice(0, end).split('\n');
        text = text.slice(end + 2);
        const of = (name: string) => lines.filter(line => line.startsWith(`${name}:`)).map(line => line.slice(name.length + 1).replace(/^ /, ''));
        yield { id: of('id').at(-1), data: of('data').join('\n') };
      }
    }
  } finally {
    reader.releaseLock();
    await stream.cancel().catch(() => undefined);
  }
}
