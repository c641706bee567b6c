-- The second part of the script that begins in `redis.lua`.

-- -- the division: who should have how much -------------------------------------------------------

-- Of demands that are counted by kind: case and level, and what is left.
local function find_level(kinds, counts, size, left, floors, needs, most)
  local case = floors > left and CROWDED or needs > left and SCARCE or AMPLE
  local below, above, sum_below = 0, most, 0
  while below < above do
    local middle = floor_of((below + above + 1) / 2)
    local sum = 0
    for k = 1, size do
      local kind = kinds[k]
      sum = sum + counts[k] * part(case, kind[1], kind[2], kind[3], middle)
    end
    if sum <= left then
      below = middle
    else
      above = middle - 1
    end
  end
  for k = 1, size do
    local kind = kinds[k]
    sum_below = sum_below + counts[k] * part(case, kind[1], kind[2], kind[3], below)
  end
  return case, below, max(0, left - sum_below)
end

local target = nil  -- by index; of the living

-- Sets everything about the last division but `settled` and `under`, and the targets.
local function divide(now)
  local kinds, counts, size, by_kind = {}, {}, 0, {}
  local share_kinds, kind_of = {}, {}
  local floors, needs, ceilings, most, silent_charge = 0, 0, 0, 0, 0
  budget, used, silent, next_end = huge, 0, 0, huge
  for i = 1, n do
    used = used + charge[i]
    if not living[i] then
      silent = silent + 1
      silent_charge = silent_charge + charge[i]
    else
      local f, d, c = floor[i], need[i], ceiling[i]
      local by_need = by_kind[c]
      if not by_need then
        by_need = {}
        by_kind[c] = by_need
      end
      local by_floor = by_need[d]
      if not by_floor then
        by_floor = {}
        by_need[d] = by_floor
      end
      local k = by_floor[f]
      if not k then
        size = size + 1
        k = size
        by_floor[f], kinds[k], counts[k] = k, {f, d, c}, 0
      end
      counts[k] = counts[k] + 1
      kind_of[i] = k
      floors, needs, ceilings = floors + f, needs + d, ceilings + c
      if c > most then
        most = c
      end
      if cap[i] < budget then
        budget = cap[i]
      end
      if ends[i] < next_end then
        next_end = ends[i]
      end
    end
  end
  if budget == huge then
    budget = 0
  end
  local left = max(0, budget - silent_charge)
  local over, share_over
  case, level, over = find_level(kinds, counts, size, left, floors, needs, most)
  for k = 1, size do
    share_kinds[k] = {kinds[k][1], kinds[k][3], kinds[k][3]}
  end
  share_case, share_level, share_over =
    find_level(share_kinds, counts, size, budget, floors, ceilings, most)
  local parts, may_have_more, may_share_more = {}, {}, {}
  for k = 1, size do
    local f, d, c = kinds[k][1], kinds[k][2], kinds[k][3]
    parts[k] = part(case, f, d, c, level)
    may_have_more[k] = over > 0 and is_eligible(case, f, d, c, level)
    may_share_more[k] = is_eligible(share_case, f, c, c, share_level)
  end
  target = {}
  local eligible, found = {}, 0
  share_high = 0
  for i = 1, n do
    local k = kind_of[i]
    if k then
      target[i] = parts[k]
      if may_have_more[k] then
        found = found + 1
        eligible[found] = i
      end
      if share_over > 0 and may_share_more[k] then
        share_over = share_over - 1
        share_high = line[i]
      end
    end
  end
  rest, turn, low, high = min(over, found), -1, 0, 0
  if rest == 0 then
    return
  end
  local first = 0
  if case ~= AMPLE then
    turn = floor_of(now / TURN)
    first = turn * rest % found
  end
  for k = first, first + rest - 1 do
    local i = eligible[k % found + 1]
    target[i] = target[i] + 1
  end
  low, high = line[eligible[first + 1]], line[eligible[(first + rest - 1) % found + 1]]
end

-- -- decisions ------------------------------------------------------------------------------------

-- What everybody has less than the floor, and than is needed; `under` is how many have less than
-- their part.
local short_of_floor, short_of_need = 0, 0

local function count_short()
  short_of_floor, short_of_need, under = 0, 0, 0
  local to_floor, to_need, below = 0, 0, 0  -- quicker than what outer functions share
  local target, charge, floor, need = target, charge, floor, need
  for i = 1, n do
    local most, has = target[i], charge[i]
    if most and has < most then
      below = below + 1
      local least, wanted = floor[i], need[i]
      if least > most then
        least = most
      end
      if least > has then
        to_floor = to_floor + least - has
      end
      if wanted > most then
        wanted = most
      end
      if wanted > has then
        to_need = to_need + wanted - has
      end
    end
  end
  short_of_floor, short_of_need, under = to_floor, to_need, below
end

-- Takes one out of these sums (-1), or puts it in again (1).
local function weigh(i, by)
  short_of_floor = short_of_floor + by * max(0, min(floor[i], target[i]) - charge[i])
  short_of_need = short_of_need + by * max(0, min(need[i], target[i]) - charge[i])
  under = under + (charge[i] < target[i] and by or 0)
end

-- For one that is not in the sums.
local function grow(i, now)
  local free = budget - used
  local steps = {{min(floor[i], target[i]), 0}, {min(need[i], target[i]), short_of_floor},
    {target[i], short_of_need}}
  for k = 1, now < growing and 1 or 3 do
    local more = max(0, min(steps[k][1] - charge[i], free - steps[k][2]))
    charge[i] = charge[i] + more
    used = used + more
    free = free - more
  end
end

local function owed_now()
  return max(0, short_of_need - (budget - used))
end

-- Notes how things stand after a decision.
local function note()
  settled = short_of_need == 0 and used <= budget and 1 or 0
end

local function wake(now, but)
  local free, owed = budget - used, owed_now()
  if now < growing or short_of_need == 0 and owed == 0 then
    return
  end
  for i = 1, n do
    if target[i] then
      local short = min(need[i], target[i]) - charge[i]
      if short > 0 and free > 0 and i ~= but then
        free = free - short
        call('PUBLISH', news .. ':' .. member_of[i], '')
      elseif owed > 0 and charge[i] > target[i] and i ~= but
        and asked[i] > max(target[i], charge[i] - owed) then
        call('PUBLISH', news .. ':' .. member_of[i], '')
      end
    end
  end
end

-- Ends the leases that are over. Loads the rows if it has to, and returns whether it did.
local function advance(now, always)
  local grace = GRACE * beat
  local wait = count > 0 and now - heard > grace
  if count == 0 and heard == -huge or wait then
    growing = now + grace
  end
  if not always and not wait and now < next_end then
    heard = max(heard, now)
    return false
  end
  load_rows(now)
  heard = max(heard, now)
  local changed = false
  for i = 1, n do
    if not has(i, SILENT) then
      if wait and ends[i] < now + grace then
        ends[i] = now + grace
        save_row(i)
      end
      if now >= ends[i] then
        changed = true
        if has(i, AUDIT) and charge[i] > 0 then
          flags[i] = flags[i] + SILENT
          counting[i] = 0
          asked[i] = charge[i]  -- of a silent one: what it had
          count_process(shown_of(i), -1)
          save_row(i)
        else
          delete_row(i)
        end
      end
    end
  end
  if changed then
    settled = 0  -- until the next division
    load_rows(now)
  end
  return true
end

local function silent_to_count(now)
  local found = {}
  for i = 1, n do
    if has(i, SILENT) and counting[i] <= now then
      found[#found + 1] = member_of[i]
      counting[i] = now + beat
      save_row(i)
    end
  end
  return found
end

-- -- operations -----------------------------------------------------------------------------------

local request = nil  -- of `sync`

local function read_request()
  local r = {
    member = ARGV[5], seq = tonumber(ARGV[6]), keep = tonumber(ARGV[7]),
    raw_need = tonumber(ARGV[8]), raw_floor = tonumber(ARGV[9]), ceiling = tonumber(ARGV[10]),
    budget = tonumber(ARGV[11]), flags = tonumber(ARGV[12]), epoch = tonumber(ARGV[13]),
    shown = ARGV[14], making = tonumber(ARGV[15]),
  }
  r.floor, r.need = demand(r.raw_floor, r.raw_need, r.ceiling)
  return r
end

local function sync(now)
  local r = request
  local i = index_of[r.member]
  local is_new = not i
  if i and r.seq <= seq[i] then
    divide(now)
    count_short()
    note()
    if not target[i] then
      return answer(now, 0, charge[i], 0, owed_now(), under > 0 and 1 or 0, 0, {})
    end
    local others = under - (charge[i] < target[i] and 1 or 0)
    return answer(now, 0, charge[i], target[i], owed_now(), others > 0 and 1 or 0,
      share_of(floor[i], ceiling[i], line[i]), {})
  end
  if not i then
    lines = lines + 1
    count = count + 1
    n = n + 1
    i = n
    member_of[i], index_of[r.member], line[i] = r.member, i, lines
    call('ZADD', LINES, lines, r.member)
    count_process(r.shown, 1)
  elseif has(i, SILENT) then
    count_process(r.shown, 1)
  elseif shown_of(i) ~= r.shown then
    count_process(shown_of(i), -1)
    count_process(r.shown, 1)
  end
  seq[i], charge[i], raw_need[i], need[i] = r.seq, r.keep, r.raw_need, r.need
  floor[i], ceiling[i], cap[i], flags[i] = r.floor, r.ceiling, r.budget, r.flags
  asked[i], ends[i], counting[i], making[i] = 0, now + ttl, 0, r.making
  text_of[i] = string.rep(' ', ROW_SIZE) .. r.shown
  heard = now
  learn(r.epoch, now)
  living[i] = true
  divide(now)
  count_short()
  weigh(i, -1)
  local lend = under > 0 and 1 or 0
  if is_new or now >= growing then
    grow(i, now)
  end
  weigh(i, 1)
  local owed = owed_now()
  asked[i] = max(target[i], charge[i] - owed)
  save_row(i)
  local to_count = {}
  if has(i, AUDIT) then
    to_count = silent_to_count(now)
  end
  local said = answer(now, 1, charge[i], target[i], owed, lend,
    share_of(floor[i], ceiling[i], line[i]), to_count)
  wake(now, i)
  note()
  return said
end

-- After rows were removed or their charge was lowered.
local function decide_again(now)
  load_rows(now)
  divide(now)
  count_short()
  wake(now, nil)
  note()
end

local function circuit(changed, now)
  if changed then
    tell_circuit(now)
  end
  return {seen(now)}
end

local OPERATIONS = {
  leave = function(now)
    local i = index_of[ARGV[5]]
    if i and tonumber(ARGV[6]) <= seq[i] then
      return 0
    elseif i then
      delete_row(i)
      decide_again(now)
    end
    return 1
  end,
  settle = function(now)
    local i = index_of[ARGV[5]]
    if not i or not has(i, SILENT) then
      return
    end
    local counted = tonumber(ARGV[6])
    local more = counted > 0 and now < ends[i] + OPENING and making[i] or 0
    charge[i] = min(asked[i], counted + more)
    if charge[i] == 0 then
      delete_row(i)
    else
      save_row(i)
    end
    decide_again(now)
  end,
  members = function(now)
    local found = {}
    for i = 1, n do
      found[i] = {member_of[i], charge[i], raw_need[i], has(i, SILENT) and 1 or 0, shown_of(i)}
    end
    return found
  end,
  look = function(now)
    return circuit(false, now)
  end,
  vote = function(now)
    return circuit(vote(ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1', now), now)
  end,
  judge = function(now)
    return circuit(judge(now), now)
  end,
  claim = function(now)
    return circuit(claim(ARGV[5], tonumber(ARGV[6]), now), now)
  end,
  verdict = function(now)
    return circuit(verdict(ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1', now), now)
  end,
  sync = sync,
}

-- Whether nobody can have anything, although nothing is known: nobody listens to the news, and the
-- server has run for longer than those who have lost their connection take to come back. Then the
-- fleet is new, and not forgotten. A user who may not ask that learns.
local function is_new()
  local listeners, about = redis.pcall('PUBSUB', 'NUMSUB', news), redis.pcall('INFO', 'server')
  local uptime = type(about) == 'string' and string.match(about, 'uptime_in_seconds:(%d+)')
  return listeners[2] == 0 and uptime and tonumber(uptime) > ttl + GRACE * beat
end

if lost then
  forget()
  if ARGV[2] == '' and is_new() then
    heard = now
  end
end
if operation == 'sync' then
  request = read_request()
end
if not advance(now, operation ~= 'sync') then
  load_rows(now)
end
result = OPERATIONS[operation](now)

end

local is_due = now >= kept + KEEP_EVERY
if is_due then
  kept = now
end
call('SET', META, struct.pack(META_FORMAT,
  VERSION, lines, heard, growing, used, count, skew, kept, next_end,
  state, epoch, since, retry, leased, prober and 1 or 0,
  settled, case, level, rest, low, high, turn, share_case, share_level, share_high,
  under, budget, silent) .. (prober or ''), 'EX', KEPT)
if is_due then
  for _, key in ipairs(KEYS) do
    call('EXPIRE', key, KEPT)
  end
end
return result
