-- The ledger of a fleet in Redis or Valkey: what `reference.py` decides, in one script.
--
-- KEYS, all in one slot:
--   meta       numbers of the fleet, the circuit breaker, and what the last division has found
--   rows       hash: member -> numbers of the row, followed by what is only shown of it
--   lines      sorted set: member -> its place in the order of age
--   processes  hash: host and process -> how many living members it has
--   votes      hash: member -> 1 for down, 0 for up
-- ARGV: operation, time (empty: that of the server), ttl, beat, and what the operation takes.
--
-- A full division looks at every row. Most requests do not need one: while nobody is short of
-- anything, a request that leaves all parts as they are is answered from what the last division has
-- found. It comes first, before the functions for everything else are made: making a function that
-- uses many variables of the script is what a short script of Lua takes most of its time for.

local META, ROWS, LINES, PROCESSES, VOTES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local operation, ttl, beat = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local news = string.sub(META, 1, -5) .. 'news'  -- of the breaker; of a member: with its name

local VERSION = 1
local GRACE, TURN = 2, 5
local PATIENCE, SUSPECT_FOR, PROBE_EVERY, PROBE_LEASE = 0.5, 3, 1, 3
local ACTIVE, SUSPECT, INACTIVE = 0, 1, 2
local CROWDED, SCARCE, AMPLE = 0, 1, 2
local AUDIT, SILENT, BREAKER = 1, 2, 4  -- flags of a row
local OPENING = 60
local KEPT, KEEP_EVERY = 86400, 3600  -- seconds for which an abandoned fleet is kept
local huge = math.huge
local min, max, floor_of = math.min, math.max, math.floor
local call = redis.call

-- -- what is kept ---------------------------------------------------------------------------------

local META_FORMAT = '<' .. string.rep('d', 28)
local ROW_FORMAT = '<dddddddddddB'
local ROW_SIZE = 89

local lines, heard, growing, used, count, skew, kept, next_end  -- of the fleet
local state, epoch, since, retry, leased, prober  -- of the breaker
-- Of the last division. `settled`: 1 if nobody is short and nothing is owed; `turn`: -1 if it does
-- not matter;
-- `low` to `high`: lines of those who get one more than their level, around the end if need be;
-- `under`: how many have less than their part; `silent`: how many rows are.
local settled, case, level, rest, low, high, turn, share_case, share_level, share_high
local under, budget, silent

local text, lost = call('GET', META), false
if text then
  local version, at, has_prober
  version, lines, heard, growing, used, count, skew, kept, next_end,
  state, epoch, since, retry, leased, has_prober,
  settled, case, level, rest, low, high, turn, share_case, share_level, share_high,
  under, budget, silent, at = struct.unpack(META_FORMAT, text)
  if version ~= VERSION then
    return redis.error_reply('CENOTEVERSION ' .. version)
  end
  if has_prober == 1 then
    prober = string.sub(text, at)
  end
else
  lost, count, skew, heard = true, 0, 0, -huge
end

local now = tonumber(ARGV[2])
if not now then
  local time = call('TIME')
  local wall = time[1] + time[2] / 1000000
  if wall + skew < heard then  -- somebody has put the clock back
    skew = heard - wall
  end
  now = wall + skew
end

-- -- what both ways need ---------------------------------------------------------------------------

local function demand(floor, need, ceiling)
  local least = min(floor, ceiling)
  return least, min(max(least, need), ceiling)
end

local NAMES = {[ACTIVE] = 'ACTIVE', [SUSPECT] = 'SUSPECT', [INACTIVE] = 'INACTIVE'}

local function is_leased(now)
  return prober ~= nil and now < leased
end

local function seen(now)
  local wait = 0
  if state == SUSPECT then
    wait = since + PATIENCE - now
    if wait <= 0 then
      wait = since + SUSPECT_FOR - now
    end
  elseif state == INACTIVE then
    wait = (is_leased(now) and leased or retry) - now
  end
  return NAMES[state], epoch, string.format('%.17g', max(0, wait)), is_leased(now) and prober
end

local function part(case, floor, need, ceiling, level)
  if case == CROWDED then
    return min(floor, level)
  elseif case == SCARCE then
    return max(floor, min(need, level))
  end
  return max(need, min(ceiling, level))
end

local function is_eligible(case, floor, need, ceiling, level)
  return part(case, floor, need, ceiling, level + 1) > part(case, floor, need, ceiling, level)
end

-- What the last division gives to a row like this one.
local function target_of(floor, need, ceiling, line)
  local found = part(case, floor, need, ceiling, level)
  if rest > 0 and is_eligible(case, floor, need, ceiling, level) then
    local chosen = line >= low and line <= high
    if low > high then
      chosen = line >= low or line <= high
    end
    if chosen then
      return found + 1
    end
  end
  return found
end

local function share_of(floor, ceiling, line)
  local found = part(share_case, floor, ceiling, ceiling, share_level)
  if line <= share_high and is_eligible(share_case, floor, ceiling, ceiling, share_level) then
    return found + 1
  end
  return found
end

local function answer(now, accepted, held, target, owed, lend, share, to_count)
  local name, number, wait, who = seen(now)
  return {accepted, held, target, owed, lend, share, used, budget, call('HLEN', PROCESSES),
    name, number, wait, who, to_count}
end

-- -- the usual request ----------------------------------------------------------------------------

-- It leaves every part as it is, while nobody is short: nobody is to be woken, and nothing has to be
-- kept free for others.
local result = nil
if operation == 'sync' and settled == 1 and silent == 0 and now < next_end
  and now - heard <= GRACE * beat and (turn < 0 or turn == floor_of(now / TURN)) then
  local text = call('HGET', ROWS, ARGV[5])
  repeat  -- once; `break` is the way to the full division
    if not text then
      break
    end
    local seq, charge, raw_need, floor, ceiling, cap, _, line, _, _, _, flags =
      struct.unpack(ROW_FORMAT, text)
    local _, need = demand(floor, raw_need, ceiling)
    local member, new_seq, keep, new_raw_need = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]),
      tonumber(ARGV[8])
    local new_ceiling = tonumber(ARGV[10])
    local new_floor, new_need = demand(tonumber(ARGV[9]), new_raw_need, new_ceiling)
    if new_seq <= seq or new_floor ~= floor or new_ceiling ~= ceiling
      or tonumber(ARGV[11]) ~= cap or tonumber(ARGV[12]) ~= flags or tonumber(ARGV[13]) > epoch
      or ARGV[14] ~= string.sub(text, ROW_SIZE + 1) then
      break
    end
    if new_need ~= need
      and (part(case, floor, need, ceiling, level) ~= part(case, floor, new_need, ceiling, level)
        or part(case, floor, need, ceiling, level + 1)
          ~= part(case, floor, new_need, ceiling, level + 1)) then
      break
    end
    local mine = target_of(floor, new_need, ceiling, line)
    local held, free = keep, budget - (used - charge + keep)
    if now >= growing then
      held = held + max(0, min(mine - held, free))
    end
    if held < min(new_need, mine) or used - charge + held > budget then
      break
    end
    local others = under - (charge < target_of(floor, need, ceiling, line) and 1 or 0)
    under = others + (held < mine and 1 or 0)
    used = used - charge + held
    heard = now
    call('HSET', ROWS, member, struct.pack(ROW_FORMAT, new_seq, held, new_raw_need, floor, ceiling,
      cap, held, line, now + ttl, 0, tonumber(ARGV[15]), flags) .. ARGV[14])
    result = answer(now, 1, held, mine, 0, others > 0 and 1 or 0, share_of(floor, ceiling, line), {})
  until true
end

if not result then  -- to the end of the script, but for what is kept

local function forget()
  call('DEL', META, ROWS, LINES, PROCESSES, VOTES)
  lines, heard, growing, used, count, skew, kept, next_end = 0, -huge, -huge, 0, 0, 0, -huge, -huge
  state, epoch, since, retry, leased, prober = ACTIVE, 0, 0, 0, 0, nil
  settled, case, level, rest, low, high, turn = 0, 0, 0, 0, 0, 0, -1
  share_case, share_level, share_high, under, budget, silent = 0, 0, 0, 0, 0, 0
end

-- Every row, in the order of age.
local n, member_of, index_of = 0, nil, nil
local seq, charge, need, raw_need, floor, ceiling, cap, asked, line, ends, counting, making, flags
local text_of = nil  -- the whole row
local living = nil  -- false for a silent one

-- All in one table each, by index; nil if a key was lost.
local function read_rows()
  member_of = call('ZRANGE', LINES, 0, -1)
  local raw = call('HGETALL', ROWS)
  n = #member_of
  if n ~= count or #raw ~= 2 * n then
    return nil
  end
  index_of, seq, charge, need, floor, ceiling, cap = {}, {}, {}, {}, {}, {}, {}
  asked, line, ends, counting, flags, text_of, raw_need = {}, {}, {}, {}, {}, {}, {}
  living, making = {}, {}
  for i = 1, n do
    index_of[member_of[i]] = i
  end
  for k = 1, 2 * n, 2 do
    local i = index_of[raw[k]]
    if not i then
      return nil
    end
    text_of[i] = raw[k + 1]
    seq[i], charge[i], raw_need[i], floor[i], ceiling[i], cap[i], asked[i], line[i], ends[i],
      counting[i], making[i], flags[i] = struct.unpack(ROW_FORMAT, raw[k + 1])
    floor[i], need[i] = demand(floor[i], raw_need[i], ceiling[i])
    living[i] = flags[i] % (2 * SILENT) < SILENT
  end
  return true
end

local function load_rows(now)
  if not read_rows() then
    forget()
    heard, growing = now, now + GRACE * beat
    read_rows()
  end
end

local function shown_of(i)
  return string.sub(text_of[i], ROW_SIZE + 1)
end

local function has(i, flag)
  return floor_of(flags[i] / flag) % 2 == 1
end

local function save_row(i)
  call('HSET', ROWS, member_of[i], struct.pack(ROW_FORMAT, seq[i], charge[i], raw_need[i], floor[i],
    ceiling[i], cap[i], asked[i], line[i], ends[i], counting[i], making[i], flags[i]) .. shown_of(i))
end

-- `shown` is a JSON array; the process is its first two elements.
local function count_process(shown, by)
  local fields = cjson.decode(shown)
  local process = fields[1] .. '\n' .. fields[2]
  if call('HINCRBY', PROCESSES, process, by) <= 0 then
    call('HDEL', PROCESSES, process)
  end
end

local function delete_row(i)
  local member = member_of[i]
  call('HDEL', ROWS, member)
  call('ZREM', LINES, member)
  if not has(i, SILENT) then
    count_process(shown_of(i), -1)
  end
  count = count - 1
end

-- -- the circuit breaker --------------------------------------------------------------------------

local function tell_circuit(now)
  local name, number, wait, who = seen(now)
  call('PUBLISH', news, cjson.encode({name, number, wait, who}))
end

local function change(to)
  state = to
  epoch = epoch + 1
  prober = nil
  call('DEL', VOTES)
end

local function learn(known, now)
  if known > epoch then
    change(ACTIVE)
    epoch = known + 1
    tell_circuit(now)
  end
end

-- By host: how many take part, have voted, and say down.
local function count_votes()
  local votes, hosts = {}, {}
  local raw = call('HGETALL', VOTES)
  for k = 1, #raw, 2 do
    votes[raw[k]] = raw[k + 1]
  end
  for i = 1, n do
    if has(i, BREAKER) and not has(i, SILENT) then
      local name = cjson.decode(shown_of(i))[1]
      local host = hosts[name] or {members = 0, voted = 0, down = 0}
      local vote = votes[member_of[i]]
      host.members = host.members + 1
      host.voted = host.voted + (vote and 1 or 0)
      host.down = host.down + (vote == '1' and 1 or 0)
      hosts[name] = host
    end
  end
  return hosts
end

local function has_majority(now)
  local every, spoken, down = 0, 0, 0
  for _, host in pairs(count_votes()) do
    every = every + 1
    if host.voted > 0 then
      spoken = spoken + 1
      if 2 * host.down > host.voted and host.down >= min(2, host.members) then
        down = down + 1
      end
    end
  end
  if 2 * down > every then
    return true
  end
  return now >= since + PATIENCE and down >= min(2, every) and 2 * down > spoken
end

local function judge(now)
  if state ~= SUSPECT then
    return false
  end
  if has_majority(now) then
    change(INACTIVE)
    retry = now + PROBE_EVERY
    return true
  end
  if now >= since + SUSPECT_FOR then
    change(ACTIVE)
    return true
  end
  return false
end

local function vote(member, known, down, now)
  local i = index_of[member]
  local takes_part = i and has(i, BREAKER) and not has(i, SILENT)
  if known ~= epoch or not takes_part or state == INACTIVE then
    return false
  end
  local began = false
  if state == ACTIVE then
    if not down then
      return false
    end
    change(SUSPECT)
    since, began = now, true
  end
  call('HSET', VOTES, member, down and 1 or 0)
  return judge(now) or began
end

local function claim(member, known, now)
  if known ~= epoch or state ~= INACTIVE or now < retry or is_leased(now) then
    return false
  end
  epoch = epoch + 1
  prober, leased = member, now + PROBE_LEASE
  return true
end

local function verdict(member, known, up, now)
  if known ~= epoch or state ~= INACTIVE or member ~= prober or not is_leased(now) then
    return false
  end
  change(up and ACTIVE or INACTIVE)
  if not up then
    retry = leased - PROBE_LEASE + PROBE_EVERY
    leased = 0
  end
  return true
end
