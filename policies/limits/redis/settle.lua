-- settle(replica, {{id, {used...}}...}): what was held is used. Which of them nobody holds, counted from 0; 0 where
-- there is none.
local holds, swept = key_of('holds', ARGV[1]), key_of('swept', ARGV[1])
local unknown = {}
for number, each in ipairs(cmsgpack.unpack(ARGV[2])) do
  local id = each[1]
  local packed = redis.call('HGET', holds, id)
  local is_held = packed
  if not is_held then packed = redis.call('HGET', swept, id) end
  if packed then
    redis.call('HDEL', is_held and holds or swept, id)
    for i, want in ipairs(cmsgpack.unpack(packed)) do
      local used = each[2][i]
      if want[1] == RATE then
        keep_level(want, math.min(want[4], level_of(want) + taken_of(want) - used))
      elseif want[1] == SLOTS then
        if is_held then free_slot(want) end
      elseif is_held then
        add_to_budget(want[2], want[5], -nano(want[4]), nano(used))
      else
        add_to_budget(want[2], want[5], 0, nano(used) - nano(want[4]))
      end
    end
  else
    unknown[#unknown + 1] = number - 1
  end
end
return #unknown > 0 and unknown or 0
