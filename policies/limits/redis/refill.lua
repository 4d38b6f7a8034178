-- refill(ahead_s, {{key, pico-dollars, ends_at}...}): at least so much was spent under these budgets.
ahead_s = tonumber(ARGV[1])
for _, each in ipairs(cmsgpack.unpack(ARGV[2])) do
  local held, spent, is_new = budget_of(each[1])
  if nano(each[2]) > spent then keep_budget(each[1], each[3], held, nano(each[2]), is_new) end
end
return 1
