-- Reads one stream, in one step: a trim in between would look like events that are missing. A transaction would do the same
-- but for a server that is full, which refuses even to queue what only reads.
-- KEYS: the session's streams, the stream's events. ARGV: the stream, where its events are to begin.
-- Returns how many keys are not ours; the record, {stream}.f and {stream}.l (see append.lua); the entries.
local foreign = 0

local function ours(reply)
  if type(reply) == 'table' and reply.err and string.find(reply.err, 'WRONGTYPE', 1, true) then
    foreign = foreign + 1
    return {}
  end
  return reply
end

local stream = ARGV[1]
local known = ours(redis.pcall('HMGET', KEYS[1], stream, stream .. '.f', stream .. '.l'))
local entries = ours(redis.pcall('XRANGE', KEYS[2], ARGV[2], '+'))
return known.err and known or entries.err and entries or {foreign, known[1] or false, known[2] or false, known[3] or false, entries}
