-- renew(replica, connection, lease_ms): the lease begins anew, and something is swept whose lease is over.
-- {whether it was known, its holds, replicas, how many were swept by anybody and told to nobody yet, the time in seconds,
-- whose budgets were refilled}, or {-1} where it has a newer connection.
local replica, connection = ARGV[1], ARGV[2]
local newest = redis.call('HGET', CONNECTIONS, replica)
if newest and tonumber(newest) > tonumber(connection) then return {-1} end
redis.call('HSET', CONNECTIONS, replica, connection)
redis.call('ZADD', REPLICAS, string.format('%.0f', NOW_US + ARGV[3] * 1000), replica)
if ARGV[3] ~= '0' then
  -- Leases that last that long are from before the clock was set back. Who lives renews his.
  local late_us = string.format('(%.0f', NOW_US + 2 * ARGV[3] * 1000)
  for _, other in ipairs(redis.call('ZRANGE', REPLICAS, late_us, '+inf', 'BYSCORE', 'LIMIT', 0, 100)) do
    redis.call('ZADD', REPLICAS, string.format('%.0f', NOW_US + ARGV[3] * 1000), other)
  end
end
sweep()
local num_swept = 0
-- Who gives his lease back has nobody left to tell.
if ARGV[3] ~= '0' then num_swept = tonumber(redis.call('GETDEL', NUM_SWEPT)) or 0 end
local num_replicas = redis.call('ZCOUNT', REPLICAS, string.format('(%.0f', NOW_US), '+inf')
local num_holds = redis.call('HLEN', key_of('holds', replica))
local refilled = redis.call('GET', KEYS[1] .. ':refilled')
return {newest and 1 or 0, num_holds, num_replicas, num_swept, tonumber(TIME[1]), refilled}
