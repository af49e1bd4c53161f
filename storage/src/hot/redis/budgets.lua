-- Settles asks of budgets, in one step: the same as `settle` in hot/budget.rs, by the clock of this server.
-- KEYS: one for each budget. ARGV: the slack and the most that can be overdrawn, in microseconds, then for each budget:
-- rate per second, burst, used, wanted.
-- Returns for each budget: granted, left, wait in microseconds.
-- What a key holds: the time in microseconds at which everything that was taken has come back.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local slack, overdrawn = tonumber(ARGV[1]), tonumber(ARGV[2])
local answers = {}

for at = 1, #KEYS do
  local key, first = KEYS[at], at * 4 - 1
  local interval = 1000000 / tonumber(ARGV[first])
  local room = interval * (tonumber(ARGV[first + 1]) - 1) + slack
  local held = redis.pcall('GET', key)
  local state = type(held) == 'string' and tonumber(held) or now
  if state ~= state then
    state = now
  end
  local most = now + room + overdrawn
  state = math.min(math.max(state, now), most) + tonumber(ARGV[first + 2]) * interval
  local spent = math.min(state, most) - now
  local free = 0
  if spent <= room then
    free = math.floor((room - spent) / interval) + 1
  end
  local granted = math.min(free, tonumber(ARGV[first + 3]))
  spent = spent + granted * interval
  local wait = 0
  if free <= granted then
    wait = math.max(spent - room, 0)
  end
  redis.call('SET', key, string.format('%.1f', now + spent), 'PX', math.ceil(spent / 1000) + 1)
  answers[at * 3 - 2], answers[at * 3 - 1], answers[at * 3] = granted, free - granted, math.ceil(wait)
end

return answers
