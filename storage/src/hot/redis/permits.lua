-- Settles reports of permits, in one step, and renews the lease of the replica that sends them.
-- KEYS: the hash of leases, then a hash for each limit. ARGV: the name of this replica, the time of a lease and of a hash in
-- milliseconds, then for each limit: the limit, in use, wanted.
-- Returns whether the lease was in force, then for each limit: held by this replica, held by the others.
-- What the hash of leases holds: the end of the lease of each replica, in milliseconds since 1970 by the clock of this server.
-- What a hash of a limit holds: the permits of each replica. Those of a replica without a lease are free.
local me, lease, kept = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function read(key)
  local entries = redis.pcall('HGETALL', key)
  if entries.err then
    redis.call('DEL', key)
    return {}
  end
  return entries
end

local alive = {}
local leases = read(KEYS[1])
for entry = 1, #leases, 2 do
  local node, ends = leases[entry], tonumber(leases[entry + 1])
  if ends and ends > now and ends <= now + kept then
    alive[node] = true
  else
    redis.call('HDEL', KEYS[1], node)
  end
end
local answers = { alive[me] and 1 or 0 }
redis.call('HSET', KEYS[1], me, string.format('%.0f', now + lease))
redis.call('PEXPIRE', KEYS[1], ARGV[3])

for at = 2, #KEYS do
  local key, first = KEYS[at], at * 3 - 2
  local limit, used, wanted = tonumber(ARGV[first]), tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])
  local entries = read(key)
  local others = 0
  for entry = 1, #entries, 2 do
    local node = entries[entry]
    if node ~= me then
      local held = tonumber(entries[entry + 1])
      if alive[node] and held and held >= 0 and held <= 4294967295 then
        others = others + math.floor(held)
      else
        redis.call('HDEL', key, node)
      end
    end
  end
  local held = math.max(used, math.min(wanted, limit - others))
  if held > 0 then
    redis.call('HSET', key, me, string.format('%.0f', held))
    redis.call('PEXPIRE', key, ARGV[3])
  else
    held = 0
    redis.call('HDEL', key, me)
  end
  answers[at * 2 - 2], answers[at * 2 - 1] = held, others
end

return answers
