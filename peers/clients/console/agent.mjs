// An agent with an API key: an MCP client over Streamable HTTP of revision 2025-11-25, as small as it can be.
import assert from 'node:assert/strict';

export class Agent {
  #next = 1;
  #headers;

  static async connected(endpoint, key) {
    const agent = new Agent(endpoint, key);
    await agent.request('initialize', { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'agent', version: '1' } });
    await agent.#post({ jsonrpc: '2.0', method: 'notifications/initialized' });
    return agent;
  }

  constructor(endpoint, key) {
    this.endpoint = endpoint;
    this.#headers = { authorization: `Bearer ${key}`, accept: 'application/json, text/event-stream', 'content-type': 'application/json' };
  }

  async #post(message) {
    const response = await fetch(this.endpoint, { method: 'POST', headers: this.#headers, body: JSON.stringify(message) });
    const session = response.headers.get('mcp-session-id');
    if (session) Object.assign(this.#headers, { 'mcp-session-id': session, 'mcp-protocol-version': '2025-11-25' });
    const text = await response.text();
    const messages = text.startsWith('{') ? [text] : text.split('\n').filter(line => line.startsWith('data: {')).map(line => line.slice('data: '.length));
    return messages.map(one => JSON.parse(one)).find(one => one.id === message.id && !one.method);
  }

  /** Returns the answer to a request: a result, or an error. */
  async request(method, params = {}) {
    const answer = await this.#post({ jsonrpc: '2.0', id: this.#next++, method, params });
    assert.ok(answer, `${method} has no answer`);
    return answer;
  }

  /** Returns the names of the tools that the agent sees. */
  async tools() {
    return (await this.request('tools/list')).result.tools.map(tool => tool.name);
  }

  call(name, args) {
    return this.request('tools/call', { name, arguments: args });
  }
}
