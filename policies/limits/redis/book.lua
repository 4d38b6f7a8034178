-- book(id, ahead_s, {{key, pico-dollars, ends_at}...}): was spent under these budgets without being held here. Once for each id.
ahead_s = tonumber(ARGV[2])
if redis.call('SET', key_of('booked', ARGV[1]), 1, 'NX', 'EX', SWEPT_KEPT_S) then
  for _, each in ipairs(cmsgpack.unpack(ARGV[3])) do
    add_to_budget(each[1], each[3], 0, nano(each[2]))
  end
end
return 1
