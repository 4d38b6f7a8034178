-- adopt(replica, connection, ahead_s, {{id, wants}...}): calls go on that nobody here knows of, for they were swept, let
-- in while Redis was away, or lost with it. They hold what they hold, whether that fits or not. How many.
local replica = ARGV[1]
if not is_current(replica, ARGV[2]) then return -1 end
ahead_s = tonumber(ARGV[3])
local num_adopted = 0
for _, each in ipairs(cmsgpack.unpack(ARGV[4])) do
  local id, wants = each[1], each[2]
  if redis.call('HSETNX', key_of('holds', replica), id, cmsgpack.pack(wants)) == 1 then
    num_adopted = num_adopted + 1
    local was_swept = redis.call('HDEL', key_of('swept', replica), id) == 1
    for _, want in ipairs(wants) do
      if want[1] == SLOTS then
        take_slot(want)
      elseif want[1] == SPENDING then
        add_to_budget(want[2], want[5], nano(want[4]), was_swept and -nano(want[4]) or 0)
      elseif not was_swept then
        keep_level(want, level_of(want) - taken_of(want))
      end
    end
  end
end
return num_adopted
