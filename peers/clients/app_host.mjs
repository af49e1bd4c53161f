// A host of MCP Apps in a page: `show` connects to a server, calls a tool, and shows the app that the tool links in a
// sandboxed frame. The official host library does the rest. `apps.mjs` bundles this file and drives the page.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { AppBridge, PostMessageTransport, getToolUiResourceUri } from '@modelcontextprotocol/ext-apps/app-bridge';

const MIME_TYPE = 'text/html;profile=mcp-app';
const INFO = { name: 'host', version: '1' };

globalThis.show = async (url, name, versionNegotiation) => {
  const extensions = { 'io.modelcontextprotocol/ui': { mimeTypes: [MIME_TYPE] } };
  const client = new Client(INFO, { capabilities: { extensions }, versionNegotiation });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const { tools } = await client.listTools();
  const uri = getToolUiResourceUri(tools.find(tool => tool.name === name));
  const { contents } = await client.readResource({ uri });
  if (contents[0].mimeType !== MIME_TYPE) throw new Error(`a user interface of type ${contents[0].mimeType}`);

  // Scripts run without an origin of their own, as hosts have it.
  const frame = document.createElement('iframe');
  frame.setAttribute('sandbox', 'allow-scripts');
  document.body.replaceChildren(frame);
  const bridge = new AppBridge(client, INFO, { serverTools: {}, serverResources: {}, logging: {} });
  const initialized = new Promise(resolve => {
    bridge.oninitialized = resolve;
  });
  await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
  frame.srcdoc = contents[0].text;
  await initialized;

  await bridge.sendToolInput({ arguments: {} });
  const result = await client.callTool({ name, arguments: {} });
  if (result.isError || result.content.length === 0) throw new Error(`the tool failed: ${JSON.stringify(result)}`);
  await bridge.sendToolResult(result);
  return uri;
};
