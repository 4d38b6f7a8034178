-- reserve(replica, connection, ahead_s, id, wants): all of them or none. {1, figures...}, or {0, which, retry_after_ms,
-- figures...} where one does not fit, or {-1} where the replica is not known. A figure is what is left of a bucket or
-- slots, or held and spent of a budget. Packed.
local replica, connection, id, packed = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
ahead_s = tonumber(ARGV[3])
if not is_current(replica, connection) then return cmsgpack.pack({-1}) end
local wants = cmsgpack.unpack(packed)
local figures, before

local function look()
  figures, before = {}, {}
  local first, retry_after_ms
  for i, want in ipairs(wants) do
    local fits, wait_ms = true, 1000
    if want[1] == RATE then
      before[i] = level_of(want)
      fits = before[i] >= needed_of(want)
      figures[i] = math.floor(before[i])
      if not fits then wait_ms = math.ceil((needed_of(want) - before[i]) * 60000 / want[3]) end
    elseif want[1] == SLOTS then
      local taken = tonumber(redis.call('GET', key_of('slots', want[2]))) or 0
      fits = taken < want[3]
      figures[i] = math.max(0, want[3] - taken)
    else
      local held, spent, is_new = budget_of(want[2])
      before[i] = {held, spent, is_new}
      local most = math.min(MOST, math.floor(want[3] / 1000))
      fits = spent + held + nano(want[4]) <= most or (spent < most and held == 0)
      figures[i] = held + spent
      if spent >= most then wait_ms = -1 end
    end
    if not fits and not first then first, retry_after_ms = i, wait_ms end
  end
  return first, retry_after_ms
end

local holds = key_of('holds', replica)
local first, retry_after_ms = look()
if first and redis.call('HEXISTS', holds, id) == 1 then
  -- Sent a second time, and it holds them already.
  return cmsgpack.pack({1, unpack(figures)})
end
if first and sweep(replica) > 0 then first, retry_after_ms = look() end
if first then return cmsgpack.pack({0, first - 1, retry_after_ms, unpack(figures)}) end
if redis.call('HSETNX', holds, id, packed) == 1 then
  for i, want in ipairs(wants) do
    if want[1] == RATE then
      local level = before[i] - taken_of(want)
      keep_level(want, level)
      figures[i] = math.floor(level)
    elseif want[1] == SLOTS then
      take_slot(want)
      figures[i] = figures[i] - 1
    else
      local held, spent, is_new = unpack(before[i])
      keep_budget(want[2], want[5], held + nano(want[4]), spent, is_new)
      figures[i] = figures[i] + nano(want[4])
    end
  end
end
return cmsgpack.pack({1, unpack(figures)})
