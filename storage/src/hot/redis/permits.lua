-- Settles reports of permits, in one step, and renews the lease of the replica that sends them.
-- KEYS: the lease of this replica, then a hash for each limit. ARGV: the name of this replica, the beginning of the keys of
-- leases, the time of a lease and of a hash in milliseconds, then for each limit: the limit, in use, wanted.
-- Returns whether the lease was in force, then for each limit: held by this replica, held by the others.
-- What a hash holds: the permits of each replica. Those of a replica without a lease are free.
local me, prefix = ARGV[1], ARGV[2]
local renewed = redis.call('EXISTS', KEYS[1])
redis.call('SET', KEYS[1], '1', 'PX', ARGV[3])
local alive = {}
local answers = { renewed }

for at = 2, #KEYS do
  local key, first = KEYS[at], at * 3 - 1
  local limit, used, wanted = tonumber(ARGV[first]), tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])
  local entries = redis.pcall('HGETALL', key)
  if entries.err then
    redis.call('DEL', key)
    entries = {}
  end
  local others = 0
  for entry = 1, #entries, 2 do
    local node = entries[entry]
    if node ~= me then
      if alive[node] == nil then
        alive[node] = redis.call('EXISTS', prefix .. node) == 1
      end
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
    redis.call('PEXPIRE', key, ARGV[4])
  else
    held = 0
    redis.call('HDEL', key, me)
  end
  answers[at * 2 - 2], answers[at * 2 - 1] = held, others
end

return answers
