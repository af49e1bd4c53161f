// Preload for node peers (`node --require`, or NODE_OPTIONS). It keeps test servers off every
// interface except loopback. It also prints the bound port, so that a test can use port 0 and never
// races for a free one.
//
// The address is set where node binds, not in listen(). An explicit host makes listen()
// asynchronous, and callers that read server.address() on the next line would get null.
'use strict';
const { Server } = require('node:net');

const bind = Server.prototype._listen2;
if (typeof bind !== 'function') {
  throw new Error('peers/loopback.cjs: this node has no net.Server._listen2; use the pinned node of peers/package.json');
}

function isEveryInterface(address) {
  return address === null || address === undefined || address === '' || address === '::' || address === '0.0.0.0';
}

Server.prototype._listen2 = function bindToLoopback(address, port, addressType, ...rest) {
  const listensOnTcp = typeof port === 'number' && port >= 0;
  if (!listensOnTcp) return bind.call(this, address, port, addressType, ...rest);
  const result = isEveryInterface(address)
    ? bind.call(this, '127.0.0.1', port, 4, ...rest)
    : bind.call(this, address, port, addressType, ...rest);
  const bound = this.address();
  if (process.env.PEER_ANNOUNCE && bound) process.stderr.write(`peer listening on ${bound.address}:${bound.port}\n`);
  return result;
};
