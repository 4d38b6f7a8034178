-- book(id, {{key, nano-dollars, ttl_s}...}): was spent under these budgets without being held here. Once for each id.
if redis.call('SET', key_of('booked', ARGV[1]), 1, 'NX', 'EX', SWEPT_KEPT_S) then
  for _, each in ipairs(cmsgpack.unpack(ARGV[2])) do
    add_to_budget(each[1], each[3], 0, each[2])
  end
end
return 1
