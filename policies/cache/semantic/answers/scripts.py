"""What the answers in Redis are kept by: Lua that Redis runs in one step, whichever replica sends it.

An answer is a hash; its place is `<scope in hex>/<id>`. A tenant's places are a hash of their bytes, with their sum
under `bytes`: what ended by itself is still in it until it is drawn.
"""

from __future__ import annotations

# `uncount` takes the answer of a place out of its tenant's sum and returns its key; `forget` deletes it too, and
# returns how many that were. `prefix` is that of every scope.
_FORGET = """
local function uncount(prefix, place)
  local scope, id = string.match(place, '^(%x+)/(.*)$')
  local answer = prefix .. scope .. ':answer:' .. id
  local tenant = redis.pcall('HGET', answer, 'tenant')
  if type(tenant) == 'string' then
    local places = prefix .. 'tenant:' .. tenant
    local size = redis.call('HGET', places, place)
    if size then
      redis.call('HDEL', places, place)
      redis.call('HINCRBY', places, 'bytes', -size)
    end
  end
  return answer
end
local function forget(prefix, place)
  local answer = uncount(prefix, place)
  redis.call('ZREM', prefix .. 'answers', place)
  return redis.call('DEL', answer)
end
"""

# KEYS: the answer, the ids that say the same, all places, the tenant's places. ARGV: id, place, packed, expires,
# milliseconds to live, answer_id, the prefix of every scope, tenant, bytes, tokens, the most bytes of the tenant.
# What lives longest decides for how long the lists live. Two of all places are drawn and dropped where their answer is
# gone, which is faster than new ones come; so are two of the tenant's. While it has too much, sixteen of its entries
# are drawn: those that are gone go, then the least valuable of them, never the newest. Returns how many had to.
PUT = (
    _FORGET
    + """
local place, prefix, most = ARGV[2], ARGV[7], tonumber(ARGV[11])
uncount(prefix, place)
local before = redis.call('HGET', KEYS[1], 'answer_id')
if before and before ~= ARGV[6] then
  redis.call('SREM', string.sub(KEYS[2], 1, -1 - #ARGV[6]) .. before, ARGV[1])
end
redis.call('HSET', KEYS[1], 'packed', ARGV[3], 'answer_id', ARGV[6], 'tenant', ARGV[8], 'tokens', ARGV[10])
if redis.call('HSETNX', KEYS[1], 'expires', ARGV[4]) == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[5]) end
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('ZADD', KEYS[3], 0, place)
redis.call('HSET', KEYS[4], place, ARGV[9])
redis.call('HINCRBY', KEYS[4], 'bytes', ARGV[9])
for i = 2, 4 do
  if redis.call('PTTL', KEYS[i]) < tonumber(ARGV[5]) then redis.call('PEXPIRE', KEYS[i], ARGV[5]) end
end

local function fields(drawn)
  local scope, id = string.match(drawn, '^(%x+)/(.*)$')
  if not scope then return {} end
  return redis.pcall('HMGET', prefix .. scope .. ':answer:' .. id, 'packed', 'tokens', 'served', 'good', 'bad')
end
local function value(drawn, size)
  local packed, tokens, served, good, bad = unpack(fields(drawn))
  if not packed then return nil end
  good, bad = good or 0, bad or 0
  return (1 + (served or 0)) * (tokens or 1) * (good + 1) / (good + bad + 2) / size
end
local function draw(count)
  local live, gone = {}, 0
  local drawn = redis.call('HRANDFIELD', KEYS[4], count, 'WITHVALUES')
  for i = 1, #drawn, 2 do
    if drawn[i] ~= 'bytes' and drawn[i] ~= place then
      local worth = value(drawn[i], drawn[i + 1])
      if worth then
        table.insert(live, {drawn[i], worth})
      else
        redis.call('HDEL', KEYS[4], drawn[i])
        redis.call('HINCRBY', KEYS[4], 'bytes', -drawn[i + 1])
        gone = gone + 1
      end
    end
  end
  table.sort(live, function(left, right) return left[2] < right[2] end)
  return live, gone
end
local function has_too_much() return tonumber(redis.call('HGET', KEYS[4], 'bytes')) > most end

for _, drawn in ipairs(redis.call('ZRANDMEMBER', KEYS[3], 2)) do
  if not fields(drawn)[1] then redis.call('ZREM', KEYS[3], drawn) end
end
draw(2)
local evicted = 0
while has_too_much() do
  local live, gone = draw(16)
  if #live + gone == 0 then break end
  for i = 1, math.ceil(#live / 2) do
    if has_too_much() then evicted = evicted + forget(prefix, live[i][1]) end
  end
end
return evicted
"""
)

# KEYS: the answer. ARGV: good, bad, served, 1 for a bad label, the most of these, the prefix of every scope, the scope,
# id. Returns how many entries were removed.
RECORD = (
    _FORGET
    + """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HINCRBYFLOAT', KEYS[1], 'good', ARGV[1])
redis.call('HINCRBYFLOAT', KEYS[1], 'bad', ARGV[2])
redis.call('HINCRBY', KEYS[1], 'served', ARGV[3])
if redis.call('HINCRBY', KEYS[1], 'bad_labels', ARGV[4]) < tonumber(ARGV[5]) then return 0 end
local same = ARGV[6] .. ARGV[7] .. ':same:' .. (redis.call('HGET', KEYS[1], 'answer_id') or '')
local count = forget(ARGV[6], ARGV[7] .. '/' .. ARGV[8])
for _, id in ipairs(redis.call('SMEMBERS', same)) do count = count + forget(ARGV[6], ARGV[7] .. '/' .. id) end
redis.call('DEL', same)
return count
"""
)

# ARGV: the prefix of every scope, the scope, two answer_ids; entries of that which has fewer get the other one.
UNITE = """
local scope, fewer, more = ARGV[1] .. ARGV[2], ARGV[3], ARGV[4]
local function named(answer_id) return scope .. ':same:' .. answer_id end
if redis.call('SCARD', named(fewer)) > redis.call('SCARD', named(more)) then fewer, more = more, fewer end
local from, into = named(fewer), named(more)
for _, id in ipairs(redis.call('SMEMBERS', from)) do
  local answer = scope .. ':answer:' .. id
  if redis.call('HGET', answer, 'answer_id') == fewer then
    redis.call('HSET', answer, 'answer_id', more)
    redis.call('SADD', into, id)
  end
end
local left = redis.call('PTTL', from)
if redis.call('PTTL', into) < left then redis.call('PEXPIRE', into, left) end
redis.call('DEL', from)
"""

# ARGV: the prefix of every scope, place.
DELETE = _FORGET + "return forget(ARGV[1], ARGV[2])"
