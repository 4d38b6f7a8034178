-- What all scripts begin with. Every key begins with KEYS[1], whose braces keep all of them in one slot of a cluster.
--   {..}:bucket:<key>      a level and when it was so, 16 bytes; expires when the bucket is full
--   {..}:slots:<key>       how many are taken; is deleted with the last
--   {..}:budget:<key>      held and spent, in nano-dollars; expires some time after its window
--   {..}:replicas          processes that count here, by the end of their lease in microseconds
--   {..}:connections       the number of each one's newest connection: what an older one still sends is not carried out
--   {..}:holds:<replica>   what its calls hold, by id
--   {..}:swept:<replica>   what they held when its lease was over, for those that are settled all the same
--   {..}:num_swept         how many calls were swept since one of the processes was told
--   {..}:refilled          the Redis, by the name of its run, whose budgets have what was spent before
local RATE, SLOTS, SPENDING = 0, 1, 2
local MOST = 9007199254740991
local SWEPT_KEPT_S = 86400
-- After its window, for calls that are settled late.
local BUDGET_KEPT_S = 2 * 86400
local MOST_SWEPT_AT_ONCE = 500
local TIME = redis.call('TIME')
local NOW_US = TIME[1] * 1000000 + TIME[2]
-- By how many seconds this clock is ahead of that of who calls, where he knows.
local ahead_s = 0

local function key_of(kind, name)
  return KEYS[1] .. ':' .. kind .. ':' .. name
end

local REPLICAS = KEYS[1] .. ':replicas'
local CONNECTIONS = KEYS[1] .. ':connections'
local NUM_SWEPT = KEYS[1] .. ':num_swept'

local function is_current(replica, connection)
  return redis.call('HGET', CONNECTIONS, replica) == connection
end

-- A rate is {RATE, key, per_minute, capacity, amount}; an amount above the capacity waits for a full bucket, and takes the
-- level below zero by at most a minute's.
local function needed_of(want)
  return math.min(want[5], want[4])
end

local function taken_of(want)
  return math.min(want[5], math.max(want[3], want[4]))
end

local function keep_level(want, level)
  local key = key_of('bucket', want[2])
  if level >= want[4] then
    redis.call('DEL', key)
  else
    local full_in_ms = math.min(1e15, math.ceil((want[4] - level) * 60000 / want[3]) + 1)
    redis.call('SET', key, struct.pack('<dd', level, NOW_US), 'PX', string.format('%.0f', full_in_ms))
  end
end

local function level_of(want)
  local kept = redis.call('GET', key_of('bucket', want[2]))
  if not kept then return want[4] end
  local level, at_us = struct.unpack('<dd', kept)
  if NOW_US < at_us then
    -- The clock was set back: what was to flow in is counted from now on, not from when it gets there again.
    keep_level(want, level)
  else
    level = level + (NOW_US - at_us) * want[3] / 60000000
  end
  return math.min(level, want[4])
end

-- Slots are {SLOTS, key, most}.
local function take_slot(want)
  redis.call('INCR', key_of('slots', want[2]))
end

local function free_slot(want)
  local key = key_of('slots', want[2])
  if redis.call('DECR', key) <= 0 then redis.call('DEL', key) end
end

-- A spending is {SPENDING, key, most, worst, ends_at}, in pico-dollars; what is counted are nano-dollars, rounded up, for
-- numbers are exact up to 2^53 only.
local function nano(pico)
  return math.min(MOST, math.ceil(pico / 1000))
end

local function budget_of(key)
  local kept = redis.call('HMGET', key_of('budget', key), 'held', 'spent')
  return tonumber(kept[1]) or 0, tonumber(kept[2]) or 0, not kept[1]
end

local function keep_budget(key, ends_at, held, spent, is_new)
  held, spent = math.min(MOST, math.max(0, held)), math.min(MOST, math.max(0, spent))
  local name = key_of('budget', key)
  redis.call('HSET', name, 'held', string.format('%.0f', held), 'spent', string.format('%.0f', spent))
  if is_new and ends_at then
    local ttl_s = math.max(0, ends_at + ahead_s - NOW_US / 1000000) + BUDGET_KEPT_S
    redis.call('EXPIRE', name, string.format('%.0f', ttl_s))
  end
end

local function add_to_budget(key, ends_at, held, spent)
  local held_before, spent_before, is_new = budget_of(key)
  keep_budget(key, ends_at, held_before + held, spent_before + spent, is_new)
end

-- What a process held whose lease is over counts as spent. Some of one process at a time; how many. Who asks lives,
-- whatever became of his lease when the clock was set forward.
local function sweep(asker)
  local over = redis.call('ZRANGE', REPLICAS, '-inf', string.format('%.0f', NOW_US), 'BYSCORE', 'LIMIT', 0, 2)
  local replica = over[1] ~= asker and over[1] or over[2]
  if not replica then return 0 end
  redis.call('HDEL', CONNECTIONS, replica)
  local holds, swept = key_of('holds', replica), key_of('swept', replica)
  local found = redis.call('HRANDFIELD', holds, MOST_SWEPT_AT_ONCE, 'WITHVALUES')
  for i = 1, #found, 2 do
    for _, want in ipairs(cmsgpack.unpack(found[i + 1])) do
      if want[1] == SLOTS then free_slot(want) end
      if want[1] == SPENDING then add_to_budget(want[2], want[5], -nano(want[4]), nano(want[4])) end
    end
    redis.call('HDEL', holds, found[i])
    redis.call('HSET', swept, found[i], found[i + 1])
  end
  if #found > 0 then redis.call('EXPIRE', swept, SWEPT_KEPT_S) end
  if redis.call('EXISTS', holds) == 0 then redis.call('ZREM', REPLICAS, replica) end
  if #found > 0 then redis.call('INCRBY', NUM_SWEPT, #found / 2) end
  return #found / 2
end
