// A real TypeScript SDK client against server-everything, behind the broker's aggregated endpoint or directly.
//
//   node typescript.mjs URL [BACKEND]
//
// BACKEND is the server's name in the broker: tools and prompts are then `BACKEND__name`, resources
// `BACKEND+uri`. Without it the names are the server's own, which tests the checks themselves. With `{}` in it, it is the
// pattern of the names that another proxy gives to tools and prompts.
import assert from 'node:assert/strict';
import { gunzipSync } from 'node:zlib';
import { Checks, Inbox, failureOf, oneLine, requirePeer } from './checks.mjs';

const { Client } = requirePeer('@modelcontextprotocol/sdk/client/index.js');
const { StreamableHTTPClientTransport } = requirePeer('@modelcontextprotocol/sdk/client/streamableHttp.js');
const { InMemoryTaskStore } = requirePeer('@modelcontextprotocol/sdk/experimental/tasks');
const mcp = requirePeer('@modelcontextprotocol/sdk/types.js');

const [url, backend = ''] = process.argv.slice(2);
if (!url) {
  console.error('usage: node typescript.mjs URL [BACKEND]');
  process.exit(64);
}
const isPattern = backend.includes('{}');
const brokered = backend !== '' && !isPattern;
const named = (name) => (brokered ? `${backend}__${name}` : isPattern ? backend.replace('{}', name) : name);
const located = (uri) => (brokered ? `${backend}+${uri}` : uri);

/** `server-everything` answers 400 where the specification asks for 404. */
const unknownSession = brokered ? [404] : [400, 404];

const everyCapability = {
  roots: { listChanged: true },
  sampling: {},
  elicitation: { form: {}, url: {} },
  tasks: { list: {}, cancel: {}, requests: { sampling: { createMessage: {} }, elicitation: { create: {} } } },
};

/** A connected client with the messages it received. Each check can replace the answers to server requests. */
class Peer {
  logs = new Inbox();
  updates = new Inbox();
  rootsAsked = new Inbox();
  toolChanges = new Inbox();
  errors = [];
  roots = [{ uri: 'file:///srv/project', name: 'project' }];
  sample = (request) => ({ text: `sampled: ${request.params.messages.at(-1).content.text}` });
  elicit = () => ({ action: 'accept', content: { name: 'Ada', check: true } });

  static async connect({ capabilities = everyCapability, fetch } = {}) {
    const peer = new Peer();
    const taskStore = new InMemoryTaskStore();
    peer.transport = new StreamableHTTPClientTransport(new URL(url), { fetch });
    peer.client = new Client({ name: 'typescript-peer', version: '1.0.0' }, { capabilities, taskStore });
    peer.client.onerror = (error) => peer.errors.push(oneLine(error));
    peer.answerServerRequests(capabilities);
    peer.client.setNotificationHandler(mcp.LoggingMessageNotificationSchema, ({ params }) => peer.logs.push(params));
    peer.client.setNotificationHandler(mcp.ResourceUpdatedNotificationSchema, ({ params }) => peer.updates.push(params.uri));
    peer.client.setNotificationHandler(mcp.ToolListChangedNotificationSchema, () => peer.toolChanges.push(Date.now()));
    await peer.client.connect(peer.transport);
    return peer;
  }

  answerServerRequests(capabilities) {
    if (capabilities.roots) {
      this.client.setRequestHandler(mcp.ListRootsRequestSchema, () => {
        this.rootsAsked.push(this.roots.length);
        return { roots: this.roots };
      });
    }
    if (capabilities.sampling) {
      this.client.setRequestHandler(mcp.CreateMessageRequestSchema, (request, extra) => {
        const { text } = this.sample(request);
        return asTaskWhenAsked(request, extra, { role: 'assistant', model: 'peer', stopReason: 'endTurn', content: { type: 'text', text } });
      });
    }
    if (capabilities.elicitation) {
      this.client.setRequestHandler(mcp.ElicitRequestSchema, (request, extra) => asTaskWhenAsked(request, extra, this.elicit(request)));
    }
  }

  call(tool, args = {}, options = {}) {
    return this.client.callTool({ name: named(tool), arguments: args }, undefined, options);
  }

  async text(tool, args, options) {
    const result = await this.call(tool, args, options);
    assert.notEqual(result.isError, true, JSON.stringify(result.content));
    return result.content.map((item) => item.text ?? '').join('\n');
  }
}

async function asTaskWhenAsked(request, extra, result) {
  if (!request.params.task || !extra.taskStore) return result;
  const task = await extra.taskStore.createTask({ ttl: extra.taskRequestedTtl });
  await extra.taskStore.storeTaskResult(task.taskId, 'completed', result);
  return { task };
}

const toolNames = [
  'echo', 'get-annotated-message', 'get-env', 'get-resource-links', 'get-resource-reference', 'get-structured-content', 'get-sum',
  'get-tiny-image', 'gzip-file-as-resource', 'toggle-simulated-logging', 'toggle-subscriber-updates', 'trigger-long-running-operation',
  'get-roots-list', 'trigger-elicitation-request', 'trigger-url-elicitation', 'trigger-sampling-request', 'simulate-research-query',
  'trigger-sampling-request-async', 'trigger-elicitation-request-async',
];

async function checkCatalog(checks, peer) {
  const { client } = peer;
  await checks.run('initialize', async () => {
    assert.equal(peer.transport.protocolVersion, '2025-11-25');
    assert.match(peer.transport.sessionId ?? '', /^[\x21-\x7e]{16,}$/);
    assert.ok(client.getServerVersion().name);
    const capabilities = client.getServerCapabilities();
    for (const kind of ['tools', 'prompts', 'resources', 'logging', 'completions', 'tasks']) assert.ok(capabilities[kind], `no ${kind} capability`);
    assert.equal(capabilities.resources.subscribe, true);
  });
  await checks.run('ping', async () => assert.deepEqual(await client.ping(), {}));
  await checks.run('tools-list', async () => {
    const { tools } = await client.listTools();
    const names = tools.map((tool) => tool.name);
    assert.equal(new Set(names).size, names.length, 'a name is listed twice');
    for (const name of toolNames) assert.ok(names.includes(named(name)), `${named(name)} is missing from ${names}`);
    const find = (name) => tools.find((tool) => tool.name === named(name));
    assert.equal(find('echo').annotations.readOnlyHint, true);
    assert.equal(find('echo').inputSchema.properties.message.type, 'string');
    assert.equal(find('get-structured-content').outputSchema.properties.humidity.type, 'number');
    assert.equal(find('simulate-research-query').execution.taskSupport, 'required');
  });
  await checks.run('tools-list-stable', async () => {
    const [first, second] = [await client.listTools(), await client.listTools()];
    assert.equal(JSON.stringify(first), JSON.stringify(second));
  });
}

async function checkToolResults(checks, peer) {
  await checks.run('tool-text', async () => {
    const message = 'quotes " back\\slash \u0001 ümläut 漢字 😀 \u2028 </script>';
    assert.equal(await peer.text('echo', { message }), `Echo: ${message}`);
    assert.match(await peer.text('get-sum', { a: 0.1, b: -7e3 }), /-6999\.9/);
  });
  await checks.run('tool-large-text', async () => {
    const message = 'ä'.repeat(400_000);
    assert.equal(await peer.text('echo', { message }), `Echo: ${message}`);
  });
  await checks.run('tool-image', async () => {
    const { content } = await peer.call('get-tiny-image');
    const image = content.find((item) => item.type === 'image');
    assert.equal(image.mimeType, 'image/png');
    assert.equal(Buffer.from(image.data, 'base64').subarray(1, 4).toString(), 'PNG');
  });
  await checks.run('tool-annotations', async () => {
    const { content } = await peer.call('get-annotated-message', { messageType: 'error', includeImage: true });
    assert.deepEqual(content[0].annotations, { priority: 1, audience: ['user', 'assistant'] });
    assert.equal(content[1].annotations.priority, 0.5);
  });
  await checks.run('tool-resource-links', async () => {
    const { content } = await peer.call('get-resource-links', { count: 4 });
    const links = content.filter((item) => item.type === 'resource_link');
    assert.equal(links.length, 4);
    for (const link of links) {
      assert.ok(link.uri.startsWith(located('demo://resource/dynamic/')), `link ${link.uri} does not lead back through the endpoint`);
      const { contents } = await peer.client.readResource({ uri: link.uri });
      assert.equal(contents[0].uri, link.uri);
    }
  });
  await checks.run('tool-embedded-resource', async () => {
    const text = await peer.call('get-resource-reference', { resourceType: 'Text', resourceId: 3 });
    assert.equal(text.content[1].resource.uri, located('demo://resource/dynamic/text/3'));
    assert.match(text.content[1].resource.text, /Resource 3/);
    const blob = await peer.call('get-resource-reference', { resourceType: 'Blob', resourceId: 4 });
    assert.match(Buffer.from(blob.content[1].resource.blob, 'base64').toString(), /Resource 4/);
  });
  await checks.run('tool-structured-content', async () => {
    const result = await peer.call('get-structured-content', { location: 'Chicago' });
    assert.deepEqual(result.structuredContent, { temperature: 36, conditions: 'Light rain / drizzle', humidity: 82 });
    assert.deepEqual(JSON.parse(result.content[0].text), result.structuredContent);
  });
  await checks.run('tool-makes-resource', async () => {
    const data = `data:text/plain;base64,${Buffer.from('to be compressed').toString('base64')}`;
    const { content } = await peer.call('gzip-file-as-resource', { name: 'note.gz', data, outputType: 'resourceLink' });
    const { contents } = await peer.client.readResource({ uri: content[0].uri });
    assert.equal(gunzipSync(Buffer.from(contents[0].blob, 'base64')).toString(), 'to be compressed');
  });
  await checks.run('tool-error-result', async () => {
    const result = await peer.call('get-resource-reference', { resourceType: 'Text', resourceId: -1 });
    assert.equal(result.isError, true);
    assert.match(result.content[0].text, /Invalid resourceId/);
  });
  await checks.run('tool-unknown', async () => {
    const outcome = await peer.call('no-such-tool').catch((error) => ({ isError: true, code: error.code }));
    assert.equal(outcome.isError, true);
    if (brokered) assert.equal(outcome.code, -32602);
  });
  await checks.run('concurrent-calls', async () => {
    const messages = Array.from({ length: 100 }, (_, index) => `call ${index} ${'x'.repeat(index * 37)} ${Math.random()}`);
    const answers = await Promise.all(messages.map((message) => peer.text('echo', { message })));
    assert.deepEqual(answers, messages.map((message) => `Echo: ${message}`));
  });
}

async function checkNotifications(checks, peer) {
  const { client } = peer;
  await checks.run('progress', async () => {
    const seen = [];
    const onprogress = (progress) => seen.push(progress);
    const text = await peer.text('trigger-long-running-operation', { duration: 0.4, steps: 4 }, { onprogress });
    assert.match(text, /completed/);
    assert.deepEqual(seen.map(({ progress, total }) => [progress, total]), [[1, 4], [2, 4], [3, 4], [4, 4]]);
  });
  await checks.run('progress-of-parallel-calls', async () => {
    await Promise.all([2, 3, 4, 5].map(async (steps) => {
      const seen = [];
      const onprogress = ({ progress, total }) => seen.push([progress, total]);
      await peer.text('trigger-long-running-operation', { duration: 0.3, steps }, { onprogress });
      assert.deepEqual(seen, Array.from({ length: steps }, (_, index) => [index + 1, steps]));
    }));
  });
  await checks.run('logging-level', async () => {
    // The server logs at level info, naming the uri, before it answers subscribe and unsubscribe.
    const uri = (id) => located(`demo://resource/dynamic/text/${id}`);
    const about = (id) => ({ data }) => String(data).includes(`dynamic/text/${id} `) || String(data).endsWith(`dynamic/text/${id}`);
    await client.setLoggingLevel('error');
    await client.subscribeResource({ uri: uri(901) });
    await client.setLoggingLevel('debug');
    await client.subscribeResource({ uri: uri(902) });
    const entry = await peer.logs.arrival('a log entry about 902', about(902));
    assert.equal(entry.level, 'info');
    assert.equal(peer.logs.items.find(about(901)), undefined, 'an info entry came although the level was error');
    for (const id of [901, 902]) await client.unsubscribeResource({ uri: uri(id) });
  });
  await checks.run('logging-messages', async () => {
    // One of the eight levels has another spelling: "Alert level-message".
    const random = ({ data }) => /-level message|level-message/.test(String(data));
    assert.match(await peer.text('toggle-simulated-logging'), /Started/);
    const entry = await peer.logs.arrival('a simulated log entry', random);
    assert.ok(['debug', 'info', 'notice', 'warning', 'error', 'critical', 'alert', 'emergency'].includes(entry.level));
    assert.match(await peer.text('toggle-simulated-logging'), /Stopped/);
  });
  await checks.run('logging-level-invalid', async () => {
    const error = await failureOf(client.request({ method: 'logging/setLevel', params: { level: 'loud' } }, mcp.EmptyResultSchema));
    assert.ok([-32602, -32603].includes(error.code), `code ${error.code}`);
  });
}

async function checkServerRequests(checks, peer) {
  await checks.run('sampling', async () => {
    peer.sample = (request) => {
      assert.equal(request.params.maxTokens, 77);
      assert.equal(request.params.systemPrompt, 'You are a helpful test server.');
      return { text: `heard ${request.params.messages[0].content.text}` };
    };
    assert.match(await peer.text('trigger-sampling-request', { prompt: 'what is "up"?', maxTokens: 77 }), /heard .*what is \\"up\\"\?/);
  });
  await checks.run('sampling-client-error', async () => {
    peer.sample = () => {
      throw new Error('the model is out');
    };
    const outcome = await peer.call('trigger-sampling-request', { prompt: 'x' }).catch((error) => ({ isError: true, content: [{ text: error.message }] }));
    assert.equal(outcome.isError, true);
    assert.match(outcome.content[0].text, /the model is out/);
    peer.sample = () => ({ text: 'fine' });
  });
  await checks.run('elicitation-form', async () => {
    let schema;
    peer.elicit = ({ params }) => {
      schema = params.requestedSchema;
      return { action: 'accept', content: { name: 'Grace', check: false, integer: 7 } };
    };
    assert.match(await peer.text('trigger-elicitation-request'), /Name: Grace[^]*Agreed to terms: false[^]*Favorite Integer: 7/);
    assert.equal(schema.properties.number.default, 3.14);
    assert.deepEqual(schema.properties.titledMultipleSelectEnum.items.anyOf[0], { const: 'fish-1', title: 'Tuna' });
    assert.deepEqual(schema.required, ['name']);
  });
  await checks.run('elicitation-decline-and-cancel', async () => {
    peer.elicit = () => ({ action: 'decline' });
    assert.match(await peer.text('trigger-elicitation-request'), /declined/);
    peer.elicit = () => ({ action: 'cancel' });
    assert.match(await peer.text('trigger-elicitation-request'), /cancelled/);
  });
  await checks.run('elicitation-url', async () => {
    let asked;
    peer.elicit = ({ params }) => {
      asked = params;
      return { action: 'accept' };
    };
    const target = 'https://example.com/authorise?a=1&b=%20';
    assert.match(await peer.text('trigger-url-elicitation', { url: target, elicitationId: 'elicit-1' }), /User completed/);
    assert.equal(asked.mode, 'url');
    assert.equal(asked.url, target);
    assert.equal(asked.elicitationId, 'elicit-1');
  });
  await checks.run('elicitation-url-required-error', async () => {
    const error = await failureOf(peer.call('trigger-url-elicitation', { url: 'https://example.com/first', errorPath: true }));
    assert.equal(error.code, -32042);
    assert.equal(error.data.elicitations[0].mode, 'url');
    assert.ok(error.data.elicitations[0].elicitationId);
  });
  await checks.run('roots', async () => {
    assert.match(await peer.text('get-roots-list'), /project\s+URI: file:\/\/\/srv\/project/);
    assert.ok(peer.rootsAsked.items.includes(1));
  });
  await checks.run('roots-changed', async () => {
    peer.roots = [...peer.roots, { uri: 'file:///srv/second', name: 'second' }];
    await peer.client.sendRootsListChanged();
    await peer.rootsAsked.arrival('roots/list after the change', (count) => count === 2);
    await peer.logs.arrival('the confirmation of the change', ({ data }) => /Roots updated: 2/.test(String(data)));
    assert.match(await peer.text('get-roots-list'), /file:\/\/\/srv\/second/);
  });
}

async function checkResources(checks, peer) {
  const { client } = peer;
  await checks.run('resources-list', async () => {
    const { resources } = await client.listResources();
    const uris = resources.map((resource) => resource.uri);
    assert.ok(uris.includes(located('demo://resource/static/document/architecture.md')), `${uris}`);
    for (const { uri } of resources.filter(({ uri }) => uri.includes('/static/'))) {
      const { contents } = await client.readResource({ uri });
      assert.equal(contents[0].uri, uri);
      assert.ok(contents[0].text.length > 0);
    }
  });
  await checks.run('resource-templates', async () => {
    const { resourceTemplates } = await client.listResourceTemplates();
    const templates = resourceTemplates.map((template) => template.uriTemplate);
    assert.ok(templates.includes(located('demo://resource/dynamic/text/{resourceId}')), `${templates}`);
    assert.ok(templates.includes(located('demo://resource/dynamic/blob/{resourceId}')), `${templates}`);
  });
  await checks.run('resource-read', async () => {
    const text = await client.readResource({ uri: located('demo://resource/dynamic/text/42') });
    assert.match(text.contents[0].text, /Resource 42: This is a plaintext/);
    const blob = await client.readResource({ uri: located('demo://resource/dynamic/blob/43') });
    assert.match(Buffer.from(blob.contents[0].blob, 'base64').toString(), /Resource 43/);
  });
  await checks.run('resource-unknown', async () => {
    const error = await failureOf(client.readResource({ uri: located('demo://resource/nowhere') }));
    assert.ok([-32002, -32602].includes(error.code), `code ${error.code}`);
  });
  await checks.run('resource-subscription', async () => {
    const uri = located('demo://resource/dynamic/text/7');
    await client.subscribeResource({ uri });
    assert.match(await peer.text('toggle-subscriber-updates'), /Started/);
    assert.equal(await peer.updates.arrival('an update', () => true), uri);
    assert.match(await peer.text('toggle-subscriber-updates'), /Stopped/);
    await client.unsubscribeResource({ uri });
    assert.ok(peer.updates.items.every((seen) => seen === uri), `${peer.updates.items}`);
  });
}

async function checkPrompts(checks, { client }) {
  await checks.run('prompts-list', async () => {
    const { prompts } = await client.listPrompts();
    const names = prompts.map((prompt) => prompt.name);
    for (const name of ['simple-prompt', 'args-prompt', 'completable-prompt', 'resource-prompt']) assert.ok(names.includes(named(name)), `${names}`);
    const withArguments = prompts.find((prompt) => prompt.name === named('args-prompt'));
    assert.deepEqual(withArguments.arguments.map(({ name, required }) => [name, required]), [['city', true], ['state', false]]);
  });
  await checks.run('prompts-get', async () => {
    const simple = await client.getPrompt({ name: named('simple-prompt') });
    assert.match(simple.messages[0].content.text, /simple prompt/);
    const filled = await client.getPrompt({ name: named('args-prompt'), arguments: { city: 'Köln', state: 'NRW' } });
    assert.equal(filled.messages[0].content.text, "What's weather in Köln, NRW?");
    const embedded = await client.getPrompt({ name: named('resource-prompt'), arguments: { resourceType: 'Text', resourceId: '5' } });
    assert.equal(embedded.messages[1].content.resource.uri, located('demo://resource/dynamic/text/5'));
  });
  await checks.run('prompts-errors', async () => {
    assert.equal((await failureOf(client.getPrompt({ name: named('args-prompt') }))).code, -32602);
    assert.equal((await failureOf(client.getPrompt({ name: named('no-such-prompt') }))).code, -32602);
  });
  await checks.run('completion', async () => {
    const complete = async (ref, argument, context) => (await client.complete({ ref, argument, context })).completion.values;
    const prompt = { type: 'ref/prompt', name: named('completable-prompt') };
    assert.deepEqual(await complete(prompt, { name: 'department', value: 'S' }), ['Sales', 'Support']);
    const context = { arguments: { department: 'Sales' } };
    assert.deepEqual(await complete(prompt, { name: 'name', value: '' }, context), ['David', 'Eve', 'Frank']);
    const template = { type: 'ref/resource', uri: located('demo://resource/dynamic/text/{resourceId}') };
    assert.deepEqual(await complete(template, { name: 'resourceId', value: '12' }), ['12']);
  });
}

/** Runs a task-only tool to its end; returns the reports of the SDK's stream. */
async function followTask(peer, tool, args) {
  const seen = { statuses: [] };
  const stream = peer.client.experimental.tasks.callToolStream({ name: named(tool), arguments: args }, mcp.CallToolResultSchema, { task: { ttl: 60_000 } });
  for await (const message of stream) {
    if (message.type === 'taskCreated') seen.taskId = message.task.taskId;
    else if (message.type === 'taskStatus') seen.statuses.push(message.task.status);
    else if (message.type === 'result') seen.result = message.result;
    else if (message.type === 'error') throw message.error;
  }
  return seen;
}

async function checkTasks(checks) {
  const peer = await Peer.connect();
  const { tasks } = peer.client.experimental;
  await peer.client.listTools();
  await Promise.all([
    checks.run('task-result', async () => {
      const task = await followTask(peer, 'simulate-research-query', { topic: 'brokers', ambiguous: false });
      assert.ok(task.taskId);
      assert.ok(task.statuses.includes('working'), `${task.statuses}`);
      assert.match(task.result.content[0].text, /Research Report: brokers/);
      assert.equal((await tasks.getTask(task.taskId)).status, 'completed');
      const { tasks: listed } = await tasks.listTasks();
      assert.ok(listed.some(({ taskId }) => taskId === task.taskId), 'the task is not in tasks/list');
    }),
    checks.run('task-elicitation', async () => {
      peer.elicit = ({ params }) => {
        assert.equal(params.requestedSchema.properties.interpretation.oneOf[1].const, 'snake');
        return { action: 'accept', content: { interpretation: 'snake' } };
      };
      const task = await followTask(peer, 'simulate-research-query', { topic: 'python', ambiguous: true });
      assert.match(task.result.content[0].text, /Research Report: python \(snake\)/);
    }),
    checks.run('task-cancel', async () => {
      const params = { name: named('simulate-research-query'), arguments: { topic: 'never' }, task: { ttl: 60_000 } };
      const created = await peer.client.request({ method: 'tools/call', params }, mcp.CreateTaskResultSchema);
      assert.equal((await tasks.cancelTask(created.task.taskId)).status, 'cancelled');
      assert.equal((await tasks.getTask(created.task.taskId)).status, 'cancelled');
      assert.ok((await failureOf(tasks.cancelTask(created.task.taskId))).code === -32602);
    }),
    checks.run('task-unknown', async () => {
      assert.equal((await failureOf(tasks.getTask('no-such-task'))).code, -32602);
    }),
    checks.run('task-required', async () => {
      const params = { name: named('simulate-research-query'), arguments: { topic: 'x' } };
      // server-everything reports its own -32601 as a tool error, so both forms are right.
      const outcome = await peer.client.request({ method: 'tools/call', params }, mcp.CallToolResultSchema).catch((error) => error);
      assert.ok(outcome.isError === true || outcome.code === -32601, JSON.stringify(outcome));
    }),
    checks.run('task-of-the-client', async () => {
      // The server requests sampling as a task of the client, polls it with tasks/get and fetches it with tasks/result.
      const other = await Peer.connect();
      other.sample = () => ({ text: 'sampled as a task' });
      other.elicit = () => ({ action: 'accept', content: { name: 'Edsger', favoriteColor: 'Green' } });
      assert.match(await other.text('trigger-sampling-request-async', { prompt: 'later' }), /sampled as a task/);
      assert.match(await other.text('trigger-elicitation-request-async'), /Name: Edsger/);
      await other.client.close();
    }),
  ]);
  await peer.client.close();
}

async function checkIsolation(checks) {
  await checks.run('requests-reach-the-caller', async () => {
    const peers = await Promise.all(Array.from({ length: 4 }, () => Peer.connect()));
    await Promise.all(peers.map(async (peer, index) => {
      peer.sample = (request) => ({ text: `client ${index} heard ${request.params.messages[0].content.text}` });
      for (let round = 0; round < 5; round += 1) {
        const text = await peer.text('trigger-sampling-request', { prompt: `question ${index}.${round}` });
        assert.match(text, new RegExp(`client ${index} heard .*question ${index}\\.${round}`));
      }
      await peer.client.close();
    }));
  });
  await checks.run('client-without-capabilities', async () => {
    const peer = await Peer.connect({ capabilities: {} });
    assert.equal(await peer.text('echo', { message: 'plain' }), 'Echo: plain');
    for (const tool of ['trigger-sampling-request', 'trigger-elicitation-request', 'get-roots-list']) {
      const outcome = await peer.call(tool, { prompt: 'x' }).catch((error) => ({ isError: true, code: error.code }));
      assert.equal(outcome.isError, true, `${tool} worked for a client that declared nothing`);
    }
    await peer.client.close();
  });
}

async function checkCancellation(checks, peer) {
  await checks.run('cancellation', async () => {
    const abort = new AbortController();
    const before = peer.errors.length;
    const seen = [];
    const onprogress = ({ progress }) => {
      seen.push(progress);
      if (progress === 1) abort.abort('enough');
    };
    const call = peer.call('trigger-long-running-operation', { duration: 2, steps: 4 }, { onprogress, signal: abort.signal });
    assert.match((await failureOf(call)).message, /enough/);
    // The SDK does not wait until its cancellation has arrived. Steps relayed until then are correct, so
    // the steps are half a second apart.
    // Long enough for more progress of the cancelled call to arrive, if it were relayed.
    assert.match(await peer.text('trigger-long-running-operation', { duration: 1.2, steps: 1 }), /completed/);
    assert.equal(await peer.text('echo', { message: 'still here' }), 'Echo: still here');
    assert.deepEqual(seen, [1]);
    const stray = peer.errors.splice(before);
    if (brokered) assert.deepEqual(stray, [], 'something about the cancelled call was relayed');
  });
  await checks.run('timeout-of-the-client', async () => {
    const error = await failureOf(peer.call('trigger-long-running-operation', { duration: 1, steps: 1 }, { timeout: 100 }));
    assert.equal(error.code, mcp.ErrorCode.RequestTimeout);
    assert.equal(await peer.text('echo', { message: 'after' }), 'Echo: after');
  });
}

/** A fetch that cuts the connection of the first answer stream which carries a progress notification, right after it. */
function cuttingFetch(record) {
  return async (target, init = {}) => {
    const headers = new Headers(init.headers);
    if (headers.has('last-event-id')) record.resumed.push(headers.get('last-event-id'));
    const cut = new AbortController();
    const response = await fetch(target, { ...init, signal: init.signal ? AbortSignal.any([init.signal, cut.signal]) : cut.signal });
    const streams = response.headers.get('content-type')?.startsWith('text/event-stream');
    if (init.method !== 'POST' || !streams || record.cut) return response;
    const watched = response.body.pipeThrough(new TransformStream({
      transform(chunk, controller) {
        controller.enqueue(chunk);
        if (record.cut || !Buffer.from(chunk).includes('notifications/progress')) return;
        record.cut = true;
        controller.terminate();
        cut.abort();
      },
    }));
    return new Response(watched, { status: response.status, headers: response.headers });
  };
}

async function checkConnectionLoss(checks) {
  await checks.run('resume-after-cut', async () => {
    const record = { cut: false, resumed: [] };
    const peer = await Peer.connect({ fetch: cuttingFetch(record) });
    const seen = [];
    // server-everything itself replays only earlier events, so without a broker the call must end before the resume.
    const duration = brokered ? 4 : 0.4;
    const options = { onprogress: ({ progress }) => seen.push(progress), resetTimeoutOnProgress: true };
    const text = await peer.text('trigger-long-running-operation', { duration, steps: 8 }, options);
    assert.match(text, /completed/);
    assert.equal(record.cut, true, 'the stream was never cut');
    assert.equal(record.resumed.length, 1, `resumed ${record.resumed.length} times`);
    assert.deepEqual(seen, [1, 2, 3, 4, 5, 6, 7, 8]);
    await peer.client.close();
  });
  await checks.run('delete-ends-the-session', async () => {
    const peer = await Peer.connect();
    assert.equal(await peer.text('echo', { message: 'x' }), 'Echo: x');
    const headers = {
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'mcp-session-id': peer.transport.sessionId,
      'mcp-protocol-version': '2025-11-25',
    };
    await peer.transport.terminateSession();
    const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list' });
    const after = await fetch(url, { method: 'POST', headers, body });
    assert.ok(unknownSession.includes(after.status), `${after.status}`);
    await after.body?.cancel();
    const stream = await fetch(url, { method: 'GET', headers: { ...headers, accept: 'text/event-stream' } });
    assert.ok(unknownSession.includes(stream.status), `${stream.status}`);
    await stream.body?.cancel();
    await peer.client.close();
  });
}

async function checkEverything(checks) {
  const peer = await Peer.connect();
  const longOnes = Promise.all([checkTasks(checks), checkConnectionLoss(checks), checkIsolation(checks)]);
  await checkCatalog(checks, peer);
  await checkToolResults(checks, peer);
  await checkNotifications(checks, peer);
  await checkServerRequests(checks, peer);
  await checkResources(checks, peer);
  await checkPrompts(checks, peer);
  await checkCancellation(checks, peer);
  if (brokered) await checks.run('no-protocol-errors', async () => assert.deepEqual(peer.errors, []));
  await longOnes;
  await peer.transport.terminateSession();
  await peer.client.close();
}

const checks = new Checks();
await checks.run('whole-run', () => checkEverything(checks), 150_000);
process.exit(checks.failed > 0 ? 1 : 0);
