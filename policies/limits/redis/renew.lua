-- renew(replica, connection, lease_ms): the lease begins anew, and something is swept whose lease is over.
-- {whether it was known, its holds, replicas, how many were swept by anybody and told to nobody yet, the time in seconds},
-- or {-1} where it has a newer connection.
local replica, connection = ARGV[1], ARGV[2]
local newest = redis.call('HGET', CONNECTIONS, replica)
if newest and tonumber(newest) > tonumber(connection) then return {-1} end
redis.call('HSET', CONNECTIONS, replica, connection)
redis.call('ZADD', REPLICAS, string.format('%.0f', NOW_US + ARGV[3] * 1000), replica)
sweep()
local num_swept = 0
-- Who gives his lease back has nobody left to tell.
if ARGV[3] ~= '0' then num_swept = tonumber(redis.call('GETDEL', NUM_SWEPT)) or 0 end
local num_replicas = redis.call('ZCOUNT', REPLICAS, string.format('(%.0f', NOW_US), '+inf')
return {newest and 1 or 0, redis.call('HLEN', key_of('holds', replica)), num_replicas, num_swept, tonumber(TIME[1])}
