-- Adds entries to event logs, in one step.
-- KEYS: for each entry, the session's streams and the stream's events.
-- ARGV: milliseconds to keep, then for each entry: what, stream, and three arguments.
-- Returns how many keys were not ours and had to go, and the numbers of the entries that were left out because their
-- stream is not known.
-- What the hash of streams holds: {stream} its record; {stream}.f events up to here are gone; {stream}.l the last event.
local foreign, orphans, touched = 0, {}, {}

local function failure(reply)
  return type(reply) == 'table' and reply.err
end

local function call(key, command, ...)
  local reply = redis.pcall(command, key, ...)
  if failure(reply) and string.find(reply.err, 'WRONGTYPE', 1, true) then
    redis.call('UNLINK', key)
    foreign = foreign + 1
    reply = redis.pcall(command, key, ...)
  end
  return reply
end

local operations = {}

-- `last`: the last event that this process has added, if any. An earlier last event is that of a server that lost some.
function operations.stream(_, streams, _, stream, record, last)
  if last ~= '' then
    local known = call(streams, 'HGET', stream .. '.l')
    if failure(known) then
      return known
    end
    if tonumber(last) > tonumber(known or '0') then
      return call(streams, 'HSET', stream, record, stream .. '.l', last, stream .. '.f', last)
    end
  end
  return call(streams, 'HSET', stream, record)
end

function operations.event(entry, streams, events, stream, sequence, expected, value)
  local known = call(streams, 'HMGET', stream, stream .. '.l')
  if failure(known) then
    return known
  end
  if not known[1] then
    orphans[#orphans + 1] = entry
    return
  end
  local there, foreign_before = redis.call('EXISTS', events) == 1, foreign
  local added = call(events, 'XADD', sequence .. '-0', 'e', value)
  there = there and foreign == foreign_before
  if failure(added) then
    -- Told again.
    return not string.find(added.err, 'equal or smaller', 1, true) and added
  end
  -- Whether something before this event was lost, as by FLUSHALL, eviction or a failover.
  local lost
  if expected == '' then
    lost = not there and tonumber(sequence) > 1
  else
    lost = tonumber(expected) > tonumber(known[2] or '0') or (not there and tonumber(expected) > 0)
  end
  if lost then
    return call(streams, 'HSET', stream .. '.l', sequence, stream .. '.f', string.format('%.0f', tonumber(sequence) - 1))
  end
  return call(streams, 'HSET', stream .. '.l', sequence)
end

function operations.trim(entry, streams, events, stream, through, after)
  local known = call(streams, 'HMGET', stream, stream .. '.f')
  if failure(known) then
    return known
  end
  if not known[1] then
    orphans[#orphans + 1] = entry
    return
  end
  local trimmed = call(events, 'XTRIM', 'MINID', after .. '-0')
  if failure(trimmed) then
    return trimmed
  end
  if tonumber(known[2] or '0') < tonumber(through) then
    return call(streams, 'HSET', stream .. '.f', through)
  end
end

function operations.drop(_, streams, events, stream)
  local dropped = redis.pcall('UNLINK', events)
  if failure(dropped) then
    return dropped
  end
  return call(streams, 'HDEL', stream, stream .. '.f', stream .. '.l')
end

for entry = 1, #KEYS / 2 do
  local streams, events, at = KEYS[entry * 2 - 1], KEYS[entry * 2], entry * 5 - 3
  local done = operations[ARGV[at]](entry, streams, events, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
  if failure(done) then
    return redis.error_reply(done.err)
  end
  touched[streams], touched[events] = true, true
end

for key in pairs(touched) do
  redis.call('PEXPIRE', key, ARGV[1])
end

return {foreign, orphans}
